// The copy into a program's memory, watched instruction by instruction: the processor's trap flag stops it after
// each, and a byte that has arrived is at once written over, as a program may do that polls for it.
#include "ib2tcp/copy_in_order.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>

namespace shadowib::ib2tcp {
namespace {

constexpr std::size_t kMost = 4200;
constexpr unsigned char kOld = 1, kNew = 2, kOwn = 3;  // before, as copied, and as the program writes it then

struct Watch {
  unsigned char destination[kMost + 64];
  unsigned char source[kMost + 64];
  unsigned char* at;
  std::size_t bytes;
  std::size_t arrived;  // the bytes before have all been seen
  bool in_order;
};
Watch g_watch;

void look(int, siginfo_t*, void*) {
  Watch& w = g_watch;
  std::size_t next = w.arrived;
  while (next < w.bytes && w.at[next] == kNew) w.at[next++] = kOwn;
  w.arrived = next;
  for (; next < w.bytes; ++next) {
    if (w.at[next] == kOld) continue;
    w.at[next] = kOwn;
    w.in_order = false;
  }
}

// The instructions between the two are single-stepped. What lies in the red zone of the caller stays.
inline void trap_on() {
  asm volatile("lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
                   : "memory", "cc");
}
inline void trap_off() {
  asm volatile("lea -128(%%rsp), %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
                   : "memory", "cc");
}

void watch(std::size_t offset, std::size_t bytes) {
  Watch& w = g_watch;
  std::memset(w.destination, kOld, sizeof(w.destination));
  std::memset(w.source, kNew, sizeof(w.source));
  w.at = w.destination + offset;
  w.bytes = bytes;
  w.arrived = 0;
  w.in_order = true;
  trap_on();
  copy_in_order(w.at, w.source + 3, bytes);
  trap_off();
}

class CopyTest : public testing::Test {
 protected:
  void SetUp() override {
    struct sigaction action {};
    action.sa_sigaction = look;
    action.sa_flags = SA_SIGINFO;
    ASSERT_EQ(sigaction(SIGTRAP, &action, &before_), 0);
  }
  void TearDown() override { sigaction(SIGTRAP, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

TEST_F(CopyTest, EachByteIsStoredOnceAndInOrder) {
  for (std::size_t offset : {0, 1, 8, 13}) {
    for (std::size_t bytes : {0,  1,  2,  3,  4,  7,  8,  9,  15,  16,  17,  23,  24,  25,  31,  32, 33,
                              47, 48, 63, 64, 65, 71, 72, 73, 127, 128, 129, 255, 256, 257, 511, 512}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes at offset " << offset);
      watch(offset, bytes);
      EXPECT_EQ(g_watch.arrived, bytes);
      EXPECT_TRUE(g_watch.in_order) << "a byte arrived before one below it";
      for (std::size_t i = 0; i < bytes; ++i)
        ASSERT_EQ(g_watch.at[i], kOwn) << "byte " << i << " has been stored twice";
      if (offset > 0) {
        EXPECT_EQ(g_watch.at[-1], kOld);
      }
      EXPECT_EQ(g_watch.at[bytes], kOld);
    }
  }
}

TEST_F(CopyTest, SoItIsForLargeOnes) {
  for (std::size_t bytes : {2048, 4096, 4199}) {
    SCOPED_TRACE(bytes);
    watch(0, bytes);
    EXPECT_EQ(g_watch.arrived, bytes);
    EXPECT_TRUE(g_watch.in_order);
    for (std::size_t i = 0; i < bytes; ++i)
      ASSERT_EQ(g_watch.at[i], kOwn) << "byte " << i << " has been stored twice";
  }
}

TEST_F(CopyTest, EveryByteGoesToItsPlace) {
  for (std::size_t bytes = 0; bytes < 200; ++bytes) {
    for (std::size_t i = 0; i < bytes; ++i) g_watch.source[i] = static_cast<unsigned char>(i + 1);
    std::memset(g_watch.destination, 0, sizeof(g_watch.destination));
    copy_in_order(g_watch.destination, g_watch.source, bytes);
    EXPECT_EQ(std::memcmp(g_watch.destination, g_watch.source, bytes), 0) << bytes;
    EXPECT_EQ(g_watch.destination[bytes], 0) << bytes;
  }
}

}  // namespace
}  // namespace shadowib::ib2tcp
