#include "shadowib/base/lock.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

namespace shadowib {
namespace {

// The hot path looks at a backend's answer and at sleepers in one word.
TEST(SpinLock, AnAnswerIsToldFromSleepers) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  SpinLock lock;
  ASSERT_TRUE(lock.lock_now());
  int answer = 0;
  EXPECT_FALSE(lock.add_sleepers(&answer));
  for (const int refusal : {ENOMEM, -1, -ENOMEM}) {
    answer = refusal;
    EXPECT_TRUE(lock.add_sleepers(&answer));
    EXPECT_EQ(SpinLock::answer_of(answer), refusal);
  }
  int taken = 0;
  std::thread sleeper([&] {
    lock.lock();
    ++taken;
    lock.unlock();
  });
  for (answer = 0; !lock.add_sleepers(&answer); answer = 0) cpu_pause();
  for (const int given : {0, ENOMEM, -1}) {
    answer = given;
    EXPECT_TRUE(lock.add_sleepers(&answer));
    EXPECT_EQ(SpinLock::answer_of(answer), given);
  }
  EXPECT_EQ(taken, 0);
  lock.unlock();
  sleeper.join();
  EXPECT_EQ(taken, 1);
  ASSERT_TRUE(lock.lock_now());
  answer = 0;
  EXPECT_FALSE(lock.add_sleepers(&answer));
  lock.unlock_unslept();
}

}  // namespace
}  // namespace shadowib
