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

inline void copy_in_order(void* to, const void* from, std::size_t bytes) {
  constexpr std::size_t kTail = 8;  // what a program polls: at most a word
  std::size_t tail = bytes < kTail ? bytes : kTail;
  std::memcpy(to, from, bytes - tail);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(static_cast<char*>(to) + bytes - tail, static_cast<const char*>(from) + bytes - tail, tail);
}

}  // namespace shadowib::ib2tcp
