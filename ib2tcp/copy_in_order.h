// Copying into a program's memory as an adapter does: bytes in ascending order, each stored once.
//
// Programs poll the end of what an RDMA write brings, then read the rest, and write into the same memory: adapters of
// today write a message's bytes in ascending order, and no byte twice, and programs rely on it though no standard
// promises it. libc's memcpy keeps neither: glibc stores the first bytes of a medium-sized block last, and where two
// of its stores overlap (all of them for 8 bytes) the second one takes away what the program has written since it saw
// the first.
#pragma once

#include <emmintrin.h>

#include <cstddef>
#include <cstdint>

// No access of these functions is told to ThreadSanitizer, which sees an adapter's neither (as_adapter.h).
#define SHADOWIB_UNSEEN __attribute__((no_sanitize("thread")))

namespace shadowib::ib2tcp {

namespace copying {

// One store each, which the compiler leaves where it stands: no loop of them becomes a call of memcpy.
SHADOWIB_UNSEEN inline void store(volatile std::uint8_t* to, const char* from) {
  *to = static_cast<std::uint8_t>(*from);
}
SHADOWIB_UNSEEN inline void store(std::uint64_t* to, const char* from) {
  _mm_storeu_si64(to, _mm_loadu_si64(from));
  asm volatile("" ::: "memory");
}
SHADOWIB_UNSEEN inline void store(__m128i* to, const char* from) {
  _mm_storeu_si128(to, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  asm volatile("" ::: "memory");
}

template <typename T>
SHADOWIB_UNSEEN inline void move(char*& to, const char*& from, std::size_t& bytes) {
  store(reinterpret_cast<T*>(to), from);
  to += sizeof(T);
  from += sizeof(T);
  bytes -= sizeof(T);
}

}  // namespace copying

// Nobody sees stores out of their order on x86-64. Source and destination do not overlap.
SHADOWIB_UNSEEN inline void copy_in_order(void* destination, const void* source, std::size_t bytes) {
  using copying::move;
  using Byte = std::uint8_t;
  using Word = std::uint64_t;
  using Block = __m128i;
  char* to = static_cast<char*>(destination);
  const char* from = static_cast<const char*>(source);
  // A word stays for the end: half of a store that crosses a cache line may be seen before its other half.
  while (bytes >= 4 * sizeof(Block) + sizeof(Word)) {
    move<Block>(to, from, bytes);
    move<Block>(to, from, bytes);
    move<Block>(to, from, bytes);
    move<Block>(to, from, bytes);
  }
  while (bytes >= sizeof(Block) + sizeof(Word)) move<Block>(to, from, bytes);
  while (bytes >= 2 * sizeof(Word)) move<Word>(to, from, bytes);
  while (bytes > sizeof(Word)) move<Byte>(to, from, bytes);
  if (bytes == sizeof(Word)) move<Word>(to, from, bytes);
  while (bytes > 0) move<Byte>(to, from, bytes);
}

}  // namespace shadowib::ib2tcp
