// What a signal handler of the program does to a call that waits for an event.
#include "shadowib/objects/events.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <unistd.h>

namespace shadowib {
namespace {

int g_fd = -1;
int g_ran = 0;
// The first time nothing comes of it; the second time the descriptor becomes readable.
void on_alarm(int) {
  if (++g_ran == 1) return;
  std::uint64_t one = 1;
  [[maybe_unused]] auto n = ::write(g_fd, &one, sizeof(one));
}

class EventQueueWait : public testing::Test {
 protected:
  void SetUp() override {
    g_fd = ::eventfd(0, EFD_CLOEXEC);
    g_ran = 0;
  }
  void TearDown() override {
    alarms(0);
    ::close(g_fd);
    ::signal(SIGALRM, SIG_DFL);
  }
  static void handle(int flags) {
    struct sigaction action {};
    action.sa_handler = on_alarm;
    action.sa_flags = flags;
    ASSERT_EQ(::sigaction(SIGALRM, &action, nullptr), 0);
  }
  static void alarms(int every_ms) {
    const itimerval timer{{0, every_ms * 1000}, {0, every_ms * 1000}};
    ASSERT_EQ(::setitimer(ITIMER_REAL, &timer, nullptr), 0);
  }
};

TEST_F(EventQueueWait, EndsWithTheHandlerThatEndsARead) {
  handle(0);
  alarms(20);
  EXPECT_FALSE(EventQueue::wait(g_fd));
  EXPECT_EQ(errno, EINTR);
}

TEST_F(EventQueueWait, GoesOnAfterAHandlerThatRestarts) {
  handle(SA_RESTART);
  alarms(20);
  while (g_ran < 2) EXPECT_TRUE(EventQueue::wait(g_fd));  // true after the first, too: look, and wait again
}

}  // namespace
}  // namespace shadowib
