#include "hooks/agent/round_saver.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "hooks/agent/agent_state.h"
#include "hooks/job/phase.h"
#include "hooks/raw/tasks.h"

namespace shadowib {
namespace {

constexpr int kSaverLookMs = 100;  // at whether the process ends, where nothing wakes the agent

}  // namespace

Status RoundSaver::prepare(Saver** saver) {
  SHADOWIB_TRY(messages_.barrier("65.all"));
  SHADOWIB_TRY(fault_point(Phase::kClone));
  refusal_ = judge_saver();
  if (refusal_.ok()) refusal_ = saver_.prepare();
  *saver = refusal_.ok() ? &saver_ : nullptr;
  return {};
}

// A member that went on earlier could send a message into an image that is still to be taken, and its own image would
// not have sent it.
Status RoundSaver::meet() { return messages_.barrier(Phase::kSnapshot); }

Status RoundSaver::await(SaveResult* result) {
  if (!saver_.runs()) return {};
  for (bool others_cancel = false;;) {
    pollfd ends[] = {{saver_.descriptor(), POLLIN, 0}, {others_cancel ? -1 : g_agent.cancel.load(), POLLIN, 0}};
    ::syscall(SYS_poll, ends, 2,
              std::min(messages_.slice_ms(), others_cancel ? kSaverLookMs : RoundMessages::kSeldomMs));
    others_cancel = others_cancel || (ends[1].revents & POLLIN) != 0;  // a signal asks for the next checkpoint
    if ((ends[0].revents & POLLIN) != 0) return saver_.result(result);
    if (g_agent.quit.load())
      return Status::of(Code::kAborted, 0, "pid %d ends while its image is written", raw_getpid());
    SHADOWIB_TRY(messages_.check_others());
  }
}

void RoundSaver::describe(Fields* fields) const {
  (*fields)["save"] = saver_.runs() ? "forked" : "stopped";
  if (!saver_.runs()) (*fields)["why_stopped"] = refusal_.ok() ? saver_.refusal().text() : refusal_.text();
}

void describe_packs(const SaveResult& result, Fields* fields) {
  std::string packs;
  for (std::uint32_t i = 0; i < result.pack_count; ++i)
    packs += (i == 0 ? "" : " ") + to_hex(result.packs[i].set_id) + "=" + std::to_string(result.packs[i].bytes);
  (*fields)["incremental"] = "1";
  (*fields)["packs"] = packs;
  (*fields)["borrowed"] = std::to_string(result.borrowed_bytes);
  (*fields)["why_whole"] = result.why_whole;
}

}  // namespace shadowib
