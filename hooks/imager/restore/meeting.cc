#include "hooks/imager/restore/meeting.h"

#include <sys/wait.h>

#include <algorithm>

#include "shadowib/base/deadline.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr int kPatienceMs = 120'000, kStepMs = 100;

}  // namespace

Status ExchangeMeeting::open() {
  return exchange_ != nullptr ? Status() : Exchange::open(job_.exchange, false, &exchange_);
}

Status ExchangeMeeting::publish(const std::string& name, const std::string& value) {
  SHADOWIB_TRY(open());
  return exchange_->publish(key("meet/" + name), value);
}

Status ExchangeMeeting::await(const std::string& name, std::string* value) {
  SHADOWIB_TRY(open());
  const Deadline deadline = Deadline::in_ms(kPatienceMs);
  std::uint64_t token = 0;
  for (;;) {
    bool found = false, aborted = false;
    std::string why;
    SHADOWIB_TRY(exchange_->get(key("meet/" + name), value, &found));
    if (found) return {};
    SHADOWIB_TRY(exchange_->get(key("abort"), &why, &aborted));
    if (aborted) return Status::of(Code::kAborted, 0, "another part of the restart gave up: %.300s", why.c_str());
    if (deadline.has_passed())
      return Status(Code::kTimeout, 0, "another part of the restart did not tell where to connect to its members");
    const Status status = exchange_->watch(key("meet"), &token, kStepMs, -1);
    if (!status.ok() && status.code() != Code::kTimeout) return status;
  }
}

void ExchangeMeeting::abort(const Status& why) {
  if (job_.epoch[0] != '\0' && open().ok()) (void)exchange_->claim(key("abort"), why.text()).ok();
}

bool ExchangeMeeting::end_if_not_done(std::uint32_t member, const std::string& how) {
  if (job_.epoch[0] == '\0' || !open().ok()) return false;
  std::string text;
  bool done = false;
  if (!exchange_->get(key("done/" + std::to_string(member)), &text, &done).ok()) return false;
  if (!done)
    abort(Status::of(Code::kAborted, 0, "member %u ended%s before the restart was over", member, how.c_str()));
  return true;
}

void ExchangeMeeting::member_ended(std::uint32_t member, int wait_status) {
  const bool killed = WIFSIGNALED(wait_status);
  const std::string how = (killed ? "signal " : "exit status ") +
                          std::to_string(killed ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status));
  if (!end_if_not_done(member, " (" + how + ")")) return;
  // Also then: somebody may have come to the end of the restart already, and looks for its failure no more.
  if (wait_status != 0)
    (void)exchange_->publish(death_key(job_.epoch), encode_fields({{"member", std::to_string(member)}, {"how", how}}))
        .ok();
}

void ExchangeMeeting::member_left(std::uint32_t member) { end_if_not_done(member, ""); }

}  // namespace shadowib
