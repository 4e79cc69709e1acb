#include "hooks/agent/round_saver.h"

#include <inttypes.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "hooks/agent/agent_state.h"
#include "hooks/job/phase.h"
#include "hooks/raw/room.h"
#include "hooks/raw/tasks.h"
#include "shadowib/base/mappings.h"
#include "shadowib/base/this_host.h"

namespace shadowib {
namespace {

constexpr int kSaverLookMs = 100;  // at whether the process ends, where nothing wakes the agent

constexpr std::uint64_t kSmallPage = 4096;
// Smaller ones cost less by the kernel than by calls for each.
constexpr std::uint64_t kLeastCopied = 64 << 10;
constexpr std::size_t kMostCopied = 1024;  // each may split two mappings for the moment
constexpr std::uint64_t kRewrittenTimes =
    2;  // of what a program wrote beside its last saver, it may write beside the next

bool by_start(const PinnedRange& a, const PinnedRange& b) { return a.start < b.start; }

// Whole pages, in order and apart.
std::vector<PinnedRange> merge(std::vector<PinnedRange> ranges) {
  for (PinnedRange& range : ranges)
    range = {range.start & ~(kSmallPage - 1), (range.end + kSmallPage - 1) & ~(kSmallPage - 1)};
  std::sort(ranges.begin(), ranges.end(), by_start);
  std::vector<PinnedRange> merged;
  for (const PinnedRange& range : ranges)
    if (!merged.empty() && range.start <= merged.back().end)
      merged.back().end = std::max(merged.back().end, range.end);
    else
      merged.push_back(range);
  return merged;
}

// What lies in private memory without a file.
std::vector<PinnedRange> copied_parts(const std::vector<PinnedRange>& ranges) {
  std::vector<PinnedRange> parts;
  std::size_t next = 0;
  for_each_mapping([&](const Mapping& m) {
    while (next < ranges.size() && ranges[next].end <= m.start) ++next;
    if (!m.readable || m.inode != 0 || m.name[0] == '/') return true;
    for (std::size_t i = next; i < ranges.size() && ranges[i].start < m.end; ++i)
      parts.push_back({std::max(ranges[i].start, m.start), std::min(ranges[i].end, m.end)});
    return true;
  });
  return merge(std::move(parts));
}

}  // namespace

std::vector<PinnedRange> worth_copying(std::vector<PinnedRange> ranges) {
  std::vector<PinnedRange> worth = copied_parts(merge(std::move(ranges)));
  std::erase_if(worth, [](const PinnedRange& range) { return range.end - range.start < kLeastCopied; });
  if (worth.size() <= kMostCopied) return worth;
  std::nth_element(worth.begin(), worth.begin() + kMostCopied, worth.end(),
                   [](const PinnedRange& a, const PinnedRange& b) { return a.end - a.start > b.end - b.start; });
  worth.resize(kMostCopied);
  std::sort(worth.begin(), worth.end(), by_start);
  return worth;
}

void RoundSaver::prepare_copies() {
  if (g_agent.participant == nullptr || !judge_saver().ok()) return;
  std::vector<PinnedRange> ranges;
  g_agent.participant->list_pinned(&ranges);
  ranges = worth_copying(std::move(ranges));
  std::uint64_t bytes = 0;
  for (const PinnedRange& range : ranges) bytes += range.end - range.start;
  if (bytes == 0) return;
  // The kernel's copies would take as much, inside clone. What it cannot give there it refuses, and here it may end
  // the program. Others make copies, too, and all wait for the slowest.
  const std::uint64_t free = free_memory();
  struct Left {
    RoundMessages* messages;
    int enough_ms;
  } left{&messages_, messages_.left_ms() / 2};
  const auto goes_on = [](void* argument) {
    const auto* limit = static_cast<const Left*>(argument);
    return free_memory() > kSpareMemory && limit->messages->left_ms() > limit->enough_ms && !g_agent.quit.load();
  };
  if (free > bytes + bytes / 8 + kSpareMemory &&
      copies_.prepare(ranges.data(), static_cast<std::uint32_t>(ranges.size()), goes_on, &left))
    return;
  log_line(LogLevel::kDebug,
           "the kernel copies %" PRIu64 " MiB of registered memory: %" PRIu64
           " MiB are free; copies need an eighth more, half of the time-out, and no RLIMIT_AS or RLIMIT_DATA",
           bytes >> 20, free >> 20);
}

// The program's private memory, if all of it may change. Copies are there by now, and what they are of is not shared
// with a saver. A saver before has shown how much does change: a page that changes is a fault.
Fields RoundSaver::needs() {
  Fields fields{{"forked", "1"}};
  if (!request_.weighs) return fields;
  const std::uint64_t most = private_memory(), apart = std::min(most, 2 * copies_.room());
  need_ = std::min(most - apart, g_agent.rewritten);
  std::string group;
  free_ = free_memory(&group);
  fields["host"] = this_host();
  fields["group"] = group;
  fields["needs"] = std::to_string(need_);
  fields["free"] = std::to_string(free_);
  fields["bytes"] = std::to_string(most - apart / 2);
  return fields;
}

std::uint64_t RoundSaver::faults() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return static_cast<std::uint64_t>(used.ru_minflt);
}

Status RoundSaver::prepare(Saver** saver) {
  SHADOWIB_TRY(messages_.barrier("65.all"));
  SHADOWIB_TRY(fault_point(Phase::kClone));
  refusal_ = judge_saver();
  if (refusal_.ok() && request_.stands)
    refusal_ = Status::of(Code::kRefused, ENOMEM,
                          "this host has too little memory for what its members may write meanwhile: %" PRIu64
                          " MiB are free, and this one may write %" PRIu64 " MiB",
                          free_ >> 20, need_ >> 20);
  if (refusal_.ok()) refusal_ = saver_.prepare();
  if (refusal_.ok()) faults_ = faults();  // never under a filter, which may not know the call
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
    if ((ends[0].revents & POLLIN) != 0) {
      const Status status = saver_.result(result);
      g_agent.rewritten =
          status.error() == ENOMEM ? AgentState::kAll : kRewrittenTimes * kSmallPage * (faults() - faults_);
      return status;
    }
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
