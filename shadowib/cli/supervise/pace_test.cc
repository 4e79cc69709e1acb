#include "shadowib/cli/supervise/pace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>

namespace shadowib::cli {
namespace {

PastEvent event_at(int second, const std::string& rest) {
  char time[64];
  std::snprintf(time, sizeof(time), "{\"time\":\"2026-11-25T19:%02d:%02d.000Z\",", second / 60, second % 60);
  PastEvent event;
  EXPECT_TRUE(parse_event(time + rest + "}", &event)) << rest;
  return event;
}

// Part of the time that is lost when failures come at random with mean `m` and a checkpoint of cost `c` follows each
// `t` of work. Source: the mean time to get through t + c without a failure is m (e^((t + c) / m) - 1).
double lost_part(double t, double c, double m) { return m * (std::exp((t + c) / m) - 1) / t - 1; }

TEST(Pace, TheIntervalLosesTheLeast) {
  for (const auto& [cost, mean] : {std::pair{0.1, 100.0}, {1.0, 60.0}, {5.0, 3600.0}, {30.0, 600.0}}) {
    double best = 0, least = 1e9;
    for (double t = cost / 20; t < 4 * mean; t *= 1.002)
      if (const double lost = lost_part(t, cost, mean); lost < least) least = lost, best = t;
    EXPECT_NEAR(daly_interval_s(cost, mean), best, 0.03 * best) << cost << " " << mean;
  }
  EXPECT_EQ(daly_interval_s(10, 4), 4);
}

TEST(Pace, AnnouncedEndsAreNoFailures) {
  const std::vector<PastEvent> events{event_at(0, R"("event":"started")"),
                                      event_at(100, R"("event":"checkpoint","number":1,"kill":true)"),
                                      event_at(200, R"("event":"restart","number":1)"),
                                      event_at(260, R"("event":"failure","member":0)"),
                                      event_at(261, R"("event":"failure","member":1)"),
                                      event_at(262, R"("event":"ended")"),
                                      event_at(270, R"("event":"restart","number":1)")};
  const RunTime seen = run_time(events, events.back().time_ms + 30'000);
  EXPECT_EQ(seen.failures, 1u);
  EXPECT_DOUBLE_EQ(seen.run_s, 100 + 60 + 30);
  EXPECT_DOUBLE_EQ(mean_time_s(seen, 210), 200);
}

TEST(Pace, CheckpointsCostNoMoreThanTheirPart) {
  const std::vector<PastEvent> events{event_at(0, R"("event":"started")"),
                                      event_at(1, R"("event":"checkpoint","number":1,"stopped_ms":2000)")};
  const Pace often{.mtbf_s = 10, .overhead = 0.05};
  EXPECT_DOUBLE_EQ(interval_s(often, events, events.back().time_ms), 40);
  const Pace fixed{.interval_s = 7};
  EXPECT_DOUBLE_EQ(interval_s(fixed, events, events.back().time_ms), 7);
  EXPECT_DOUBLE_EQ(first_interval_s({.interval_s = 1000}, events, events.back().time_ms), 1000);
  const Pace seldom{.mtbf_s = 1e6};
  EXPECT_GT(interval_s(seldom, events, events.back().time_ms), 60);
  EXPECT_DOUBLE_EQ(first_interval_s(seldom, events, events.back().time_ms), 60);
}

TEST(Pace, TheFirstCheckpointWaitsForThoseWhoJoin) {
  constexpr std::int64_t kBegan = 100'000'000'000, kSecond = 1'000'000'000;
  EXPECT_EQ(first_due_ns(kBegan, 0, 5), kBegan + 5 * kSecond) << "nobody has joined";
  EXPECT_EQ(first_due_ns(kBegan, kBegan + 3 * kSecond, 5), kBegan + 8 * kSecond);
  EXPECT_EQ(first_due_ns(kBegan, kBegan + 300 * kSecond, 5), kBegan + 50 * kSecond)
      << "or never, if others always join";
}

TEST(Retry, PausesGrow) {
  EXPECT_DOUBLE_EQ(retry_s(1, 1000, false, true), 2);
  EXPECT_DOUBLE_EQ(retry_s(3, 1000, false, false), 8);
  EXPECT_DOUBLE_EQ(retry_s(60, 1000, false, false), 64);
  EXPECT_DOUBLE_EQ(retry_s(3, 0.5, false, false), 0.5);
}

// It begins 2 s before the end, if checkpoints are quick.
TEST(Retry, OfTheLastCheckpointComesAtOnceIfItWasBusy) {
  for (const unsigned failures : {1u, 9u}) EXPECT_DOUBLE_EQ(retry_s(failures, 1000, true, true), 0.25);
  EXPECT_DOUBLE_EQ(retry_s(1, 1000, true, false), 2) << "what fails for a lasting reason is not tried in a hurry";
}

}  // namespace
}  // namespace shadowib::cli
