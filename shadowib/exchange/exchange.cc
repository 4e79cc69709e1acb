#include "shadowib/exchange/exchange.h"

#include "shadowib/exchange/directory_exchange.h"
#include "shadowib/exchange/pmix_exchange.h"
#include "shadowib/exchange/redis_exchange.h"
#include "shadowib/exchange/redis_place.h"

namespace shadowib {
namespace {

constexpr int kMaxComponents = 8;
constexpr std::size_t kMaxComponent = 64;

bool valid_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

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

Status Exchange::get(std::string_view key, std::string* value, bool* found) {
  std::vector<std::string> keys{std::string(key)}, values;
  std::vector<bool> present;
  SHADOWIB_TRY(lookup(keys, &values, &present));
  *found = present[0];
  *value = std::move(values[0]);
  return {};
}

Status Exchange::open(const std::string& uri, bool create, std::unique_ptr<Exchange>* exchange) {
  if (uri.compare(0, 4, "dir:") == 0) return open_directory_exchange(uri, uri.substr(4), create, exchange);
  if (uri.compare(0, 6, "redis:") == 0 || uri.compare(0, 7, "rediss:") == 0)
    return open_redis_exchange(uri, create, exchange);
  if (uri.compare(0, 5, "pmix:") == 0) return open_pmix_exchange(uri, create, exchange);
  return Status::of(Code::kUsage, 0,
                    "exchange '%.150s': unknown kind; known: dir:PATH (a directory all processes share), "
                    "redis://HOST[:PORT] (a Redis server), pmix: (a server that the job's launcher has)",
                    uri.c_str());
}

std::string Exchange::shown(const std::string& uri) {
  if (uri.compare(0, 5, "redis") != 0 && uri.compare(0, 7, "pmix://") != 0) return uri;
  RedisPlace place;
  return parse_redis_uri(uri, &place).ok() ? place.shown() : uri.substr(0, uri.find(':')) + "://...";
}

}  // namespace shadowib
