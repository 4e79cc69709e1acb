#include "libraries/masterworker/tasks.h"

#include <gtest/gtest.h>

namespace shadowib::masterworker {
namespace {

Payload text(const char* words) { return Payload::copy(words, std::strlen(words)); }

std::optional<std::uint32_t> slowest(const TaskTable& table, WorkerId worker, std::int64_t now_ns,
                                     std::int64_t age_ns) {
  struct Peers {
    std::int64_t since_ns(WorkerId) const { return 0; }
    bool answers(WorkerId peer) const { return peer < 10; }
  };
  const auto slow = table.slowest(worker, now_ns, age_ns, Peers());
  return slow ? std::optional(slow->task) : std::nullopt;
}

TEST(TaskTable, AcceptsTheFirstResultOfARoundOnly) {
  TaskTable table;
  const std::uint32_t task = table.add(text("in"));
  ASSERT_EQ(table.take_ready(), task);
  const Handout first = table.hand_out(task, 1, 0, 10), copy = table.hand_out(task, 2, 0, 20);
  const auto accepted = table.accept(copy.id, 2);
  ASSERT_TRUE(accepted);
  ASSERT_EQ(accepted->losers.size(), 1u);
  EXPECT_EQ(accepted->losers[0].id, first.id);
  EXPECT_FALSE(table.accept(first.id, 1));
  EXPECT_FALSE(table.accept(copy.id, 2));
  table.finish(task);
  EXPECT_EQ(table.unfinished(), 0u);
}

TEST(TaskTable, KnowsWhoWasHandedATask) {
  TaskTable table;
  const std::uint32_t task = table.add(text("in"));
  const Handout handout = table.hand_out(task, 1, 0, 10);
  EXPECT_FALSE(table.accept(handout.id, 2));
  EXPECT_FALSE(table.accept(handout.id + (std::uint64_t{1} << 24), 1));
  EXPECT_FALSE(table.accept(~std::uint64_t{0}, 1));
  EXPECT_TRUE(table.accept(handout.id, 1));
}

TEST(TaskTable, UsesNoIdTwice) {
  TaskTable table;
  const std::uint32_t task = table.add(text("in"));
  table.take_ready();
  const Handout first = table.hand_out(task, 1, 0, 0);
  table.worker_gone(1);
  ASSERT_EQ(table.take_ready(), task);
  const Handout second = table.hand_out(task, 1, 0, 0);
  EXPECT_NE(first.id, second.id);
  EXPECT_FALSE(table.accept(first.id, 1));
}

TEST(TaskTable, BeginsAnewWithTheOriginalInput) {
  TaskTable table;
  const std::uint32_t task = table.add(text("first"));
  table.take_ready();
  ASSERT_TRUE(table.accept(table.hand_out(task, 1, 0, 0).id, 1));
  table.continue_with(task, text("second"));
  EXPECT_EQ(table.hand_out(task, 1, 0, 0).round, Round::kContinuation);
  table.worker_gone(1);
  ASSERT_EQ(table.take_ready(), task);
  EXPECT_EQ(table.task(task).round, Round::kFirst);
  EXPECT_EQ(table.task(task).input.size(), 5u);
}

TEST(TaskTable, ReturnsTasksOfTheDeadInOrder) {
  TaskTable table;
  std::uint32_t tasks[3];
  for (std::uint32_t& task : tasks) {
    task = table.add(text("in"));
    table.take_ready();
    table.hand_out(task, 1, 0, 0);
  }
  const std::uint32_t later = table.add(text("later"));
  EXPECT_EQ(table.worker_gone(1), 1u);
  for (const std::uint32_t task : tasks) EXPECT_EQ(table.take_ready(), task);
  EXPECT_EQ(table.take_ready(), later);
}

TEST(TaskTable, HandsOutAllAgainAfterARestart) {
  TaskTable table;
  for (int i = 0; i < 4; ++i) table.add(text("in"));
  const auto first = *table.take_ready(), second = *table.take_ready();
  const Handout a = table.hand_out(first, 1, 0, 0), b = table.hand_out(second, 2, 0, 0);
  ASSERT_TRUE(table.accept(b.id, 2));
  table.finish(second);
  table.restarted();
  EXPECT_FALSE(table.accept(a.id, 1));
  EXPECT_EQ(table.take_ready(), first);
  EXPECT_EQ(table.unfinished(), 3u);
}

TEST(TaskTable, FindsTheSlowest) {
  TaskTable table;
  const std::uint32_t old = table.add(text("a")), young = table.add(text("b"));
  table.hand_out(old, 1, 0, 100);
  table.hand_out(young, 2, 0, 900);
  EXPECT_EQ(slowest(table, 3, 1000, 500), old);
  EXPECT_EQ(slowest(table, 1, 1000, 500), std::nullopt);  // not to who has it
  table.hand_out(old, 3, 0, 1000);
  EXPECT_EQ(slowest(table, 4, 1000, 500), std::nullopt);  // two at most
}

// A worker that left took its result along, although the master had it.
TEST(TaskTable, KeepsResultsOfWorkersThatAreGone) {
  TaskTable table;
  const std::uint32_t task = table.add(text("in"));
  table.take_ready();
  const Handout handout = table.hand_out(task, 1, 0, 10);
  table.arrived(handout.id, 2);  // of another worker: no result of this one
  EXPECT_EQ(slowest(table, 2, 1000, 500), task);
  table.arrived(handout.id, 1);
  EXPECT_EQ(slowest(table, 2, 1000, 500), std::nullopt) << "it is done";
  EXPECT_EQ(table.worker_gone(1), 0u);
  EXPECT_FALSE(table.has_ready());
  EXPECT_TRUE(table.accept(handout.id, 1));
}

// Two workers were stopped for ever, one with a task and one with its copy, and nobody else got it.
TEST(TaskTable, CopiesBeyondStoppedWorkers) {
  TaskTable table;
  const std::uint32_t task = table.add(text("in"));
  table.take_ready();
  table.hand_out(task, 11, 0, 0);
  table.hand_out(task, 12, 0, 1000);
  EXPECT_EQ(slowest(table, 3, 1400, 500), std::nullopt) << "one is not slow yet";
  EXPECT_EQ(slowest(table, 12, 1500, 500), std::nullopt) << "who has it already";
  EXPECT_EQ(slowest(table, 3, 1500, 500), task);
  table.hand_out(task, 3, 0, 1500);
  EXPECT_EQ(slowest(table, 4, 2000, 500), task);
  table.hand_out(task, 4, 0, 2000);
  EXPECT_EQ(slowest(table, 5, 9000, 500), std::nullopt) << "two that run";
}

// A worker that is stopped for ever with a continuation held the farm up.
TEST(TaskTable, CopiesContinuationsWithPatience) {
  TaskTable table;
  const std::uint32_t task = table.add(text("original"));
  table.take_ready();
  const auto continued = [&](Handout first, WorkerId worker, std::int64_t now_ns) {
    EXPECT_EQ(first.round, Round::kFirst) << "a copy begins anew";
    EXPECT_TRUE(table.accept(first.id, worker));
    EXPECT_EQ(table.task(task).input.data(), table.task(task).original.data());
    table.continue_with(task, text("next"));
    return table.hand_out(task, worker, 0, now_ns);
  };
  const Handout slow = continued(table.hand_out(task, 1, 0, 100), 1, 100);
  EXPECT_EQ(slowest(table, 2, 599, 500), std::nullopt);
  ASSERT_EQ(slowest(table, 2, 600, 500), task);
  table.copying({task, Round::kContinuation, 500});
  const Handout again = continued(table.hand_out(task, 2, 0, 600), 2, 1000);
  EXPECT_FALSE(table.accept(slow.id, 1)) << "late";
  // An honest one that takes long comes to its end: the second may take twice the time.
  EXPECT_EQ(slowest(table, 3, 1999, 500), std::nullopt);
  EXPECT_EQ(slowest(table, 3, 2000, 500), task);
  table.copying({task, Round::kContinuation, 1000});
  const Handout copy = table.hand_out(task, 3, 0, 2000);
  EXPECT_TRUE(table.accept(again.id, 2)) << "the first result counts";
  EXPECT_EQ(table.task(task).round, Round::kContinuation);
  EXPECT_FALSE(table.accept(copy.id, 3));
  table.finish(task);
  EXPECT_EQ(table.unfinished(), 0u);
}

}  // namespace
}  // namespace shadowib::masterworker
