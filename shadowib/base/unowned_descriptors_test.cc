// A child has none of the descriptors that another thread is about to own or to close.
#include "shadowib/base/unowned_descriptors.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/testing/forked_child.h"

namespace shadowib {
namespace {

std::atomic<bool> g_told_of_forks{false};
std::atomic<bool> g_fork_begins{false};

// Runs before ours, since it is registered later.
void note_forks() {
  if (!g_told_of_forks.exchange(true)) ::pthread_atfork([] { g_fork_begins = true; }, nullptr, nullptr);
  g_fork_begins = false;
}

// Runs after ours, since it is registered before.
std::atomic<bool> g_held{false}, g_let_go{false};
thread_local bool t_is_held_up = false;
__attribute__((constructor(101))) void hold_forks() {
  ::pthread_atfork(
      [] {
        while (t_is_held_up && !g_let_go.load()) {
          g_held = true;
          std::this_thread::yield();
        }
      },
      nullptr, nullptr);
}

TEST(UnownedDescriptors, AForkWaitsUntilTheyAreOwned) {
  note_forks();
  const WaitsWithoutEnd waits;
  std::atomic<int> low{-1}, owned{-1};
  std::thread maker([&] {
    UnownedDescriptors unowned;
    const int fd = ::eventfd(0, EFD_CLOEXEC);
    low = fd;
    while (!g_fork_begins.load()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // in which the fork would be over
    owned = unowned.own(fd);
  });
  while (low.load() < 0) std::this_thread::yield();
  const int seen = child_sees([&] { return (is_open(low) ? 1 : 0) + (is_owned_descriptor(owned) ? 0 : 2); });
  maker.join();
  EXPECT_EQ(seen, 0) << "the child has what it does not know to be ours (1), or came before it was (2)";
  close_owned_descriptor(owned);
}

// By whatever steps they come and go, at none of them a child sees one that is not known to be ours.
TEST(UnownedDescriptors, NoChildHasOneThatIsNotKnown) {
  const int before = unknown_descriptors();
  std::atomic<bool> over{false};
  std::thread maker([&] {
    while (!over.load()) {
      int fd;
      {
        UnownedDescriptors unowned;
        fd = unowned.own(::eventfd(0, EFD_CLOEXEC));
      }
      close_owned_descriptor(fd);
    }
  });
  const int strange = children_with_unknown_descriptors(before);
  over = true;
  maker.join();
  EXPECT_EQ(strange, 0);
}

TEST(UnownedDescriptors, WhoHasThemMayForkItself) {
  UnownedDescriptors unowned, nested;
  std::int64_t least = 1'900'000'000;  // a fork that waits for itself takes two seconds each time
  for (int i = 0; i < 10 && least >= 1'900'000'000; ++i) {
    const std::int64_t began = monotonic_ns();
    EXPECT_EQ(child_sees([] {
                UnownedDescriptors of_the_child;
                return 7;
              }),
              7);
    least = std::min(least, monotonic_ns() - began);
  }
  EXPECT_LT(least, 1'900'000'000) << "it has waited for itself";
}

// A file system hangs, say.
TEST(UnownedDescriptors, AForkDoesNotWaitForEver) {
  std::atomic<bool> has{false}, over{false};
  std::thread holder([&] {
    UnownedDescriptors unowned;
    has = true;
    while (!over.load()) std::this_thread::yield();
  });
  while (!has.load()) std::this_thread::yield();
  EXPECT_EQ(child_sees([] {
              UnownedDescriptors of_the_child;  // nobody is there to wait for
              return 7;
            }),
            7);
  over = true;
  holder.join();
}

// As a checkpoint may stop it: on its way into the fork.
class HeldUp {
 public:
  HeldUp() {
    while (!g_held.load()) std::this_thread::yield();
  }
  ~HeldUp() {
    g_let_go = true;
    forker_.join();
    g_held = g_let_go = false;
  }

 private:
  std::thread forker_{[] {
    t_is_held_up = true;
    EXPECT_EQ(child_sees([] { return 7; }), 7);
  }};
};

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(UnownedDescriptors, NobodyWaitsForLongForAForkThatIsHeldUp) {
  HeldUp fork;
  const std::int64_t began = monotonic_ns();
  for (int i = 0; i < 100; ++i) {  // of which one waits
    UnownedDescriptors unowned;
  }
  EXPECT_LT(monotonic_ns() - began, 100 * kSecond);
}

TEST(UnownedDescriptors, OnlyATestHasThemWaitWithoutEnd) {
  const WaitsWithoutEnd waits;
  std::atomic<bool> has{false};
  std::thread other;
  {
    HeldUp fork;
    other = std::thread([&] {
      UnownedDescriptors unowned;
      has = true;
    });
    std::this_thread::sleep_for(std::chrono::seconds(1));  // others have given up by now
    EXPECT_FALSE(has.load());
  }
  other.join();
}

TEST(UnownedDescriptors, NorWhereOthersForkMeanwhile) {
  HeldUp fork;
  const std::int64_t began = monotonic_ns();
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over.load() && monotonic_ns() - began < 100 * kSecond) child_sees([] { return 0; });
  });
  for (int i = 0; i < 5; ++i) {
    UnownedDescriptors unowned;
  }
  EXPECT_LT(monotonic_ns() - began, 80 * kSecond);
  over = true;
  other.join();
}

}  // namespace
}  // namespace shadowib
