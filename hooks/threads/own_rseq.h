// Restartable sequences that a thread has registered by itself, with syscall(2): tcmalloc and librseq do.
//
// The kernel does not tell where a registered area lies, so the guard of syscall(2) notes it.
#pragma once

#include <cstdint>

namespace shadowib {

struct OwnRseq {
  std::uint64_t area = 0;  // 0: none
  std::uint32_t bytes = 0, signature = 0;
};
extern constinit thread_local OwnRseq t_own_rseq __attribute__((tls_model("initial-exec")));

// After a call of rseq(2) that succeeded. Async-signal-safe.
void note_own_rseq(std::uint64_t area, std::uint32_t bytes, int flags, std::uint32_t signature);

}  // namespace shadowib
