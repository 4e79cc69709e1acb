#include "shadowib/exchange/pmix_exchange.h"

#include <algorithm>
#include <cerrno>

#include "shadowib/base/deadline.h"
#include "shadowib/base/lock.h"
#include "shadowib/exchange/redis_pool.h"

namespace shadowib {
namespace {

constexpr int kSleepMs = 300000;  // how long the server is let wait at once
constexpr int kLateMs = 3000;     // how much later than asked for it may answer then
using Kind = RedisReply::Kind;

class PmixExchange final : public Exchange {
 public:
  PmixExchange(const RedisPlace& place, const std::string& uri)
      : uri_(uri), shown_(place.shown()), prefix_(place.prefix), pool_(place) {}

  Status begin(bool create);
  Status drop(std::string_view directory);

  const std::string& uri() const override { return uri_; }

 private:
  Status do_publish(std::string_view key, std::string_view value) override { return put("PUBLISH", key, value); }
  Status do_claim(std::string_view key, std::string_view value) override { return put("CLAIM", key, value); }
  Status do_lookup(const std::vector<std::string>& keys, std::vector<std::string>* values,
                   std::vector<bool>* found) override;
  Status do_remove(std::string_view key) override;
  Status do_list(std::string_view prefix, std::vector<std::string>* names) override;
  Status do_barrier(std::string_view name, std::string_view member, int n, int timeout_ms,
                    std::string_view abort_key) override;
  Status do_entered(std::string_view name, std::vector<std::string>* members) override;
  Status do_watch(std::string_view prefix, std::uint64_t* token, int timeout_ms, int cancel_fd) override;

  Status put(const char* operation, std::string_view key, std::string_view value);
  // Sends words and takes their answer, which is of `kind`. `subject`: for the message.
  Status ask(const std::vector<std::string_view>& words, std::string_view subject, Kind kind,
             std::unique_ptr<RedisReply>* answer, int patience_ms = RedisConnection::kPatienceMs, int cancel_fd = -1,
             bool* cancelled = nullptr);

  const std::string uri_, shown_, prefix_;
  RedisPool pool_;
};

Status PmixExchange::ask(const std::vector<std::string_view>& words, std::string_view subject, Kind kind,
                         std::unique_ptr<RedisReply>* answer, int patience_ms, int cancel_fd, bool* cancelled) {
  RedisLease lease(pool_);
  SHADOWIB_TRY(lease.take(std::min(patience_ms, RedisConnection::kPatienceMs)));
  lease->append(words);
  RedisAnswers answers;
  const Status status = lease->exchange(1, patience_ms, &answers, cancel_fd, cancelled);
  if (!status.ok() || (cancelled != nullptr && *cancelled)) {
    lease.drop();
    return status;
  }
  if (answers[0]->kind != kind) {
    const std::string said = answers[0]->is_error() ? answers[0]->text : "something else than was asked for";
    return redis_error(shown_, said, std::string(words[0]).c_str(), subject);
  }
  *answer = std::move(answers[0]);
  return {};
}

Status PmixExchange::begin(bool create) {
  std::unique_ptr<RedisReply> answer;
  SHADOWIB_TRY(ask({"OPEN", prefix_, create ? "1" : "0"}, prefix_, Kind::kNumber, &answer));
  if (answer->number == 1) return {};
  return Status::of(Code::kNotFound, ENOENT, "%.200s is no exchange; has the job been started?", shown_.c_str());
}

Status PmixExchange::put(const char* operation, std::string_view key, std::string_view value) {
  std::unique_ptr<RedisReply> answer;
  SHADOWIB_TRY(ask({operation, prefix_, key, value}, key, Kind::kNumber, &answer));
  if (answer->number == 1) return {};
  return taken(key);
}

Status PmixExchange::do_remove(std::string_view key) {
  std::unique_ptr<RedisReply> answer;
  return ask({"REMOVE", prefix_, key}, key, Kind::kNumber, &answer);
}

Status PmixExchange::drop(std::string_view directory) {
  std::unique_ptr<RedisReply> answer;
  return ask({"DROP", prefix_, directory}, directory, Kind::kNumber, &answer);
}

Status PmixExchange::do_lookup(const std::vector<std::string>& keys, std::vector<std::string>* values,
                               std::vector<bool>* found) {
  std::vector<std::string_view> words{"LOOKUP", prefix_};
  words.insert(words.end(), keys.begin(), keys.end());
  std::unique_ptr<RedisReply> answer;
  SHADOWIB_TRY(ask(words, keys[0], Kind::kList, &answer));
  if (answer->items.size() != keys.size()) return redis_error(shown_, "too few values", "look up", keys[0]);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    (*found)[i] = answer->items[i]->kind == Kind::kText;
    (*values)[i] = std::move(answer->items[i]->text);
  }
  return {};
}

Status PmixExchange::do_list(std::string_view prefix, std::vector<std::string>* names) {
  std::unique_ptr<RedisReply> answer;
  SHADOWIB_TRY(ask({"LIST", prefix_, prefix}, prefix, Kind::kList, &answer));
  for (auto& name : answer->items) names->push_back(std::move(name->text));
  return {};
}

Status PmixExchange::do_barrier(std::string_view name, std::string_view member, int n, int timeout_ms,
                                std::string_view abort_key) {
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  for (;;) {
    const int left_ms = deadline.left_ms(), sleep_ms = std::min(left_ms, kSleepMs);
    const std::string count = std::to_string(n), sleep = std::to_string(sleep_ms);
    std::unique_ptr<RedisReply> answer;
    SHADOWIB_TRY(ask({"BARRIER", prefix_, name, member, count, sleep, abort_key}, name, Kind::kNumber, &answer,
                     sleep_ms + kLateMs));
    if (answer->number == 1) return {};
    if (answer->number == 0) return given_up(name, abort_key);
    if (deadline.has_passed() || sleep_ms == left_ms) return incomplete(name, n, timeout_ms);
  }
}

Status PmixExchange::do_entered(std::string_view name, std::vector<std::string>* members) {
  std::unique_ptr<RedisReply> answer;
  SHADOWIB_TRY(ask({"ENTERED", prefix_, name}, name, Kind::kList, &answer));
  for (auto& member : answer->items) members->push_back(std::move(member->text));
  return {};
}

Status PmixExchange::do_watch(std::string_view prefix, std::uint64_t* token, int timeout_ms, int cancel_fd) {
  const Deadline deadline = Deadline::in_ms_or_never(timeout_ms);
  for (;;) {
    const int left_ms = deadline.left_ms(), sleep_ms = std::min(left_ms, kSleepMs);
    const std::string seen = std::to_string(*token), sleep = std::to_string(sleep_ms);
    std::unique_ptr<RedisReply> answer;
    bool cancelled = false;
    SHADOWIB_TRY(ask({"WATCH", prefix_, prefix, seen, sleep}, prefix, Kind::kNumber, &answer, sleep_ms + kLateMs,
                     cancel_fd, &cancelled));
    if (cancelled) return {};
    if (answer->number >= 0) {
      *token = static_cast<std::uint64_t>(answer->number);
      return {};
    }
    if (sleep_ms == left_ms) return unchanged(prefix, timeout_ms);
  }
}

Status parse(const std::string& uri, RedisPlace* place) {
  if (uri.compare(0, 7, "pmix://") == 0) return parse_redis_uri(uri, place);
  return Status::of(
      Code::kUsage, EINVAL,
      "exchange %.150s: a process cannot find it by itself; start it below the launcher by shadowib run "
      "--exchange pmix:, or shadowib restart",
      uri.c_str());
}

}  // namespace

Status open_pmix_exchange(const std::string& uri, bool create, std::unique_ptr<Exchange>* exchange) {
  RedisPlace place;
  SHADOWIB_TRY(parse(uri, &place));
  auto made = std::make_unique<PmixExchange>(place, uri);
  SHADOWIB_TRY(made->begin(create));
  *exchange = std::move(made);
  return {};
}

Status remove_below_in_pmix(const std::string& uri, const std::string& prefix) {
  RedisPlace place;
  SHADOWIB_TRY(parse(uri, &place));
  PmixExchange exchange(place, uri);
  Status status = exchange.begin(false);
  if (status.code() == Code::kNotFound || status.error() == ECONNREFUSED) return {};
  SHADOWIB_TRY(status);
  return exchange.drop(prefix);
}

}  // namespace shadowib
