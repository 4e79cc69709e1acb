#include "shadowib/base/malloc_arenas.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "shadowib/base/testing/held_arena.h"

namespace shadowib {
namespace {

// Closing a library frees memory of the thread that loaded it: of the main thread here, whoever has loaded another
// since.
TEST(MallocArenas, WaitsForWhoHoldsOneThatWasNoted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's malloc has no arenas";
#endif
  unsigned* const lock = lock_of_main_arena();
  std::atomic<int> taken{0};
  std::atomic<bool> go{false};
  note_malloc_arena();
  std::thread rehearsal([&] {  // with an arena of its own
    note_malloc_arena();
    for (int i = 0; i < 2; ++i) take_locks_of_noted_arenas();
    taken = 1;
    while (!go) std::this_thread::yield();
    for (int i = 0; i < 2; ++i) take_locks_of_noted_arenas();
    taken = 2;
  });
  while (taken != 1) std::this_thread::yield();
  hold_arena(lock);
  go = true;
  while (__atomic_load_n(lock, __ATOMIC_ACQUIRE) != 2) std::this_thread::yield();  // somebody waits for it
  EXPECT_EQ(taken, 1);
  release_arena(lock);
  rehearsal.join();
  EXPECT_EQ(taken, 2);
}

TEST(MallocArenas, LetsABlockGoWhenItsThreadIsNotedAgain) {
  note_malloc_arena();
  note_malloc_arena();
  take_locks_of_noted_arenas();
}

TEST(MallocArenas, ForgetsTheFirstOfVeryManyThreads) {
  for (int i = 0; i < 100; ++i) std::thread(note_malloc_arena).join();
  take_locks_of_noted_arenas();
}

}  // namespace
}  // namespace shadowib
