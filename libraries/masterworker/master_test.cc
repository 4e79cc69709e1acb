#include "libraries/masterworker/master.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "libraries/masterworker/guard.h"
#include "libraries/masterworker/tests/farm.h"

namespace shadowib::masterworker {
namespace {

constexpr int kSeeds = 200;

class WithoutGuard {
 public:
  explicit WithoutGuard(Guard guard) : guard_(guard) { switch_guard(guard, false); }
  ~WithoutGuard() { switch_guard(guard_, true); }

 private:
  Guard guard_;
};

// The first rule that some seed breaks.
std::string broken(FarmPlan plan, int seeds = kSeeds) {
  for (int seed = 1; seed <= seeds; ++seed) {
    plan.seed = static_cast<std::uint64_t>(seed);
    const std::string wrong = SimulatedFarm(plan).run();
    if (!wrong.empty()) return wrong;
  }
  return "";
}

// Two workers in simulated time, each round as long as `duration` says. Requests to abort are not heard.
class TimedFarm : public Courier {
 public:
  std::function<std::int64_t(WorkerId, Round, const Payload&)> duration;
  std::int64_t time = 1;
  Master master{*this, 1};

  void send_task(WorkerId to, const Handout& handout, std::uint64_t, const Payload& input) override {
    Worker& worker = workers_[to];
    worker.free_at = std::max(worker.free_at, time) + duration(to, handout.round, input);
    worker.results.push_back({worker.free_at, handout.id});
  }
  void send_update(WorkerId, std::uint64_t, const Payload&, const Payload&) override {}
  void send_end(WorkerId, std::uint64_t) override {}
  void abort_all(WorkerId, std::uint64_t) override {}
  void abort_one(WorkerId, std::uint64_t) override {}
  bool answers(WorkerId) override { return true; }
  std::int64_t time_ns() override { return time; }

  // One task, until the farm is done, or `seconds` have passed. True: it is done.
  bool run(std::int64_t seconds, std::function<Action(const Payload&, Round)> check) {
    Callbacks callbacks;
    callbacks.check = [this, check](const Payload& input, const Payload&) {
      return check(input, master.checked_round());
    };
    master.begin(callbacks);
    master.submit({});
    for (WorkerId worker : {1, 2}) master.joined(worker, 0, 1);
    for (std::int64_t next_tick = 0; time < seconds * kSecond; time += kSecond / 1000) {
      for (auto& [id, worker] : workers_)
        for (; !worker.results.empty() && worker.results.front().first <= time; worker.results.pop_front())
          master.arrived(id, worker.results.front().second, {});
      if (time >= next_tick) {
        master.tick(time);
        next_tick = time + kSecond / 4;
      }
      while (master.step(time)) {
      }
      if (master.done()) return true;
    }
    return false;
  }
  static constexpr std::int64_t kSecond = 1'000'000'000;

 private:
  struct Worker {
    std::int64_t free_at = 0;
    std::deque<std::pair<std::int64_t, std::uint64_t>> results;  // when, of which hand-out
  };
  std::map<WorkerId, Worker> workers_;
};

// What a callback takes is not the age of the task that it hands out: it was copied at once.
TEST(Master, MeasuresTasksFromTheirHandOut) {
  TimedFarm farm;
  farm.duration = [](WorkerId, Round, const Payload&) { return TimedFarm::kSecond / 10; };
  EXPECT_TRUE(farm.run(100, [&farm](const Payload&, Round round) {
    farm.time += 10 * TimedFarm::kSecond;
    return Action{round == Round::kFirst ? ActionKind::kRedo : ActionKind::kNoAction, {}};
  }));
  EXPECT_EQ(farm.master.counts().copies, 0u);
}

// A copy of a REDO begins the task anew: its quick first result took the task back from the worker that was about to
// end it, again and again.
TEST(Master, LongRoundsComeToTheirEnd) {
  for (const bool continues : {false, true}) {
    TimedFarm farm;
    farm.duration = [](WorkerId, Round round, const Payload&) {
      return round == Round::kRedo ? 100 * TimedFarm::kSecond : TimedFarm::kSecond / 100;
    };
    EXPECT_TRUE(farm.run(2000, [continues](const Payload&, Round round) {
      if (round == Round::kFirst && continues) return Action{ActionKind::kContinuation, {}};
      return Action{round == Round::kRedo ? ActionKind::kNoAction : ActionKind::kRedo, {}};
    })) << (continues ? "REDO after CONTINUATION" : "REDO");
    EXPECT_GT(farm.master.counts().copies, 0u);
  }
}

// An exception left CheckTaskResult: the next farm took its results for its own, or waited for ever.
TEST(MasterDeathTest, RefusesAFarmBehindOneThatIsNotOver) {
  TimedFarm farm;
  farm.duration = [](WorkerId, Round, const Payload&) { return TimedFarm::kSecond / 10; };
  EXPECT_THROW(farm.run(100, [](const Payload&, Round) -> Action { throw 1; }), int);
  EXPECT_EXIT(farm.master.begin({}), ::testing::ExitedWithCode(1), "1 tasks of the one before");
}

TEST(Master, AnAbandonedFarmLeavesNothingBehind) {
  TimedFarm farm;
  farm.duration = [](WorkerId, Round, const Payload&) { return TimedFarm::kSecond / 10; };
  int checks = 0;
  const auto check = [&](const Payload&, Round) {
    ++checks;
    farm.master.submit({});
    farm.master.abandon();
    return Action{};
  };
  EXPECT_TRUE(farm.run(100, check));
  EXPECT_EQ(checks, 1) << "the other is dropped";
  farm.master.end();
  EXPECT_EQ(farm.master.unfinished(), 0u);
  EXPECT_TRUE(farm.run(200, [](const Payload&, Round) { return Action{}; }));
  EXPECT_EQ(farm.master.counts().checks, 2u);
}

// It let go of its updates in silence, and workers from elsewhere were told to ask for what it had been asked for.
TEST(Master, SaysWhenItKeepsUpdatesNoMore) {
  TimedFarm farm;
  farm.duration = [](WorkerId, Round, const Payload&) { return TimedFarm::kSecond / 10; };
  farm.master.keep_updates(100);
  ::testing::internal::CaptureStderr();
  for (int i = 1; i <= 2; ++i)
    EXPECT_TRUE(farm.run(100 * i, [](const Payload&, Round) { return Action{ActionKind::kUpdate, {}}; }));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("the first 1 updates"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

// Workers that ended as soon as they had joined were made again, without pause and for ever.
TEST(Master, CountsWorkersThatEndAtTheirBeginning) {
  TimedFarm farm;
  farm.master.begin({});
  WorkerId next = 0;
  for (std::uint32_t i = 1; i <= 5; ++i) {
    farm.master.joined(++next, 0, 1);
    farm.time += TimedFarm::kSecond;
    farm.master.gone(next);
    EXPECT_EQ(farm.master.deaths_in_a_row(), i);
  }
  farm.master.joined(++next, 0, 1);
  farm.time += 60 * TimedFarm::kSecond;
  farm.master.gone(next);
  EXPECT_EQ(farm.master.deaths_in_a_row(), 5u) << "it was idle, and somebody killed it";
  farm.master.joined(++next, 0, 1);
  farm.master.gone(next, true);
  EXPECT_EQ(farm.master.deaths_in_a_row(), 5u) << "it left";
  farm.duration = [](WorkerId, Round, const Payload&) { return TimedFarm::kSecond / 10; };
  EXPECT_TRUE(farm.run(100, [](const Payload&, Round) { return Action{}; }));
  EXPECT_EQ(farm.master.deaths_in_a_row(), 0u);
}

TEST(Farm, EndsWithoutDisturbances) {
  FarmPlan plan;
  plan.deaths = plan.stops = plan.restarts = false;
  EXPECT_EQ(broken(plan, 20), "");
}

TEST(Farm, KeepsItsRulesInStorms) { EXPECT_EQ(broken({}), ""); }

TEST(Farm, KeepsItsRulesWithOneWorker) {
  FarmPlan plan;
  plan.workers = 1;
  plan.stopped_for_ever = 0;  // nobody would be left
  EXPECT_EQ(broken(plan, 60), "");
}

TEST(Farm, KeepsItsRulesOverPhases) {
  FarmPlan plan;
  plan.phases = 4;
  plan.tasks = 12;
  EXPECT_EQ(broken(plan), "");
}

TEST(Farm, CopiesStoppedTasks) {
  std::uint64_t copies = 0, late = 0;
  for (int seed = 1; seed <= 40; ++seed) {
    FarmPlan plan;
    plan.seed = static_cast<std::uint64_t>(seed);
    plan.deaths = plan.restarts = false;
    SimulatedFarm farm(plan);
    ASSERT_EQ(farm.run(), "");
    copies += farm.counts().copies;
    late += farm.counts().late;
  }
  EXPECT_GT(copies, 0u);
  EXPECT_GT(late, 0u);
}

// A worker is stopped for ever, with whatever round it has. Without copies the farm does not end.
TEST(Farm, EndsAlthoughWorkersAreStoppedForEver) {
  int stopped = 0, redos = 0;
  std::uint64_t copies = 0;
  for (int seed = 1; seed <= 60; ++seed) {
    FarmPlan plan;
    plan.seed = static_cast<std::uint64_t>(seed);
    plan.workers = 4;
    plan.stopped_for_ever = 2;
    plan.deaths = plan.restarts = false;
    SimulatedFarm farm(plan);
    ASSERT_EQ(farm.run(), "");
    stopped += farm.stopped_for_ever();
    redos += farm.redos_after_continuations();
    copies += farm.counts().copies;
  }
  EXPECT_GT(stopped, 60);
  EXPECT_GT(redos, 60);
  EXPECT_GT(copies, 60u);
}

TEST(Farm, GuardM1LateResultsAreDropped) {
  const WithoutGuard off(Guard::kDropLate);
  EXPECT_NE(broken({}), "");
}

TEST(Farm, GuardM1ResultsOfAnotherLifeAreDropped) {
  const WithoutGuard off(Guard::kKnowLife);
  EXPECT_NE(broken({}), "");
}

TEST(Farm, GuardM2NewWorkersCatchUp) {
  const WithoutGuard off(Guard::kCatchUp);
  EXPECT_NE(broken({}).find("M"), std::string::npos);
}

TEST(Farm, GuardM4UpToDateIsOfTheHandout) {
  const WithoutGuard off(Guard::kJudgeHandout);
  EXPECT_NE(broken({}).find("M4"), std::string::npos);
}

TEST(Farm, GuardM5RedoGoesHome) {
  const WithoutGuard off(Guard::kRedoAtHome);
  EXPECT_NE(broken({}).find("M5"), std::string::npos);
}

TEST(Farm, PostsAheadWithAllActions) {
  FarmPlan plan;
  plan.ahead = 4;
  // Private data of the last task only are lost where tasks are posted ahead: the page on task farms says so.
  for (int seed = 1; seed <= 60; ++seed) {
    plan.seed = static_cast<std::uint64_t>(seed);
    const std::string wrong = SimulatedFarm(plan).run();
    EXPECT_TRUE(wrong.empty() || wrong.find("M5") != std::string::npos) << wrong;
  }
}

}  // namespace
}  // namespace shadowib::masterworker
