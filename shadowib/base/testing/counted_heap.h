// Counts calls of libc's heap while they are forbidden: for tests of code that has to leave a program's heap alone.
// To be included by one file of a program, whose malloc it is then.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

namespace shadowib::test {

inline std::atomic<bool> g_heap_forbidden{false};
inline std::atomic<int> g_heap_calls{0};
inline void note_heap_call() {
  if (g_heap_forbidden.load()) g_heap_calls.fetch_add(1);
}

// So that a test cannot pass because nothing is counted.
inline void expect_heap_calls_counted() {
  void* volatile counted = nullptr;
  g_heap_calls = 0;
  g_heap_forbidden = true;
  counted = std::malloc(10);
  g_heap_forbidden = false;
  std::free(counted);
  ASSERT_EQ(g_heap_calls.exchange(0), 1) << "the count does not work";
}

}  // namespace shadowib::test

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
__attribute__((visibility("default"))) void* malloc(std::size_t n) {
  shadowib::test::note_heap_call();
  return __libc_malloc(n);
}
__attribute__((visibility("default"))) void* calloc(std::size_t n, std::size_t size) {
  shadowib::test::note_heap_call();
  return __libc_calloc(n, size);
}
__attribute__((visibility("default"))) void* realloc(void* p, std::size_t n) {
  shadowib::test::note_heap_call();
  return __libc_realloc(p, n);
}
}
