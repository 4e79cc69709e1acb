#include "shadowib/exchange/redis_exchange.h"

#include <mbedtls/sha1.h>

#include <algorithm>
#include <charconv>
#include <span>

#include "shadowib/base/deadline.h"
#include "shadowib/base/lock.h"
#include "shadowib/exchange/redis_pool.h"
#include "shadowib/exchange/redis_script.h"

namespace shadowib {
namespace {

constexpr std::size_t kKeysAtOnce = 16;
constexpr int kSleepMs = 300000;  // how long one XREAD waits at most
constexpr int kLateMs = 3000;     // how much later than asked for a server may answer that has let somebody sleep
// A stream's id is <ms>-<count within it>. 0 means "not looked yet" and 1 a stream without an entry.
constexpr int kCountBits = 22;
constexpr std::uint64_t kNoEntry = 1;

std::uint64_t token_of(std::string_view id) {
  std::uint64_t ms = 0, count = 0;
  const std::size_t dash = std::min(id.find('-'), id.size());
  std::from_chars(id.data(), id.data() + dash, ms);
  if (dash < id.size()) std::from_chars(id.data() + dash + 1, id.data() + id.size(), count);
  const std::uint64_t token = ms << kCountBits | std::min<std::uint64_t>(count, (1u << kCountBits) - 1);
  return token == 0 ? kNoEntry : token;
}

std::string id_of(std::uint64_t token) {
  if (token == kNoEntry) return "0-0";
  return std::to_string(token >> kCountBits) + "-" + std::to_string(token & ((1u << kCountBits) - 1));
}

// "a/b/c" gives "a/b" and "c"; "c" gives "" and "c".
std::string_view parent_of(std::string_view key) {
  const std::size_t slash = key.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : key.substr(0, slash);
}
std::string_view name_in(std::string_view key) {
  const std::size_t slash = key.rfind('/');
  return slash == std::string_view::npos ? key : key.substr(slash + 1);
}

template <std::size_t N>
std::string in_hexadecimal(const unsigned char (&bytes)[N]) {
  std::string text;
  for (const unsigned char byte : bytes) text += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  return text;
}

std::string random_word() {
  unsigned char random[16] = {};
  (void)!::syscall(SYS_getrandom, random, sizeof(random), 0);
  return in_hexadecimal(random);
}

// The server knows the script by this name once a member has sent the whole. It keeps nothing safe.
std::string name_of_script() {
  unsigned char sha1[20] = {};
  const std::string_view script(kRedisScript);
  (void)::mbedtls_sha1_ret(reinterpret_cast<const unsigned char*>(script.data()), script.size(), sha1);
  return in_hexadecimal(sha1);
}

class RedisExchange final : public Exchange {
 public:
  RedisExchange(const RedisPlace& place, const std::string& uri)
      : place_(place), uri_(uri), shown_(place.shown()), prefix_(place.prefix + ":"), pool_(place) {}

  Status begin(bool create);
  Status drop(std::string_view directory);

  const std::string& uri() const override { return uri_; }

 private:
  Status do_publish(std::string_view key, std::string_view value) override { return put("publish", key, value); }
  Status do_publish_all(const std::vector<Value>& values) override;
  Status do_claim(std::string_view key, std::string_view value) override { return put("claim", key, value); }
  Status do_lookup(const std::vector<std::string>& keys, std::vector<std::string>* values,
                   std::vector<bool>* found) override;
  Status do_remove(std::string_view key) override;
  Status do_list(std::string_view prefix, std::vector<std::string>* names) override;
  Status do_barrier(std::string_view name, std::string_view member, int n, int timeout_ms,
                    std::string_view abort_key) override {
    return do_barrier_beside({}, name, member, n, timeout_ms, abort_key, nullptr);
  }
  Status do_entered(std::string_view name, std::vector<std::string>* members) override;
  Status do_watch(std::string_view prefix, std::uint64_t* token, int timeout_ms, int cancel_fd) override {
    return watch_once(prefix, token, timeout_ms, cancel_fd, {}, nullptr, nullptr, {});
  }
  Status do_watch_and_lookup(std::string_view prefix, std::uint64_t* token, int timeout_ms,
                             const std::vector<std::string>& keys, std::vector<std::string>* values,
                             std::vector<bool>* found, const std::vector<Value>& first, int cancel_fd) override;
  Status do_barrier_beside(const std::vector<Value>& first, std::string_view name, std::string_view member, int n,
                           int timeout_ms, std::string_view abort_key, Look* look) override;

  using Lease = RedisLease;

  Status check_memory(Lease& lease);
  std::string redis_key(const char* kind, std::string_view rest) const {
    return prefix_ + kind + ":" + std::string(rest);
  }
  Status gone(const char* what, std::string_view key) const;
  Status check_word(const RedisReply& word, const char* what, std::string_view key) const;
  Status put(const char* operation, std::string_view key, std::string_view value);
  // Runs an operation of the script, after publishing `first` in the same exchange. `what` and `subject`: for the
  // message.
  Status run(std::initializer_list<std::string_view> words, const char* what, std::string_view subject,
             std::unique_ptr<RedisReply>* answer, int patience_ms = RedisConnection::kPatienceMs,
             std::span<const Value> first = {});
  // Requests to publish `first`, and their answers, which are heard before what follows them is waited for.
  // *forgotten: the server does not know the script, and has published none. The lease is given up then, and if this
  // is not ok.
  void append_publish(Lease& lease, std::span<const Value> first);
  Status take_published(Lease& lease, std::span<const Value> first, int patience_ms, bool* forgotten);
  Status watch_once(std::string_view prefix, std::uint64_t* token, int timeout_ms, int cancel_fd,
                    const std::vector<std::string>& keys, std::vector<std::string>* values, std::vector<bool>* found,
                    std::span<const Value> first);
  // What a watch reads once it has waited: `keys`, if there are some, and the id of the last change below `prefix`.
  // The number of answers. take_look(): from answers[answer] on.
  std::size_t append_look(Lease& lease, const std::string& stream, const std::vector<std::string>& keys);
  Status take_look(const RedisAnswers& answers, std::size_t answer, const std::vector<std::string>& keys,
                   std::uint64_t* token, std::vector<std::string>* values, std::vector<bool>* found);
  std::size_t append_lookup(Lease& lease, const std::vector<std::string>& keys, std::size_t first, std::size_t end);
  Status take_values(const RedisAnswers& answers, std::size_t answer, const std::vector<std::string>& keys,
                     std::size_t first, std::size_t end, std::vector<std::string>* values, std::vector<bool>* found);
  Status look_up_some(Lease& lease, const std::vector<std::string>& keys, std::size_t first, std::size_t end,
                      std::vector<std::string>* values, std::vector<bool>* found);
  // What a member asks for at a barrier.
  struct Entry {
    std::string_view name, member, abort_key;
    int n;
    std::string wanted, opened, aborted;  // n, and the streams that tell of the barrier and of the abort key
  };
  void append_wait(Lease& lease, const Entry& entry, int sleep_ms, std::string_view opened_from,
                   std::string_view aborted_from);
  // What a member hears when it has entered and waited in one exchange. kNothing: until sleep_ms had passed.
  enum class Heard : std::uint8_t { kOpen, kNothing, kSomething };
  // *published: so are `first`. *looked: *look, which may be null, has been filled.
  Status enter_and_wait(const Entry& entry, std::span<const Value> first, int sleep_ms, int patience_ms,
                        const std::string& aborted_from, Look* look, Heard* heard, bool* published, bool* looked);
  Status look_behind(Look* look);
  // The last entry of the abort key's stream before which this exchange has found no such key. Its beginning if it
  // has not looked for that key.
  std::string heard_of(std::string_view abort_key);
  // From an answer to "enter".
  void hear(std::string_view abort_key, const RedisReply& answer);
  // Sends what was appended to a leased connection, which is given up if that fails.
  Status ask(Lease& lease, std::size_t count, int patience_ms, RedisAnswers* answers, const char* what,
             std::string_view subject, int cancel_fd = -1, bool* cancelled = nullptr);

  const RedisPlace place_;
  const std::string uri_, shown_, prefix_;
  std::string word_, script_ = name_of_script();
  RedisPool pool_;
  SpinLock heard_lock_;
  std::string heard_key_ SHADOWIB_GUARDED_BY(heard_lock_), heard_id_ SHADOWIB_GUARDED_BY(heard_lock_);
};

Status RedisExchange::gone(const char* what, std::string_view key) const {
  return Status::of(Code::kIo, ENOENT,
                    "exchange %.150s: the server no longer has what was in it (cannot %s %.80s); was it started anew "
                    "without its data, or emptied?",
                    shown_.c_str(), what, std::string(key).c_str());
}

Status RedisExchange::check_word(const RedisReply& word, const char* what, std::string_view key) const {
  if (word.is_error()) return redis_error(shown_, word.text, what, key);
  return word.text == word_ ? Status() : gone(what, key);
}

Status RedisExchange::ask(Lease& lease, std::size_t count, int patience_ms, RedisAnswers* answers, const char* what,
                          std::string_view subject, int cancel_fd, bool* cancelled) {
  Status status = lease->exchange(count, patience_ms, answers, cancel_fd, cancelled);
  if (!status.ok() || (cancelled != nullptr && *cancelled)) {
    lease.drop();
    return status;
  }
  for (const auto& answer : *answers) {
    if (!answer->is_error()) continue;
    if (answer->text.find("GONE") != std::string::npos) return gone(what, subject);
    return redis_error(shown_, answer->text, what, subject);
  }
  return {};
}

// The server was started anew, or told to forget scripts.
bool forgot_script(const RedisAnswers& answers) {
  return std::any_of(answers.begin(), answers.end(), [](const std::unique_ptr<RedisReply>& answer) {
    return answer->is_error() && answer->text.starts_with("NOSCRIPT");
  });
}

Status RedisExchange::run(std::initializer_list<std::string_view> words, const char* what, std::string_view subject,
                          std::unique_ptr<RedisReply>* answer, int patience_ms, std::span<const Value> first) {
  Lease lease(pool_);
  SHADOWIB_TRY(lease.take(patience_ms));
  RedisAnswers answers;
  for (const bool again : {false, true}) {
    bool whole = again;  // the script once more, if the server has forgotten it
    const auto append = [&](std::initializer_list<std::string_view> operation) {
      std::vector<std::string_view> all{whole ? "EVAL" : "EVALSHA",
                                        whole ? std::string_view(kRedisScript) : std::string_view(script_), "0",
                                        place_.prefix, word_};
      all.insert(all.end(), operation);
      lease->append(all);
      whole = false;
    };
    for (const Value& value : first) append({"publish", value.key, value.value});
    append(words);
    Status status = ask(lease, first.size() + 1, patience_ms, &answers, what, subject);
    if (!again && forgot_script(answers)) continue;
    SHADOWIB_TRY(status);
    break;
  }
  *answer = std::move(answers.back());
  return {};
}

void RedisExchange::append_publish(Lease& lease, std::span<const Value> first) {
  for (const Value& value : first)
    lease->append({"EVALSHA", script_, "0", place_.prefix, word_, "publish", value.key, value.value});
}

Status RedisExchange::take_published(Lease& lease, std::span<const Value> first, int patience_ms, bool* forgotten) {
  *forgotten = false;
  if (first.empty()) return {};
  RedisAnswers answers;
  const Status status = ask(lease, first.size(), patience_ms, &answers, "publish", first.front().key);
  if (status.ok()) return {};
  lease.drop();  // other answers may come late
  *forgotten = forgot_script(answers);
  return *forgotten ? Status() : status;
}

// A server that removes keys when it is full would do so silently. One that does not let us ask is believed.
Status RedisExchange::check_memory(Lease& lease) {
  RedisAnswers answers;
  lease->append({"INFO", "memory"});
  SHADOWIB_TRY(lease->exchange(1, RedisConnection::kPatienceMs, &answers));
  const std::string& said = answers[0]->text;
  const bool bounded =
      said.find("\nmaxmemory:") != std::string::npos && said.find("\nmaxmemory:0\r") == std::string::npos;
  if (!bounded || said.find("\nmaxmemory_policy:allkeys") == std::string::npos) return {};
  return Status::of(Code::kRefused, 0,
                    "exchange %.150s: the server forgets keys when its memory is full; set its maxmemory-policy to "
                    "noeviction, or name another server",
                    shown_.c_str());
}

Status RedisExchange::begin(bool create) {
  Lease lease(pool_);
  SHADOWIB_TRY(lease.take(RedisConnection::kPatienceMs));
  const std::string marker = prefix_ + "x";
  RedisAnswers answers;
  lease->append({"GET", marker});
  SHADOWIB_TRY(ask(lease, 1, RedisConnection::kPatienceMs, &answers, "open", place_.prefix));
  if (answers[0]->text.empty() && create) {
    SHADOWIB_TRY(check_memory(lease));
    lease->append({"SET", marker, random_word(), "NX"});  // of several that begin it one
    lease->append({"GET", marker});
    SHADOWIB_TRY(ask(lease, 2, RedisConnection::kPatienceMs, &answers, "make", place_.prefix));
  }
  word_ = answers.back()->text;
  if (word_.empty())
    return Status::of(Code::kNotFound, ENOENT, "%.200s is no exchange; has the job been started?", shown_.c_str());
  return {};
}

Status RedisExchange::put(const char* operation, std::string_view key, std::string_view value) {
  std::unique_ptr<RedisReply> answer;
  SHADOWIB_TRY(run({operation, key, value}, operation, key, &answer));
  if (answer->number == 1) return {};
  return taken(key);
}

Status RedisExchange::do_publish_all(const std::vector<Value>& values) {
  {
    Lease lease(pool_);
    SHADOWIB_TRY(lease.take(RedisConnection::kPatienceMs));
    append_publish(lease, values);
    bool forgotten = false;
    SHADOWIB_TRY(take_published(lease, values, RedisConnection::kPatienceMs, &forgotten));
    if (!forgotten) return {};
  }
  return Exchange::do_publish_all(values);
}

Status RedisExchange::do_remove(std::string_view key) {
  std::unique_ptr<RedisReply> answer;
  return run({"remove", key}, "remove", key, &answer);
}

Status RedisExchange::drop(std::string_view directory) {
  std::unique_ptr<RedisReply> answer;
  return run({"drop", directory}, "remove what is below", directory, &answer);
}

Status RedisExchange::do_list(std::string_view prefix, std::vector<std::string>* names) {
  std::unique_ptr<RedisReply> answer;
  SHADOWIB_TRY(run({"list", prefix}, "list", prefix, &answer));
  for (auto& name : answer->items) names->push_back(std::move(name->text));
  return {};
}

// Some keys at a time: a thousand members that each asked for hundreds of values at once would have the server fill
// the network's buffers, beyond what the kernel allows for all of TCP.
Status RedisExchange::do_lookup(const std::vector<std::string>& keys, std::vector<std::string>* values,
                                std::vector<bool>* found) {
  Lease lease(pool_);
  SHADOWIB_TRY(lease.take(RedisConnection::kPatienceMs));
  for (std::size_t first = 0; first < keys.size(); first += kKeysAtOnce)
    SHADOWIB_TRY(look_up_some(lease, keys, first, std::min(first + kKeysAtOnce, keys.size()), values, found));
  return {};
}

// One HMGET for each run of keys in one directory, and the word last: what was there before it was there. The number
// of answers.
std::size_t RedisExchange::append_lookup(Lease& lease, const std::vector<std::string>& keys, std::size_t first,
                                         std::size_t end) {
  std::size_t asked = 1;
  for (std::size_t i = first; i < end; ++asked) {
    const std::string_view directory = parent_of(keys[i]);
    const std::string hash = redis_key("h", directory);
    std::vector<std::string_view> words{"HMGET", hash};
    for (; i < end && parent_of(keys[i]) == directory; ++i) words.push_back(name_in(keys[i]));
    lease->append(words);
  }
  lease->append({"GET", prefix_ + "x"});
  return asked;
}

Status RedisExchange::take_values(const RedisAnswers& answers, std::size_t answer,
                                  const std::vector<std::string>& keys, std::size_t first, std::size_t end,
                                  std::vector<std::string>* values, std::vector<bool>* found) {
  SHADOWIB_TRY(check_word(*answers.back(), "look up", keys[first]));
  std::size_t i = first;
  for (; answer < answers.size(); ++answer)
    for (const auto& item : answers[answer]->items) {
      if (i == end) break;
      (*found)[i] = item->kind == RedisReply::Kind::kText;
      (*values)[i++] = std::move(item->text);
    }
  return i == end ? Status() : redis_error(shown_, "too few values", "look up", keys[first]);
}

Status RedisExchange::look_up_some(Lease& lease, const std::vector<std::string>& keys, std::size_t first,
                                   std::size_t end, std::vector<std::string>* values, std::vector<bool>* found) {
  const std::size_t asked = append_lookup(lease, keys, first, end);
  RedisAnswers answers;
  SHADOWIB_TRY(ask(lease, asked, RedisConnection::kPatienceMs, &answers, "look up", keys[first]));
  return take_values(answers, 0, keys, first, end, values, found);
}

const RedisReply* item(const RedisReply* reply, std::size_t i) {
  return reply != nullptr && i < reply->items.size() ? reply->items[i].get() : nullptr;
}

// The id of the only entry in an answer to XREVRANGE, [[id, fields]]. Null: no entry.
const std::string* entry_in(const RedisReply& answer) {
  const RedisReply* id = item(item(&answer, 0), 0);
  return id != nullptr ? &id->text : nullptr;
}

// What XREAD says has been added to the stream `name` with its entry: how many are at a barrier. 0: it is not that.
long long count_in(const RedisReply& answer, std::string_view name) {
  for (const auto& stream : answer.items) {
    const RedisReply *which = item(stream.get(), 0), *fields = item(item(item(stream.get(), 1), 0), 1);
    const RedisReply* value = item(fields, 1);
    if (which == nullptr || which->text != name || value == nullptr) continue;
    long long count = 0;
    std::from_chars(value->text.data(), value->text.data() + value->text.size(), count);
    return count;
  }
  return 0;
}

std::string RedisExchange::heard_of(std::string_view abort_key) {
  SpinGuard guard(heard_lock_);
  return heard_key_ == abort_key && !heard_id_.empty() ? heard_id_ : "0-0";
}

void RedisExchange::hear(std::string_view abort_key, const RedisReply& answer) {
  if (answer.items[1]->number != 0) return;
  SpinGuard guard(heard_lock_);
  heard_key_ = abort_key;
  heard_id_ = answer.items[3]->text;
}

void RedisExchange::append_wait(Lease& lease, const Entry& entry, int sleep_ms, std::string_view opened_from,
                                std::string_view aborted_from) {
  const std::string sleep = std::to_string(sleep_ms);
  std::vector<std::string_view> words{"XREAD", "COUNT", "1", "BLOCK", sleep, "STREAMS", entry.opened};
  if (!entry.abort_key.empty()) words.push_back(entry.aborted);
  words.push_back(opened_from);
  if (!entry.abort_key.empty()) words.push_back(aborted_from);
  lease->append(words);
}

// A barrier's stream has no entry before somebody finds all there. That of the abort key has entries: one that is
// newer than the last before which there was no such key ends the wait.
Status RedisExchange::enter_and_wait(const Entry& entry, std::span<const Value> first, int sleep_ms, int patience_ms,
                                     const std::string& aborted_from, Look* look, Heard* heard, bool* published,
                                     bool* looked) {
  *heard = Heard::kSomething;
  *published = *looked = false;
  Lease lease(pool_);
  SHADOWIB_TRY(lease.take(patience_ms));
  append_publish(lease, first);
  lease->append({"EVALSHA", script_, "0", place_.prefix, word_, "come", entry.name, entry.member, entry.wanted});
  append_wait(lease, entry, sleep_ms, "0-0", aborted_from);
  const bool looks = look != nullptr && look->keys.size() <= kKeysAtOnce;
  const std::size_t last = looks ? append_look(lease, redis_key("v", look->prefix), look->keys) : 0;
  bool forgotten = false;
  SHADOWIB_TRY(take_published(lease, first, patience_ms, &forgotten));
  if (forgotten) return {};
  *published = true;
  RedisAnswers answers;
  const Status status = ask(lease, 1, patience_ms, &answers, "enter barrier", entry.name);
  if (!status.ok()) {
    lease.drop();  // the second answer may come late
    return forgot_script(answers) ? Status() : status;
  }
  const bool complete = answers[0]->number >= entry.n;
  SHADOWIB_TRY(ask(lease, 1 + last, sleep_ms + kLateMs, &answers, "wait at barrier", entry.name));
  if (complete || count_in(*answers[0], entry.opened) >= entry.n)
    *heard = Heard::kOpen;
  else if (answers[0]->kind == RedisReply::Kind::kNil)
    *heard = Heard::kNothing;
  if (*heard != Heard::kOpen || !looks) return {};
  *looked = true;
  return take_look(answers, 1, look->keys, &look->token, &look->values, &look->found);
}

Status RedisExchange::look_behind(Look* look) {
  if (look == nullptr) return {};
  return do_watch_and_lookup(look->prefix, &look->token, 0, look->keys, &look->values, &look->found, {}, -1);
}

Status RedisExchange::do_barrier_beside(const std::vector<Value>& first, std::string_view name,
                                        std::string_view member, int n, int timeout_ms, std::string_view abort_key,
                                        Look* look) {
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  const int patience_ms = std::min(std::max(timeout_ms, 0) + kLateMs, RedisConnection::kPatienceMs);
  const Entry entry{
      name, member, abort_key, n, std::to_string(n), redis_key("o", name), redis_key("v", parent_of(abort_key))};
  std::span<const Value> due = first;
  if (timeout_ms > 0) {
    Heard heard{};
    bool published = false, looked = false;
    const int sleep_ms = std::min(timeout_ms, kSleepMs);
    SHADOWIB_TRY(
        enter_and_wait(entry, first, sleep_ms, patience_ms, heard_of(abort_key), look, &heard, &published, &looked));
    if (heard == Heard::kOpen) return looked ? Status() : look_behind(look);
    if (published) due = {};
    if (heard == Heard::kNothing && sleep_ms == timeout_ms) return incomplete(name, n, timeout_ms);
  }
  for (;;) {
    std::unique_ptr<RedisReply> entered;
    SHADOWIB_TRY(
        run({"enter", name, member, entry.wanted, abort_key}, "enter barrier", name, &entered, patience_ms, due));
    due = {};
    if (entered->items.size() != 4) return redis_error(shown_, "an odd answer", "enter barrier", name);
    hear(abort_key, *entered);
    // Who finds everybody entered passes, even if the abort key exists by then: all that still wait decide alike.
    if (entered->items[0]->number >= n) return look_behind(look);
    if (entered->items[1]->number != 0) return given_up(name, abort_key);
    const int sleep_ms = std::min(deadline.left_ms(), kSleepMs);
    if (sleep_ms == 0) return incomplete(name, n, timeout_ms);
    Lease lease(pool_);
    SHADOWIB_TRY(lease.take(patience_ms));
    append_wait(lease, entry, sleep_ms, entered->items[2]->text, entered->items[3]->text);
    RedisAnswers answers;
    SHADOWIB_TRY(ask(lease, 1, sleep_ms + kLateMs, &answers, "wait at barrier", name));
    if (count_in(*answers[0], entry.opened) >= n) return look_behind(look);
  }
}

Status RedisExchange::do_entered(std::string_view name, std::vector<std::string>* members) {
  Lease lease(pool_);
  SHADOWIB_TRY(lease.take(RedisConnection::kPatienceMs));
  const std::string barrier = redis_key("b", name), marker = prefix_ + "x";
  lease->append({"SMEMBERS", barrier});
  lease->append({"GET", marker});
  RedisAnswers answers;
  SHADOWIB_TRY(ask(lease, 2, RedisConnection::kPatienceMs, &answers, "look at barrier", name));
  SHADOWIB_TRY(check_word(*answers[1], "look at barrier", name));
  for (auto& member : answers[0]->items) members->push_back(std::move(member->text));
  return {};
}

// The id may be that of an earlier change than the values have, which wakes once more, but never that of a later one.
std::size_t RedisExchange::append_look(Lease& lease, const std::string& stream,
                                       const std::vector<std::string>& keys) {
  lease->append({"XREVRANGE", stream, "+", "-", "COUNT", "1"});
  return keys.empty() ? 1 : 1 + append_lookup(lease, keys, 0, keys.size());
}

Status RedisExchange::take_look(const RedisAnswers& answers, std::size_t answer, const std::vector<std::string>& keys,
                                std::uint64_t* token, std::vector<std::string>* values, std::vector<bool>* found) {
  if (!keys.empty()) SHADOWIB_TRY(take_values(answers, answer + 1, keys, 0, keys.size(), values, found));
  if (const std::string* id = entry_in(*answers[answer]); id != nullptr)
    *token = token_of(*id);
  else if (*token == 0)
    *token = kNoEntry;
  return {};
}

// Publishes `first`, waits, and then looks up `keys`, if there are some, in one exchange with the server.
Status RedisExchange::watch_once(std::string_view prefix, std::uint64_t* token, int timeout_ms, int cancel_fd,
                                 const std::vector<std::string>& keys, std::vector<std::string>* values,
                                 std::vector<bool>* found, std::span<const Value> first) {
  const std::string subject(prefix), stream = redis_key("v", prefix);
  const Deadline deadline = Deadline::in_ms_or_never(timeout_ms);
  for (;;) {
    const int sleep_ms = std::min(deadline.left_ms(), kSleepMs);
    Lease lease(pool_);
    const int patience_ms = std::min(sleep_ms + kLateMs, RedisConnection::kPatienceMs);
    SHADOWIB_TRY(lease.take(patience_ms));
    append_publish(lease, first);
    const bool sleeps = *token != 0 && sleep_ms != 0;
    // A look at keys has the word behind it. Nothing is asked before the wait that an answer would wake for.
    if (keys.empty()) lease->append({"GET", prefix_ + "x"});
    if (sleeps)
      lease->append({"XREAD", "COUNT", "1", "BLOCK", std::to_string(sleep_ms), "STREAMS", stream, id_of(*token)});
    const std::size_t look = (keys.empty() ? 1 : 0) + (sleeps ? 1 : 0);
    const std::size_t asked = look + append_look(lease, stream, keys);
    bool forgotten = false;
    SHADOWIB_TRY(take_published(lease, first, patience_ms, &forgotten));
    if (forgotten) {
      for (const Value& value : first) SHADOWIB_TRY(do_publish(value.key, value.value));
      first = {};
      continue;
    }
    first = {};
    RedisAnswers answers;
    bool cancelled = false;
    SHADOWIB_TRY(ask(lease, asked, sleep_ms + kLateMs, &answers, "watch", subject, cancel_fd, &cancelled));
    if (cancelled) return keys.empty() ? Status() : do_lookup(keys, values, found);
    if (keys.empty()) SHADOWIB_TRY(check_word(*answers[0], "watch", subject));
    const std::uint64_t before = *token;
    SHADOWIB_TRY(take_look(answers, look, keys, token, values, found));
    if (*token != before) return {};
    if (deadline.has_passed()) return unchanged(prefix, timeout_ms);
  }
}

Status RedisExchange::do_watch_and_lookup(std::string_view prefix, std::uint64_t* token, int timeout_ms,
                                          const std::vector<std::string>& keys, std::vector<std::string>* values,
                                          std::vector<bool>* found, const std::vector<Value>& first, int cancel_fd) {
  if (keys.size() > kKeysAtOnce)
    return Exchange::do_watch_and_lookup(prefix, token, timeout_ms, keys, values, found, first, cancel_fd);
  return watch_once(prefix, token, timeout_ms, cancel_fd, keys, values, found, first);
}

}  // namespace

Status open_redis_exchange(const std::string& uri, bool create, std::unique_ptr<Exchange>* exchange) {
  RedisPlace place;
  SHADOWIB_TRY(parse_redis_uri(uri, &place));
  auto made = std::make_unique<RedisExchange>(place, uri);
  SHADOWIB_TRY(made->begin(create));
  *exchange = std::move(made);
  return {};
}

Status remove_below_in_redis(const std::string& uri, const std::string& prefix) {
  RedisPlace place;
  SHADOWIB_TRY(parse_redis_uri(uri, &place));
  RedisExchange exchange(place, uri);
  Status status = exchange.begin(false);
  if (status.code() == Code::kNotFound) return {};
  SHADOWIB_TRY(status);
  return exchange.drop(prefix);
}

}  // namespace shadowib
