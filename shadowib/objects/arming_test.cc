#include "shadowib/objects/arming.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace shadowib {
namespace {

TEST(Arming, AnEventAnswersARequest) {
  Arming arming;
  EXPECT_FALSE(arming.is_armed());
  arming.note_armed(false);
  EXPECT_TRUE(arming.is_armed());
  arming.note_event();
  EXPECT_FALSE(arming.is_armed());
  arming.note_event();  // one that a rebuild had asked for without need
  arming.note_armed(false);
  EXPECT_TRUE(arming.is_armed());
}

TEST(Arming, TheStrongerRequestCounts) {
  for (bool solicited_first : {true, false}) {
    Arming arming;
    arming.note_armed(solicited_first);
    arming.note_armed(!solicited_first);
    EXPECT_FALSE(arming.solicited_only());
    arming.note_rebuilt();
    EXPECT_FALSE(arming.solicited_only());
    arming.note_event();
    arming.note_armed(true);
    EXPECT_TRUE(arming.solicited_only());
  }
}

// Two events lie unread and the queue is armed a third time; a checkpoint then takes both events.
TEST(Arming, ARequestOutlivesAllEventsThatWereUnread) {
  for (int unread : {1, 2, 5, 1000}) {
    Arming arming;
    for (int i = 0; i < unread + 1; ++i) arming.note_armed(false);
    for (int i = 0; i < unread; ++i) arming.note_event();
    EXPECT_TRUE(arming.is_armed());
    arming.note_event();
    EXPECT_FALSE(arming.is_armed());
  }
}

// A refused request is as if it had never been made: those made before it, or by other threads meanwhile, stay.
TEST(Arming, ARefusedRequestTakesBackItselfAlone) {
  for (bool earlier_solicited : {true, false})
    for (bool refused_solicited : {true, false}) {
      Arming arming;
      arming.note_armed(refused_solicited);
      arming.note_refused(refused_solicited);
      EXPECT_FALSE(arming.is_armed());
      arming.note_armed(earlier_solicited);
      arming.note_armed(refused_solicited);
      arming.note_refused(refused_solicited);
      EXPECT_TRUE(arming.is_armed());
      EXPECT_EQ(arming.solicited_only(), earlier_solicited);
      // Now another thread's comes between.
      arming.note_armed(refused_solicited);
      arming.note_armed(earlier_solicited);
      arming.note_refused(refused_solicited);
      EXPECT_EQ(arming.solicited_only(), earlier_solicited);
      for (int i = 0; i < 2; ++i) {
        EXPECT_TRUE(arming.is_armed());
        arming.note_event();
      }
      EXPECT_FALSE(arming.is_armed());
    }
}

// The event of an earlier request is taken before the refusal is known.
TEST(Arming, ARefusalAfterAnEventLeavesNothing) {
  for (bool earlier_solicited : {true, false})
    for (bool refused_solicited : {true, false}) {
      Arming arming;
      arming.note_armed(earlier_solicited);
      arming.note_armed(refused_solicited);
      arming.note_event();
      arming.note_refused(refused_solicited);
      EXPECT_FALSE(arming.is_armed());
    }
}

TEST(Arming, ASurplusEventIsOneThatNoRequestWaitsFor) {
  Arming arming;
  arming.note_armed(false);
  EXPECT_FALSE(arming.take_surplus());
  EXPECT_FALSE(arming.may_have_surplus());
  arming.note_surplus();
  EXPECT_TRUE(arming.may_have_surplus());
  arming.note_event();
  EXPECT_TRUE(arming.take_surplus());
  EXPECT_TRUE(arming.may_have_surplus()) << "it was not told";
  EXPECT_TRUE(arming.forget_surplus());
  EXPECT_FALSE(arming.may_have_surplus());
  EXPECT_TRUE(arming.take_surplus()) << "one that nobody knew to be due";
  arming.note_armed(false);  // by another thread, which has not seen that there is one
  EXPECT_FALSE(arming.take_surplus());
  arming.note_surplus();
  arming.note_rebuilt();
  EXPECT_FALSE(arming.may_have_surplus()) << "the queue that was asked is gone";
}

TEST(Arming, WhatIsTakenWhileTheProgramAsksIsKnownToOneOfTheTwo) {
  Arming arming;
  EXPECT_FALSE(arming.forget_untold());
  EXPECT_TRUE(arming.take_surplus());
  arming.note_armed(false);
  EXPECT_TRUE(arming.forget_untold());
  EXPECT_FALSE(arming.forget_untold());
  arming.note_surplus();
  EXPECT_FALSE(arming.forget_untold()) << "nothing was taken yet";
  EXPECT_TRUE(arming.may_have_surplus());
  // By two threads: an event that was taken is told, or the other asks after it.
  for (int i = 0; i < 2000; ++i) {
    Arming shared;
    std::atomic<int> ready{0};
    bool dropped = false, found = false;
    const auto meet = [&] {
      for (++ready; ready != 2;) {
      }
    };
    std::thread taker([&] {
      meet();
      dropped = shared.take_surplus();
    });
    meet();
    shared.note_armed(false);
    found = shared.forget_untold();
    taker.join();
    ASSERT_EQ(dropped, found) << "round " << i;
    ASSERT_FALSE(shared.may_have_surplus()) << "round " << i;
  }
}

TEST(Arming, ARebuildArmsOnce) {
  Arming arming;
  arming.note_rebuilt();
  EXPECT_FALSE(arming.is_armed());
  for (int i = 0; i < 10; ++i) arming.note_armed(true);
  arming.note_rebuilt();
  EXPECT_TRUE(arming.is_armed());
  EXPECT_TRUE(arming.solicited_only());
  arming.note_event();
  EXPECT_FALSE(arming.is_armed());
}

}  // namespace
}  // namespace shadowib
