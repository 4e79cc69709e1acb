#include "libraries/masterworker/outbox.h"

#include <gtest/gtest.h>

namespace shadowib::masterworker {
namespace {

Outgoing message(std::size_t bytes, Kind kind = Kind::kUpdate) {
  Header header;
  header.kind = kind;
  return {header, Payload::allocate(bytes), {}};
}

bool push(Outbox& box, Outgoing message, bool behind = true) {
  if (!box.admit(message, behind)) return false;
  box.add(std::move(message));
  return true;
}

TEST(Outbox, GuardM12LimitsHowFarAWorkerLags) {
  Outbox box(10'000);
  EXPECT_TRUE(push(box, message(4000)));
  EXPECT_TRUE(push(box, message(4000)));
  const std::uint64_t bytes = box.pop().lag_bytes;
  EXPECT_FALSE(push(box, message(4000)));  // on its way counts, too
  box.taken(bytes);
  switch_guard(Guard::kLimitLag, false);
  Outbox endless(10'000);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(push(endless, message(4000)));  // the harm: without bound
  switch_guard(Guard::kLimitLag, true);
  EXPECT_GT(endless.bytes(), 10 * 10'000u);
}

// Small messages found room behind an update that had found none.
TEST(Outbox, TakesNothingBehindWhatItHasRefused) {
  Outbox box(10'000);
  EXPECT_TRUE(push(box, message(4000)));
  EXPECT_FALSE(box.closed());
  EXPECT_FALSE(push(box, message(8000)));
  EXPECT_FALSE(push(box, message(1)));
  EXPECT_TRUE(box.empty());
  EXPECT_TRUE(box.closed());
}

// Large tasks that were posted ahead counted as updates: their worker was given up, and the next one, too.
TEST(Outbox, TakesAllTasksThatArePostedAhead) {
  Outbox box(10'000);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(push(box, message(8000, Kind::kTask)));
  EXPECT_TRUE(push(box, message(8000)));
  EXPECT_FALSE(push(box, message(8000)));
}

// A newcomer gets all updates at once, and they may be more than a worker may lag behind.
TEST(Outbox, WhatWasBeforeAWorkerIsNoLag) {
  Outbox box(10'000);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(push(box, message(8000), false));
  EXPECT_TRUE(push(box, message(8000)));
  EXPECT_FALSE(push(box, message(8000)));
  Outbox other(10'000);
  EXPECT_TRUE(push(other, message(8000), false));
  other.taken(other.pop().lag_bytes);
  EXPECT_EQ(other.bytes(), 0u);
}

// A task behind an update that is larger than all a worker may lag: its worker was given up.
TEST(Outbox, TakesATaskBehindALargeUpdate) {
  Outbox box(10'000);
  EXPECT_TRUE(push(box, message(20'000)));
  EXPECT_TRUE(push(box, message(100, Kind::kTask)));
}

TEST(Outbox, TakesOneMessageOfAnySize) {
  Outbox box(100);
  EXPECT_TRUE(push(box, message(1'000'000)));
  box.taken(box.pop().lag_bytes);
  EXPECT_EQ(box.bytes(), 0u);
  EXPECT_TRUE(box.empty());
}

}  // namespace
}  // namespace shadowib::masterworker
