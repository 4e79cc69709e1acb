#include "libraries/masterworker/master_link.h"

#include <gtest/gtest.h>

#include <string>

#include "libraries/masterworker/tests/wired_master.h"

namespace shadowib::masterworker {
namespace {

const Action kUpdate{ActionKind::kUpdate, {}};

TEST_F(WiredMaster, HandsOutTasksAndChecksResults) {
  tasks.push_back(text("one"));
  const std::uint32_t worker = this->worker();
  const Header task = take(worker);
  EXPECT_EQ(task.kind, Kind::kTask);
  say(worker, Kind::kResult, task.number, "done");
  go_on();
  EXPECT_EQ(checked, std::vector<std::string>{"done"});
  EXPECT_TRUE(master->done());
}

// An update that did not fit was left out, and later messages went their way: the worker computed with old data.
TEST_F(WiredMaster, SendsNothingBehindWhatItHasLeftOut) {
  make(4096);
  const std::uint32_t lagging = worker(), other = worker();
  for (int i = 0; i < 3; ++i) master->submit(text("task"));
  go_on();
  const std::uint64_t first = take_task(lagging).number;
  for (int i = 0; i < 2; ++i) {
    actions.push_back(kUpdate);
    say(other, Kind::kResult, take_task(other).number, std::string(3000, 'u'));
    go_on();
  }
  EXPECT_EQ(master->updates().count(), 2u);
  // The first is taken, so there would be room again. And it is heard of.
  EXPECT_EQ(take(lagging).number, 1u);
  say(lagging, Kind::kResult, first, "late");
  master->submit(text("next"));
  go_on();
  EXPECT_TRUE(!wires.alive(lagging) || wires.posted(lagging).empty());
  tick();
  EXPECT_FALSE(wires.alive(lagging)) << "it is given up";
  EXPECT_EQ(master->workers(), 1u);
}

// The buffer of an update went to another message, and a worker that lagged behind was sent that one's bytes.
TEST_F(WiredMaster, LargeUpdatesAreSentAsTheyWere) {
  const std::uint32_t quick = worker(), slow = worker();
  constexpr WorkerId kSlow = 2;
  for (int i = 0; i < 2; ++i) master->submit(text("task"));  // one for each
  go_on();
  const std::uint64_t task = take(quick).number;
  for (std::uint64_t i = 0; i < 100; ++i) link->send_end(kSlow, i);  // more than may be on their way
  const std::string output(10'000, 'a');
  actions.push_back(kUpdate);
  say_large(quick, task, output);
  EXPECT_EQ(take(quick).kind, Kind{});  // the READ
  EXPECT_EQ(take(quick).kind, Kind::kRelease);
  const Header update = take(quick);
  ASSERT_EQ(update.kind, Kind::kUpdate);
  EXPECT_TRUE(read(update) == "task" + output);
  say(quick, Kind::kRelease, update.buffer);
  go_on();
  master->submit(bytes(10'000, 'b'));
  go_on();
  EXPECT_TRUE(read(take(quick)) == std::string(10'000, 'b'));
  Header late;
  for (int i = 0; i < 102; ++i) late = take(slow);
  ASSERT_EQ(late.kind, Kind::kUpdate);
  EXPECT_TRUE(read(late) == "task" + output);
}

// A result and the farewell behind it came together: the result was thrown away, and its task begun anew.
TEST_F(WiredMaster, ChecksTheResultOfAWorkerThatLeaves) {
  const std::uint32_t leaving = worker(), staying = worker();
  master->submit(text("task"));
  go_on();
  say(leaving, Kind::kResult, take(leaving).number, "done");
  say(leaving, Kind::kLeave);
  go_on();
  EXPECT_FALSE(wires.alive(leaving));
  EXPECT_EQ(checked, std::vector<std::string>{"done"});
  EXPECT_TRUE(wires.posted(staying).empty()) << "nobody does it again";
  EXPECT_EQ(master->unfinished(), 0u);
  EXPECT_EQ(master->counts().deaths, 0u);
}

// The master was in a long callback, and had not read what had arrived: its workers counted as silent.
TEST_F(WiredMaster, ReadsBeforeItJudges) {
  const std::uint32_t worker = this->worker();
  master->submit(text("task"));
  go_on();
  say(worker, Kind::kResult, take(worker).number, "done");
  link->tick(now_ns() + 3600'000'000'000, 60);
  EXPECT_TRUE(wires.alive(worker));
  go_on();
  EXPECT_EQ(checked.size(), 1u);
}

TEST_F(WiredMaster, KnowsWhoIsStopped) {
  const std::uint32_t worker = this->worker();
  constexpr WorkerId kWorker = 1;
  for (int i = 0; i < 3; ++i) tick();
  EXPECT_TRUE(link->answers(kWorker));
  for (int i = 0; i < 3; ++i) tick();
  EXPECT_FALSE(link->answers(kWorker));
  take(worker);
  EXPECT_TRUE(link->answers(kWorker));
  EXPECT_FALSE(link->answers(kWorker + 1));
}

// The program may call exit() without TOPC_finalize(). Then the order in which objects go is another.
TEST_F(WiredMaster, EndsBehindItsMaster) {
  worker();
  auto* memory = static_cast<char*>(::operator new(sizeof(Master)));
  auto* own = new (memory) Master(*link, 1);
  link->attach(*own);
  own->~Master();
  std::memset(memory, 0xff, sizeof(Master));
  link.reset();
  ::operator delete(memory);
}

}  // namespace
}  // namespace shadowib::masterworker
