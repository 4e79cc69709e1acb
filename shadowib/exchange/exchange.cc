#include "shadowib/exchange/exchange.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shadowib/exchange/directory_exchange.h"
#include "shadowib/exchange/pmix_exchange.h"
#include "shadowib/exchange/redis_exchange.h"
#include "shadowib/exchange/redis_place.h"

namespace shadowib {
namespace {

constexpr int kMaxComponents = 8;
constexpr std::size_t kMaxComponent = 64;
constexpr std::size_t kMaxValue = 64u << 20;

bool valid_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

Status no_key(std::string_view key) {
  return Status::of(Code::kUsage, EINVAL,
                    "exchange: '%.100s' is no key (1 to 8 components of 1 to 64 of A-Za-z0-9._-)",
                    std::string(key).c_str());
}

Status check_key(std::string_view key) { return Exchange::valid_key(key) ? Status() : no_key(key); }

}  // namespace

bool Exchange::valid_key(std::string_view key) {
  for (int components = 1;; ++components) {
    std::size_t end = key.find('/');
    std::string_view part = key.substr(0, end);
    // "." and ".." would leave the tree of an engine that stores keys as paths.
    if (part.empty() || part.size() > kMaxComponent || part == "." || part == "..") return false;
    for (char c : part)
      if (!valid_character(c)) return false;
    if (end == std::string_view::npos) return true;
    if (components == kMaxComponents) return false;
    key.remove_prefix(end + 1);
  }
}

Status Exchange::taken(std::string_view key) {
  return Status::of(Code::kBusy, EEXIST, "exchange: %.80s is taken", std::string(key).c_str());
}

Status Exchange::given_up(std::string_view barrier, std::string_view abort_key) {
  return Status::of(Code::kAborted, 0, "exchange: barrier %.80s was given up: %.80s exists",
                    std::string(barrier).c_str(), std::string(abort_key).c_str());
}

Status Exchange::incomplete(std::string_view barrier, int n, int timeout_ms) {
  return Status::of(Code::kTimeout, ETIMEDOUT, "exchange: not all %d members entered barrier %.80s within %d ms", n,
                    std::string(barrier).c_str(), timeout_ms);
}

Status Exchange::unchanged(std::string_view prefix, int timeout_ms) {
  return Status::of(Code::kTimeout, ETIMEDOUT, "exchange: nothing changed below %.100s within %d ms",
                    std::string(prefix).c_str(), timeout_ms);
}

Status Exchange::begin_put(std::string_view key, std::string_view value) {
  count_operation();
  SHADOWIB_TRY(check_key(key));
  if (value.size() <= kMaxValue) return {};
  return Status::of(Code::kUsage, EFBIG, "exchange: the value of %.80s has %zu bytes, more than 64 MiB",
                    std::string(key).c_str(), value.size());
}

Status Exchange::begin_below(std::string_view prefix) {
  count_operation();
  return prefix.empty() ? Status() : check_key(prefix);
}

Status Exchange::publish(std::string_view key, std::string_view value) {
  SHADOWIB_TRY(begin_put(key, value));
  return do_publish(key, value);
}

Status Exchange::publish_alike(std::string_view key, std::string_view value) {
  SHADOWIB_TRY(begin_put(key, value));
  return do_publish_alike(key, value);
}

Status Exchange::begin_put_all(const std::vector<Value>& values) {
  for (const Value& value : values) SHADOWIB_TRY(begin_put(value.key, value.value));
  return {};
}

Status Exchange::publish_all(const std::vector<Value>& values) {
  SHADOWIB_TRY(begin_put_all(values));
  return values.empty() ? Status() : do_publish_all(values);
}

Status Exchange::do_publish_all(const std::vector<Value>& values) {
  for (const Value& value : values)
    SHADOWIB_TRY(value.alike ? do_publish_alike(value.key, value.value) : do_publish(value.key, value.value));
  return {};
}

Status Exchange::claim(std::string_view key, std::string_view value) {
  SHADOWIB_TRY(begin_put(key, value));
  return do_claim(key, value);
}

Status Exchange::begin_lookup(const std::vector<std::string>& keys, std::vector<std::string>* values,
                              std::vector<bool>* found) {
  values->assign(keys.size(), std::string());
  found->assign(keys.size(), false);
  for (const std::string& key : keys) SHADOWIB_TRY(check_key(key));
  return {};
}

Status Exchange::lookup(const std::vector<std::string>& keys, std::vector<std::string>* values,
                        std::vector<bool>* found) {
  count_operation();
  SHADOWIB_TRY(begin_lookup(keys, values, found));
  return keys.empty() ? Status() : do_lookup(keys, values, found);
}

Status Exchange::remove(std::string_view key) {
  count_operation();
  SHADOWIB_TRY(check_key(key));
  return do_remove(key);
}

Status Exchange::list(std::string_view prefix, std::vector<std::string>* names) {
  names->clear();
  SHADOWIB_TRY(begin_below(prefix));
  SHADOWIB_TRY(do_list(prefix, names));
  std::sort(names->begin(), names->end());
  names->erase(std::unique(names->begin(), names->end()), names->end());
  return {};
}

Status Exchange::begin_barrier(std::string_view name, std::string_view member, std::string_view abort_key) {
  count_operation();
  SHADOWIB_TRY(check_key(name));
  if (!valid_key(member) || member.find('/') != std::string_view::npos) return no_key(member);
  return abort_key.empty() ? Status() : check_key(abort_key);
}

Status Exchange::barrier(std::string_view name, std::string_view member, int n, int timeout_ms,
                         std::string_view abort_key) {
  SHADOWIB_TRY(begin_barrier(name, member, abort_key));
  return do_barrier(name, member, n, timeout_ms, abort_key);
}

Status Exchange::barrier_beside(const std::vector<Value>& first, std::string_view name, std::string_view member,
                                int n, int timeout_ms, std::string_view abort_key, Look* look) {
  SHADOWIB_TRY(begin_put_all(first));
  if (look != nullptr) {
    look->token = 0;
    SHADOWIB_TRY(begin_lookup(look->keys, &look->values, &look->found));
    SHADOWIB_TRY(begin_below(look->prefix));
  }
  SHADOWIB_TRY(begin_barrier(name, member, abort_key));
  return do_barrier_beside(first, name, member, n, timeout_ms, abort_key, look);
}

Status Exchange::do_barrier_beside(const std::vector<Value>& first, std::string_view name, std::string_view member,
                                   int n, int timeout_ms, std::string_view abort_key, Look* look) {
  if (!first.empty()) SHADOWIB_TRY(do_publish_all(first));
  SHADOWIB_TRY(do_barrier(name, member, n, timeout_ms, abort_key));
  if (look == nullptr) return {};
  return do_watch_and_lookup(look->prefix, &look->token, 0, look->keys, &look->values, &look->found, {}, -1);
}

Status Exchange::entered(std::string_view name, std::vector<std::string>* members) {
  members->clear();
  SHADOWIB_TRY(check_key(name));
  count_operation();
  SHADOWIB_TRY(do_entered(name, members));
  std::sort(members->begin(), members->end());
  return {};
}

Status Exchange::watch(std::string_view prefix, std::uint64_t* token, int timeout_ms, int cancel_fd) {
  SHADOWIB_TRY(begin_below(prefix));
  return do_watch(prefix, token, timeout_ms, cancel_fd);
}

Status Exchange::watch_and_lookup(std::string_view prefix, std::uint64_t* token, int timeout_ms,
                                  const std::vector<std::string>& keys, std::vector<std::string>* values,
                                  std::vector<bool>* found, const std::vector<Value>& first, int cancel_fd) {
  SHADOWIB_TRY(begin_put_all(first));
  SHADOWIB_TRY(begin_lookup(keys, values, found));
  SHADOWIB_TRY(begin_below(prefix));
  return do_watch_and_lookup(prefix, token, timeout_ms, keys, values, found, first, cancel_fd);
}

Status Exchange::do_watch_and_lookup(std::string_view prefix, std::uint64_t* token, int timeout_ms,
                                     const std::vector<std::string>& keys, std::vector<std::string>* values,
                                     std::vector<bool>* found, const std::vector<Value>& first, int cancel_fd) {
  if (!first.empty()) SHADOWIB_TRY(do_publish_all(first));
  const Status watched = do_watch(prefix, token, timeout_ms, cancel_fd);
  if (!watched.ok() && watched.code() != Code::kTimeout) return watched;
  if (!keys.empty()) SHADOWIB_TRY(do_lookup(keys, values, found));
  return watched;
}

Status Exchange::get(std::string_view key, std::string* value, bool* found) {
  std::vector<std::string> keys{std::string(key)}, values;
  std::vector<bool> present;
  SHADOWIB_TRY(lookup(keys, &values, &present));
  *found = present[0];
  *value = std::move(values[0]);
  return {};
}

int Exchange::errno_of(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return 0;
    case Code::kBusy:
      return EEXIST;
    case Code::kNotFound:
      return ENOENT;
    default:
      return EIO;
  }
}

int Exchange::copy(std::string_view key, void* value, std::size_t capacity, std::size_t* bytes) {
  std::string text;
  bool found = false;
  if (const Status status = get(key, &text, &found); !status.ok()) return errno_of(status);
  if (!found) return ENOENT;
  *bytes = text.size();
  std::memcpy(value, text.data(), std::min(text.size(), capacity));
  return text.size() <= capacity ? 0 : EOVERFLOW;
}

Status Exchange::open(const std::string& uri, bool create, std::unique_ptr<Exchange>* exchange) {
  if (uri.compare(0, 4, "dir:") == 0) return open_directory_exchange(uri, uri.substr(4), create, exchange);
  if (is_redis_uri(uri)) return open_redis_exchange(uri, create, exchange);
  if (uri.compare(0, 5, "pmix:") == 0) return open_pmix_exchange(uri, create, exchange);
  return Status::of(
      Code::kUsage, 0,
      "exchange '%.150s': unknown kind; known: dir:PATH (a directory all processes share), "
      "redis://HOST[:PORT] (a Redis server; rediss: with TLS), pmix: (a server that the job's launcher has)",
      uri.c_str());
}

std::string Exchange::shown(const std::string& uri) {
  if (uri.compare(0, 5, "redis") != 0 && uri.compare(0, 7, "pmix://") != 0) return uri;
  RedisPlace place;
  return parse_redis_uri(uri, &place).ok() ? place.shown() : uri.substr(0, uri.find(':')) + "://...";
}

}  // namespace shadowib
