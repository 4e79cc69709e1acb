// Copying into a program's memory so that its last bytes are seen last.
//
// Programs poll the end of what an RDMA write brings and then read the rest. Adapters of today write a message's
// bytes in ascending order, and programs rely on it though no standard promises it; libc's memcpy does not (glibc
// stores the first bytes of a medium-sized block last).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>

namespace shadowib::ib2tcp {

// Nothing written before is seen after what is written next.
inline void order_stores() {
#if defined(__SANITIZE_THREAD__)  // which has no fences; stores stay in order on x86-64 once the compiler leaves them
                                  // so
  std::atomic_signal_fence(std::memory_order_release);
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

inline void copy_in_order(void* to, const void* from, std::size_t bytes) {
  constexpr std::size_t kTail = 8;  // what a program polls: at most a word
  std::size_t tail = bytes < kTail ? bytes : kTail;
  std::memcpy(to, from, bytes - tail);
  order_stores();
  std::memcpy(static_cast<char*>(to) + bytes - tail, static_cast<const char*>(from) + bytes - tail, tail);
}

}  // namespace shadowib::ib2tcp
