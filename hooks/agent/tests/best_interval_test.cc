// The chosen interval is Young's, and simulated jobs lose little more than with the best one there is.
#include "hooks/agent/best_interval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace shadowib {
namespace {

TEST(BestInterval, IsYoungsAndDalysForCheckpointsThatCostMuch) {
  for (const double cost : {1e-4, 0.02, 1.0, 7.0, 300.0})
    for (const double mtbf : {10.0, 3600.0, 86400.0, 3e7}) {
      const double expected = cost < mtbf / 2 ? std::sqrt(2 * cost * mtbf) : mtbf;
      EXPECT_NEAR(best_interval_s(cost, mtbf), expected, expected * 1e-9) << cost << " " << mtbf;
    }
  EXPECT_EQ(best_interval_s(0, 100), 0);
}

TEST(BestInterval, Roots) {
  for (const double x : {0.0, 1e-12, 0.25, 1.0, 2.0, 1e6, 1e15})
    EXPECT_NEAR(square_root(x), std::sqrt(x), std::sqrt(x) * 1e-9 + 1e-18) << x;
}

// Time from the begin of a job of `work_s` to its end. A failure takes the job back to its newest set; a restart
// takes `restart_s`.
double run_of_job(double interval_s, double cost_s, double restart_s, double mtbf_s, double work_s,
                  std::mt19937_64* random) {
  std::exponential_distribution<double> failure(1 / mtbf_s);
  double time = 0, saved = 0;
  for (double next = failure(*random);;) {
    const double part = std::min(interval_s, work_s - saved);
    const bool last = part < interval_s;
    const double end = time + part + (last ? 0 : cost_s);
    if (end < next) {
      time = end;
      saved += part;
      if (last) return time;
      continue;
    }
    time = next + restart_s;  // a failure within a restart begins it anew
    next = time + failure(*random);
  }
}

double mean_of_runs(double interval_s, double cost_s, double mtbf_s, double work_s) {
  double sum = 0;
  constexpr int kRuns = 200;
  for (int run = 0; run < kRuns; ++run) {
    std::mt19937_64 random(static_cast<std::uint64_t>(run));  // each interval meets the same failures
    sum += run_of_job(interval_s, cost_s, 5, mtbf_s, work_s, &random);
  }
  return sum / kRuns;
}

TEST(BestInterval, SimulatedJobsLoseAtMostATenthMoreThanWithTheBestOfAll) {
  for (const double cost : {0.5, 5.0, 30.0}) {
    const double mtbf = 3600, work = 100 * 3600;
    double best = 1e300;
    for (double interval = 10; interval < 3600; interval *= 1.1)
      best = std::min(best, mean_of_runs(interval, cost, mtbf, work));
    const double ours = mean_of_runs(best_interval_s(cost, mtbf), cost, mtbf, work);
    EXPECT_LE(ours - work, 1.1 * (best - work)) << "a checkpoint costs " << cost << " s";
  }
}

}  // namespace
}  // namespace shadowib
