#include "libraries/masterworker/master_link.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "libraries/masterworker/tests/wired_master.h"

namespace shadowib::masterworker {
namespace {

const Action kUpdate{ActionKind::kUpdate, {}};
constexpr std::int64_t kSecond = 1'000'000'000;

pid_t ended_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  return child;
}

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

// Sixteen workers that took nothing held all buffers for messages on their way.
TEST_F(WiredMaster, StoppedWorkersLeaveRoomForOthers) {
  constexpr int kStopped = 40;
  wires.most_inline = 8;
  for (int i = 0; i < kStopped; ++i) {
    worker();
    for (std::uint64_t k = 0; k < 50; ++k) link->send_end(static_cast<WorkerId>(i + 1), k);
  }
  const std::uint32_t running = worker();
  constexpr std::uint64_t kMessages = 200;
  for (std::uint64_t k = 0; k < kMessages; ++k) link->send_end(kStopped + 1, k);
  for (std::uint64_t k = 0; k < kMessages; ++k) ASSERT_EQ(take(running).number, k);
}

// Each task asked for a completion: one more for each end to take.
TEST_F(WiredMaster, AsksForFewCompletions) {
  const std::uint32_t worker = this->worker();
  int asked = 0;
  for (int i = 0; i < 800; ++i) {
    master->submit(text("task"));
    go_on();
    ASSERT_EQ(wires.posted(worker).size(), 1u);
    if ((wires.posted(worker).front().flags & IBV_SEND_SIGNALED) != 0) ++asked;
    say(worker, Kind::kResult, take(worker).number, "done");
    go_on();
  }
  EXPECT_EQ(asked, 100);
  EXPECT_EQ(checked.size(), 800u);
  master->submit(text("task"));
  go_on();
  EXPECT_EQ(wires.posted(worker).front().flags, IBV_SEND_INLINE);
  wires.complete(worker, IBV_WC_RETRY_EXC_ERR);
  go_on();
  EXPECT_FALSE(wires.alive(worker)) << "a failure is told in any case";
}

// Large messages, which ask always, and tasks that do not, among each other.
TEST_F(WiredMaster, CountsWhatIsOnItsWay) {
  constexpr int kTasks = 500;
  make(kMostLagBytes, kTasks);
  const std::uint32_t worker = this->worker();
  for (int i = 0; i < kTasks; ++i) master->submit(bytes(i % 7 == 0 ? 1000 : i % 11 == 0 ? 10'000 : 64, 'a'));
  go_on();
  for (int i = 0; i < kTasks; ++i) ASSERT_EQ(take(worker).kind, Kind::kTask);
  EXPECT_TRUE(wires.posted(worker).empty());
}

// When all are stopped there is no room, until one is lost.
TEST_F(WiredMaster, RoomOfALostWorkerGoesToThoseThatWait) {
  constexpr std::uint64_t kAll = MasterLink::kSends + 2;
  wires.most_inline = 8;
  std::vector<std::uint32_t> workers;
  for (std::uint64_t i = 0; i < kAll; ++i) workers.push_back(worker());
  for (std::uint64_t i = 0; i < kAll; ++i) link->send_end(i + 1, i);
  EXPECT_TRUE(wires.posted(workers[kAll - 1]).empty());
  EXPECT_TRUE(wires.posted(workers[kAll - 2]).empty());
  wires.complete(workers[7], IBV_WC_RETRY_EXC_ERR);
  go_on();
  EXPECT_EQ(take(workers[kAll - 2]).number, kAll - 2);
  EXPECT_EQ(take(workers[kAll - 1]).number, kAll - 1);
}

// The image grew with workers, by whatever lay in slots that had been used.
TEST_F(WiredMaster, SlotsThatHoldNothingAreZero) {
  wires.most_inline = 8;
  const std::uint32_t lost = worker(), other = worker();
  for (int i = 0; i < 40; ++i) master->submit(text("task"));
  go_on();
  std::vector<ibv_sge> sent;
  for (int i = 0; i < 20; ++i) {
    for (const Posted& message : wires.posted(other)) sent.push_back(message.piece);
    say(other, Kind::kResult, take_task(other).number, std::string(2000, 'r'));
    go_on();
  }
  for (const Posted& message : wires.posted(lost)) sent.push_back(message.piece);
  wires.complete(lost, IBV_WC_RETRY_EXC_ERR);
  go_on();
  while (!wires.posted(other).empty()) take(other);
  ASSERT_GT(wires.shared_.size(), static_cast<std::size_t>(MasterLink::kReceives - Emptied::kMost));
  std::size_t used = 0;
  const auto not_zero = [&used](const ibv_sge& piece) {
    const char* at = reinterpret_cast<const char*>(piece.addr);
    used += piece.length;
    return static_cast<std::size_t>(piece.length) - static_cast<std::size_t>(std::count(at, at + piece.length, '\0'));
  };
  for (const Wires::Receive& receive : wires.shared_) ASSERT_EQ(not_zero(receive.piece), 0u);
  for (const Wires::Receive& receive : wires.datagrams_) ASSERT_EQ(not_zero(receive.piece), 0u);
  ASSERT_GT(sent.size(), 2u);
  for (const ibv_sge& piece : sent) ASSERT_EQ(not_zero(piece), 0u);
}

TEST_F(WiredMaster, TakesWorkersFromElsewhereAndTellsThemAllUpdates) {
  make(kMostLagBytes, 1, 1 << 20);
  const std::uint32_t fork = worker();
  for (int i = 0; i < 2; ++i) {
    actions.push_back(kUpdate);
    master->submit(text("task"));
    go_on();
    say(fork, Kind::kResult, take_task(fork).number, "done");
    go_on();
  }
  EXPECT_EQ(come_from_elsewhere(1001), Answer::kWelcome);
  const std::uint32_t there = wires.answers.back().connection.queue_pair;
  EXPECT_EQ(link->connected(), 2u);
  EXPECT_EQ(link->connected_forks(), 1u) << "it takes no fork's place";
  EXPECT_EQ(come_from_elsewhere(1001), Answer::kWelcome) << "the answer was lost";
  EXPECT_EQ(link->connected(), 2u);
  say(there, Kind::kReady);
  go_on();
  EXPECT_EQ(take(there).number, 1u);
  EXPECT_EQ(take(there).number, 2u);
  say(there, Kind::kLeave, kToldToLeave);
  go_on();
  EXPECT_FALSE(wires.alive(there));
  EXPECT_EQ(link->connected_forks(), 1u);
  EXPECT_EQ(link->farewells(), 0u) << "nobody wants fewer forks";
}

// All updates were pushed to the newcomer at once, and counted as its lag: no guest could join.
TEST_F(WiredMaster, TellsNewcomersMoreUpdatesThanAWorkerMayLag) {
  make(4096, 1, 1 << 20);
  const std::uint32_t fork = worker();
  constexpr std::uint64_t kUpdates = 40;
  for (std::uint64_t i = 0; i < kUpdates; ++i) {
    actions.push_back(kUpdate);
    master->submit(text("task"));
    go_on();
    say(fork, Kind::kResult, take_task(fork).number, std::string(3000, 'u'));
    go_on();
  }
  while (!wires.posted(fork).empty()) take(fork);
  EXPECT_EQ(come_from_elsewhere(1001), Answer::kWelcome);
  const std::uint32_t there = wires.answers.back().connection.queue_pair;
  say(there, Kind::kReady);
  go_on();
  for (std::uint64_t i = 1; i <= kUpdates; ++i) ASSERT_EQ(take(there).number, i);
  tick();
  EXPECT_TRUE(wires.alive(there));
  EXPECT_EQ(master->workers(), 2u);
}

TEST_F(WiredMaster, RefusesWorkersFromElsewhereThatComeTooLate) {
  EXPECT_EQ(come_from_elsewhere(1000), Answer::kWelcome) << "there is no update yet";
  const std::uint32_t early = wires.answers.back().connection.queue_pair;
  const std::uint32_t fork = worker();
  actions.push_back(kUpdate);
  master->submit(text("task"));
  go_on();
  say(fork, Kind::kResult, take_task(fork).number, "done");
  go_on();
  say(early, Kind::kReady);  // the update came between its hello and this
  go_on();
  EXPECT_EQ(take(early).number, 1u);
  EXPECT_EQ(come_from_elsewhere(1001), Answer::kTooLate);
  Hello stranger;  // awaited by nobody
  stranger.token = 1002;
  stranger.life = link->door().life;
  wires.hello(stranger);
  go_on();
  EXPECT_EQ(wires.answers.back().answer, Answer::kStranger);
}

// From 350 workers on there could be more completions than the queue had room for, and the farm ended.
TEST_F(WiredMaster, CompletionsOfAllWorkersHaveRoom) {
  constexpr WorkerId kWorkers = 600;
  const std::string output(8, 'a');
  for (WorkerId i = 1; i <= kWorkers; ++i) {
    const std::uint32_t worker = this->worker();
    for (std::uint64_t k = 0; k < 4; ++k) say_large(worker, k, output);
    for (std::uint64_t k = 0; k < 2; ++k) link->abort_one(i, k);
    link->send_end(i, 1);
  }
  tick();
  EXPECT_GT(wires.under_way(), 5000u);
  EXPECT_LE(wires.under_way(), wires.room());
}

TEST_F(WiredMaster, SendsAwayWorkersThatTheDeviceHasNoRoomFor) {
  wires.most_completions = 4200;
  std::size_t most = 0;
  ::testing::internal::CaptureStderr();
  for (; most < 600; ++most) {
    Hello hello;
    hello.token = born();
    hello.life = link->door().life;
    wires.hello(hello);
    go_on();
    if (wires.answers.back().answer == Answer::kNoRoom) break;
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_GT(most, 300u);
  EXPECT_LT(most, 600u);
  EXPECT_EQ(link->connected(), most);
  EXPECT_NE(said.find("completion queue"), std::string::npos) << said;
}

// Another one was made each second, to be sent away in its turn.
TEST_F(WiredMaster, MakesNoOtherAtOnceForOneThatIsSentAway) {
  wires.has_queue_pairs = false;
  Hello hello;
  hello.token = born();
  hello.life = link->door().life;
  link->born(hello.token, ended_process());
  ::testing::internal::CaptureStderr();
  wires.hello(hello);
  go_on();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("no queue pair"), std::string::npos);
  EXPECT_EQ(wires.answers.back().answer, Answer::kNoRoom);
  link->tick(now_ns() + 2 * kSecond, 0);
  EXPECT_EQ(link->unheard(), 1u);
  link->tick(now_ns() + 61 * kSecond, 0);
  EXPECT_EQ(link->unheard(), 0u);
}

// It asked again for ever, the log was kept for it, and it counted as a fork that is on its way.
TEST_F(WiredMaster, SendsAwayWorkersFromElsewhereThatTheDeviceHasNoRoomFor) {
  const std::uint32_t fork = worker();
  wires.has_queue_pairs = false;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(come_from_elsewhere(1001), Answer::kNoRoom) << "and not a stranger, who asks again";
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("no queue pair"), std::string::npos);
  EXPECT_EQ(link->unheard(), 0u);
  actions.push_back(kUpdate);
  master->submit(text("task"));
  go_on();
  say(fork, Kind::kResult, take_task(fork).number, "done");
  go_on();
  EXPECT_EQ(master->updates().count(), 1u);
  EXPECT_EQ(master->updates().kept_bytes(), 0u) << "for whom?";
  wires.has_queue_pairs = true;
  born();
  EXPECT_EQ(link->unheard(), 1u);
}

// A worker whose send queue was full counted as lost.
TEST_F(WiredMaster, AFullSendQueueIsNoError) {
  constexpr std::size_t kTasks = 100;
  make(kMostLagBytes, kTasks);
  const std::uint32_t worker = this->worker();
  for (std::size_t i = 0; i < kTasks; ++i) master->submit(text("task"));
  go_on();
  const std::string output(10'000, 'a');
  std::vector<std::uint64_t> handouts;
  while (!wires.posted(worker).empty()) handouts.push_back(take(worker).number);
  ASSERT_EQ(handouts.size(), kTasks);
  for (const std::uint64_t handout : handouts) say_large(worker, handout, output);
  for (std::uint64_t i = 0; i < 100; ++i) link->abort_one(1, i);
  tick();
  for (std::uint64_t i = 0; i < 100; ++i) link->send_end(1, i);
  ASSERT_TRUE(wires.alive(worker));
  while (!wires.posted(worker).empty()) take(worker);
  EXPECT_TRUE(wires.alive(worker));
  EXPECT_EQ(checked.size(), kTasks);
  EXPECT_TRUE(checked.back() == output);
}

// With --TOPC-slave-wait=60 each worker was awaited for 60 s, and was a stranger when it came.
TEST_F(WiredMaster, AwaitsWorkersThatSleepFirst) {
  constexpr std::int64_t kMinute = 60'000'000'000;
  born();
  const std::uint64_t sleeper = born(60);
  link->tick(now_ns() + kMinute + kMinute / 2, 0);
  EXPECT_EQ(link->unheard(), 1u) << "the other will not come";
  join(sleeper);
  EXPECT_EQ(master->workers(), 1u);
  born(60);
  link->tick(now_ns() + 3 * kMinute, 0);
  EXPECT_EQ(link->unheard(), 0u);
}

// A worker that was killed before it had joined was awaited for a minute, and the farm went on with one less.
TEST_F(WiredMaster, AwaitsNoWorkerThatEndedBeforeItHadJoined) {
  const pid_t child = ended_process();
  const std::uint64_t dead = born(), alive = born(), answered = born();
  greet(answered);
  link->born(dead, child);
  link->born(alive, ::getpid());
  link->tick(now_ns(), 0);
  EXPECT_EQ(link->unheard(), 2u) << "one that ends at once is made again once a second";
  link->tick(now_ns() + 2 * kSecond, 0);
  EXPECT_EQ(link->unheard(), 1u);
  EXPECT_EQ(link->connected(), 1u);
  link->born(answered, child);
  link->tick(now_ns() + 2 * kSecond, 0);
  EXPECT_EQ(link->connected(), 0u) << "it has been answered, and was not ready";
  EXPECT_EQ(link->unheard(), 1u);
}

// The farm stood still, and nothing said why.
TEST_F(WiredMaster, TellsOnceThatNobodyJoins) {
  const pid_t child = ended_process();
  const auto said_of = [&](int births) {
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < births; ++i) {
      link->born(born(), child);
      link->tick(now_ns() + 2 * kSecond, 0);
    }
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said_of(7), "");
  EXPECT_NE(said_of(1).find("the last 8 workers ended before they had joined"), std::string::npos);
  EXPECT_EQ(said_of(20), "");
  worker();
  EXPECT_EQ(said_of(7), "") << "one has joined between";
  EXPECT_NE(said_of(1), "");
}

TEST_F(WiredMaster, TellsWhoIsLostAndWhoLeaves) {
  link->tell(true);
  const std::uint32_t leaving = worker(), dying = worker();
  ::testing::internal::CaptureStderr();
  say(leaving, Kind::kLeave, kToldToLeave);
  go_on();
  tick();
  wires.complete(dying, IBV_WC_RETRY_EXC_ERR);
  go_on();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("worker 1 (process 0) leaves"), std::string::npos) << said;
  EXPECT_NE(said.find("worker 2 (process 0) is lost"), std::string::npos) << said;
  EXPECT_EQ(link->farewells(), 1u);
  EXPECT_EQ(link->farewells(), 0u);
}

// A typed worker ends with its farm. The master took it for a farewell by SIGTERM, and made no workers for the next
// farm.
TEST_F(WiredMaster, OnlyWhoIsToldToLeaveIsNotReplaced) {
  const std::uint32_t ending = worker(), told = worker();
  say(ending, Kind::kLeave);
  go_on();
  EXPECT_FALSE(wires.alive(ending));
  EXPECT_EQ(link->farewells(), 0u);
  say(told, Kind::kLeave, kToldToLeave);
  go_on();
  EXPECT_EQ(link->farewells(), 1u);
}

TEST_F(WiredMaster, KnowsWhoIsStopped) {
  const std::uint32_t worker = this->worker();
  constexpr WorkerId kWorker = 1;
  std::int64_t now = now_ns();
  const auto ticks = [&](int number, std::int64_t apart_ms) {
    for (int i = 0; i < number; ++i) link->tick(now += apart_ms * 1'000'000, 0);
  };
  ticks(3, MasterLink::kPingMs);
  EXPECT_TRUE(link->answers(kWorker));
  ticks(20, 1);  // others end, and each time the master looks
  EXPECT_TRUE(link->answers(kWorker)) << "calls count, and not the time";
  ticks(3, MasterLink::kPingMs);
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
