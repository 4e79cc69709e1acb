// Where a restart leaves what the restored process must know. Part of the image, at an address the image records.
#pragma once

#include <cstdint>

#include "hooks/job/job_info.h"

namespace shadowib {

// The library in an image reads the words that a restart command writes into it. To be raised with each change of
// what follows, JobInfo included. An older layout has a shorter JobInfo.
inline constexpr std::uint32_t kMailboxLayout = 4;
static_assert(sizeof(JobInfo) == 3864, "another layout, another number");

// The bytes of JobInfo in a layout; 0: unknown.
constexpr std::uint64_t job_info_bytes(std::uint32_t layout) {
  return layout == kMailboxLayout || layout == 3 ? sizeof(JobInfo) : layout == 2 ? 3856 : layout == 1 ? 3728 : 0;
}

// The library in an image waits for files to be cut (JobInfo::awaits_cut).
constexpr bool waits_for_cut(std::uint32_t layout) { return layout >= 3; }

// The library in an image can come back in the epoch that it was saved in (JobInfo::recovery).
constexpr bool knows_recoveries(std::uint32_t layout) { return layout >= 4; }

struct RestartMailbox {
  JobInfo job;                   // as the restart command passes it
  std::uint64_t restorer_start;  // the restorer's own memory, to be unmapped once no thread is in it
  std::uint64_t restorer_bytes;
};
static_assert(sizeof(RestartMailbox) == sizeof(JobInfo) + 2 * sizeof(std::uint64_t));

}  // namespace shadowib

extern "C" {
extern shadowib::RestartMailbox shadowib_restart_mailbox __attribute__((visibility("hidden")));
}
