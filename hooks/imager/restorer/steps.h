// Steps of a restart, shared between the files of the restorer. Each file is flat code; see restorer.cc.
#pragma once

#include "hooks/imager/restorer/restorer_args.h"
#include "hooks/raw/x86_64/raw_syscall.h"

namespace shadowib::restorer {

// Reports the first failure and ends the process.
[[noreturn]] inline void fail(RestorerArgs* args, RestoreStep step, long error, std::uint64_t object) {
  std::uint32_t expected = 0;
  if (__atomic_compare_exchange_n(&args->failed, &expected, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    args->report.step = step;
    args->report.error = static_cast<std::int32_t>(-error);
    args->report.object = object;
    raw::invoke(__NR_write, args->status_fd, &args->report, sizeof(args->report));
  }
  for (;;) raw::call(__NR_exit_group, 127);
}

inline void check(RestorerArgs* args, RestoreStep step, long result, std::uint64_t object) {
  if (raw::failed(result)) fail(args, step, result, object);
}

// Replaces the address space: makes the mappings, reads and checks their content, and restores their states.
void restore_memory(RestorerArgs* args);
// Once all mappings are there: reads each record of pages to its place and checks it, and installs guard regions.
void read_content(RestorerArgs* args);

// Takes the recorded credentials for all threads, if that is possible before the others are made.
void take_credentials(RestorerArgs* args);
// Takes them for the calling thread.
void restore_credentials(RestorerArgs* args);
void restore_limits(const ProcessRecord& process);

}  // namespace shadowib::restorer
