// The simulator against an oracle that reads its trace (replay.h), and against numbers that follow from the input.
#include "perftest/fedsim/simulation.h"

#include <gtest/gtest.h>

#include "perftest/fedsim/check.h"
#include "perftest/fedsim/report.h"
#include "perftest/fedsim/tests/replay.h"

namespace shadowib::fedsim {
namespace {

using federation::Policy;

Input input_of(unsigned clusters, unsigned messages, Time timer, Time collection) {
  Input input;
  input.topology.nodes.assign(clusters, 4);
  input.topology.inside.assign(clusters, {10, 80});
  input.topology.between.assign(clusters, std::vector<NetworkLink>(clusters, {150, 100}));
  input.application.total = 2000 * kSecond;
  input.application.message_bytes = 1000;
  input.application.messages.assign(clusters, std::vector<unsigned>(clusters, messages));
  input.application.bursts.assign(clusters, std::vector<unsigned>(clusters, 0));
  input.timers.clc.assign(clusters, timer);
  input.timers.collection = collection;
  return input;
}

// Runs, and lets both judges see the trace.
SimulationResult judged(const Input& input, SimulationOptions options) {
  Replay replay(input, options.policy);
  TraceChecker checker;
  std::string complaint;
  options.trace = 3;
  options.sink = [&](const TraceEvent& event) {
    replay.take(event);
    const std::string line = encode_event(event);
    if (const std::string wrong = checker.take(line); !wrong.empty() && complaint.empty())
      complaint = wrong + ": " + line;
  };
  SimulationResult result;
  const Status status = simulate(input, options, &result);
  EXPECT_TRUE(status.ok()) << status.text() << ", seed " << options.seed;
  EXPECT_EQ(replay.compare(result), "") << "seed " << options.seed;
  EXPECT_EQ(complaint, "") << "seed " << options.seed;
  return result;
}

struct Setting {
  const char* name;
  Policy policy;
  unsigned clusters, messages, failures;
};

class FedsimTest : public testing::TestWithParam<Setting> {};

TEST_P(FedsimTest, AgreesWithTheOracle) {
  const Setting& setting = GetParam();
  unsigned recoveries = 0, forced = 0, cascades = 0;
  std::uint64_t resent = 0, collected = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Input input = input_of(setting.clusters, setting.messages, 150 * kSecond, 400 * kSecond);
    input.timers.in_step = seed % 2 == 0;
    if (seed % 3 == 0) input.timers.clc[0] = kNever;
    if (seed % 5 == 0) input.timers.clc_takes = 2 * kSecond;  // sends queue up, links freeze
    if (seed % 7 == 0) input.application.bursts.assign(setting.clusters, std::vector<unsigned>(setting.clusters, 5));
    const SimulationResult result =
        judged(input, {.policy = setting.policy, .seed = seed, .failures = setting.failures});
    for (unsigned i = 0; i < setting.clusters; ++i) {
      forced += result.forced[i];
      EXPECT_EQ(result.messages[i][i], setting.messages);
      for (unsigned j = 0; j < setting.clusters && setting.failures == 0; ++j)
        EXPECT_NEAR(result.messages[i][j], setting.messages, 5);  // those of a CLC at the end are left out
    }
    for (const auto& collection : result.collections)
      for (unsigned i = 0; i < setting.clusters; ++i) collected += collection.before[i] - collection.after[i];
    recoveries += result.recoveries;
    resent += result.resent;
    cascades += result.clusters_back > result.recoveries;
  }
  EXPECT_EQ(recoveries, 8 * setting.failures);
  EXPECT_GT(collected, 0u);
  EXPECT_GE(forced, setting.policy == Policy::kNone ? 0u : 20u);
  if (setting.failures == 0) return;
  EXPECT_GT(resent, 0u);
  EXPECT_GT(cascades, 0u);
}

INSTANTIATE_TEST_SUITE_P(Settings, FedsimTest,
                         testing::Values(Setting{"PaperTwo", Policy::kPaper, 2, 60, 0},
                                         Setting{"PaperFails", Policy::kPaper, 2, 60, 8},
                                         Setting{"PaperThreeFail", Policy::kPaper, 3, 40, 8},
                                         Setting{"VectorFails", Policy::kVector, 3, 40, 8},
                                         Setting{"IndexFails", Policy::kIndex, 3, 40, 8},
                                         Setting{"NoneFails", Policy::kNone, 2, 40, 3}),
                         [](const testing::TestParamInfo<Setting>& info) { return std::string(info.param.name); });

TEST(Fedsim, TimersAloneGiveTheCountThatFollows) {
  Input input = input_of(2, 0, 100 * kSecond, kNever);
  input.timers.clc[1] = kNever;
  input.timers.clc_takes = kSecond;
  const SimulationResult result = judged(input, {});
  // CLC 1 takes 1 s and 30 us, and each other one begins 100 s behind the last: 1 + floor((2000 - 1) / 101).
  EXPECT_EQ(result.unforced, (std::vector<unsigned>{20, 1}));
  EXPECT_EQ(result.forced, (std::vector<unsigned>{0, 0}));
  // Each CLC asks 3 others three times; the one that begins at 1920 s ends, and the next begins after the end.
  EXPECT_EQ(result.protocol_messages_inside, 9u * 21);
  EXPECT_EQ(result.protocol_messages_between, 0u);
  EXPECT_EQ(result.most_stored, (std::vector<std::size_t>{20, 1}));
}

TEST(Fedsim, CollectionsCostWhatThePaperSays) {
  const Input input = input_of(3, 0, kNever, 400 * kSecond);
  const SimulationResult result = judged(input, {});
  EXPECT_EQ(result.collections.size(), 5u);
  EXPECT_EQ(result.protocol_messages_between, 5u * 3 * 2);  // N-1 requests, answers and collect requests
  EXPECT_EQ(result.protocol_messages_inside, 3u * 9 + 5 * 9);
  for (const auto& collection : result.collections) EXPECT_EQ(collection.after, (std::vector<std::size_t>{1, 1, 1}));
}

TEST(Fedsim, ASupposedFailureChangesNothing) {
  const Input input = input_of(2, 60, 150 * kSecond, kNever);
  const SimulationResult with = judged(input, {.seed = 7, .suppositions = 50});
  EXPECT_EQ(with.suppositions, 50u);
  EXPECT_GE(with.supposed_back, 50u);
  EXPECT_GT(with.supposed_lost_s, 0);
  EXPECT_LT(with.supposed_lost_s, 100 * 2000.0);
  EXPECT_EQ(with.recoveries, 0u);
  EXPECT_EQ(with.lost_s, 0);
  const SimulationResult without = judged(input, {.seed = 7});
  EXPECT_EQ(with.forced, without.forced);
  EXPECT_EQ(with.delivered, without.delivered);
}

TEST(Fedsim, AFailureCostsItsClusterTheTimeSinceItsLastClc) {
  // Clusters that do not talk: each supposed failure takes one back, by at most its interval.
  const SimulationResult result = judged(input_of(2, 0, 100 * kSecond, kNever), {.suppositions = 400});
  EXPECT_EQ(result.supposed_back, 400u);
  EXPECT_NEAR(result.supposed_lost_s / 400, 50, 8);  // uniform in 100 s: the standard error is 1.4 s
}

TEST(Fedsim, RandomProgramsSendAsOftenAsTheyShould) {
  Input input = input_of(2, 0, 150 * kSecond, 400 * kSecond);
  input.application.messages.clear();
  input.application.mean_computation_us = {4e6, 8e6};
  input.application.sends = {{0.5, 0.1}, {0.1, 0.5}};
  const SimulationResult result = judged(input, {.seed = 3, .failures = 4});
  // 4 nodes, 2000 s: 2000 and 1000 computations; five standard deviations.
  EXPECT_NEAR(result.messages[0][0], 1000, 5 * 32);
  EXPECT_NEAR(result.messages[1][1], 500, 5 * 22);
  EXPECT_NEAR(result.messages[0][1], 200, 5 * 15);
  EXPECT_NEAR(result.messages[1][0], 100, 5 * 10);
}

TEST(Fedsim, FailuresOfTheTopologysMtbf) {
  Input input = input_of(2, 40, 150 * kSecond, kNever);
  input.topology.mtbf = 200 * kSecond;
  unsigned recoveries = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) recoveries += judged(input, {.seed = seed}).recoveries;
  EXPECT_NEAR(recoveries, 80, 5 * 9);
}

TEST(Fedsim, ASeedRepeatsItsRun) {
  const Input input = input_of(3, 40, 150 * kSecond, 400 * kSecond);
  const auto trace = [&](std::uint64_t seed) {
    std::string text;
    SimulationResult result;
    EXPECT_TRUE(simulate(input,
                         {.seed = seed,
                          .failures = 3,
                          .trace = 3,
                          .sink = [&](const TraceEvent& event) { text += encode_event(event); }},
                         &result)
                    .ok());
    return text;
  };
  EXPECT_EQ(trace(5), trace(5));
  EXPECT_NE(trace(5), trace(6));
}

TEST(Fedsim, TraceLevelsLeaveOut) {
  const Input input = input_of(2, 20, 150 * kSecond, kNever);
  const auto kinds = [&](int level) {
    std::vector<int> counts(6);
    SimulationResult result;
    EXPECT_TRUE(simulate(input,
                         {.failures = 2,
                          .trace = level,
                          .sink = [&](const TraceEvent& e) { ++counts[static_cast<std::size_t>(e.kind)]; }},
                         &result)
                    .ok());
    return counts;
  };
  EXPECT_EQ(kinds(0), (std::vector<int>{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(kinds(1), (std::vector<int>{1, 0, 0, 0, 0, 2}));
  const std::vector<int> commits = kinds(2), all = kinds(3);
  EXPECT_GT(commits[3], 10);
  EXPECT_EQ(commits[1], 0);
  EXPECT_EQ(all[3], commits[3]);
  EXPECT_GE(all[1], 40);
}

TEST(FedsimReport, MeansAndErrorsOverRuns) {
  const Json runs = summarize({Json{{"forced", {1, 4}}, {"lost_s", 2.0}}, Json{{"forced", {3, 4}}, {"lost_s", 2.0}}});
  EXPECT_EQ(runs.dump(),
            "{\"forced\":[{\"mean\":2.0,\"error\":1.0},{\"mean\":4.0,\"error\":0.0}],"
            "\"lost_s\":{\"mean\":2.0,\"error\":0.0}}");
}

}  // namespace
}  // namespace shadowib::fedsim
