#include "libraries/masterworker/master.h"

#include <gtest/gtest.h>

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

TEST(Farm, EndsWithoutDisturbances) {
  FarmPlan plan;
  plan.deaths = plan.stops = plan.restarts = false;
  EXPECT_EQ(broken(plan, 20), "");
}

TEST(Farm, KeepsItsRulesInStorms) { EXPECT_EQ(broken({}), ""); }

TEST(Farm, KeepsItsRulesWithOneWorker) {
  FarmPlan plan;
  plan.workers = 1;
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
