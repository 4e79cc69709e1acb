// Where a restart leaves what the restored process must know. Part of the image, at an address the image records.
#pragma once

#include <cstdint>

#include "hooks/job/job_info.h"

namespace shadowib {

// The library in an image reads the words that a restart command writes into it. To be raised with each change of
// what follows, JobInfo included.
inline constexpr std::uint32_t kMailboxLayout = 1;
static_assert(sizeof(JobInfo) == 3728, "another layout, another number");

struct RestartMailbox {
  JobInfo job;                   // as the restart command passes it
  std::uint64_t restorer_start;  // the restorer's own memory, to be unmapped once no thread is in it
  std::uint64_t restorer_bytes;
};

}  // namespace shadowib

extern "C" {
extern shadowib::RestartMailbox shadowib_restart_mailbox __attribute__((visibility("hidden")));
}
