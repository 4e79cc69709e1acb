#include "shadowib/cli/supervise/time_limit.h"

#include <gtest/gtest.h>
#include <time.h>

#include <cstdlib>
#include <string>

namespace shadowib::cli {
namespace {

constexpr std::int64_t kNow = 1795773600;  // 2026-11-27 10:00:00 UTC

class TimeLimit : public ::testing::Test {
 protected:
  void SetUp() override { in_zone("UTC0"); }
  void TearDown() override { in_zone("UTC0"); }
  static void in_zone(const char* zone) {
    ::setenv("TZ", zone, 1);
    ::tzset();
  }
  static std::int64_t left(const std::string& text, const std::string& slurm = "") {
    std::int64_t end_s = 0;
    const Status status = parse_until(text, kNow, slurm, &end_s);
    EXPECT_TRUE(status.ok()) << text << ": " << status.text();
    return end_s - kNow;
  }
};

TEST_F(TimeLimit, IsADurationOrAMoment) {
  EXPECT_EQ(left("90"), 90);
  EXPECT_EQ(left("90s"), 90);
  EXPECT_EQ(left("15m"), 900);
  EXPECT_EQ(left("1.5h"), 5400);
  EXPECT_EQ(left("2d"), 172800);
  EXPECT_EQ(left("18:30"), 30600);
  EXPECT_EQ(left("18:30:15"), 30615);
  EXPECT_EQ(left("09:59"), 86340) << "tomorrow";
  EXPECT_EQ(left("10:00"), 86400);
  EXPECT_EQ(left("2026-11-28T10:00"), 86400);
  EXPECT_EQ(left("2026-11-27T10:00:07"), 7);
  EXPECT_EQ(left("@1795773700"), 100);
  EXPECT_EQ(left("slurm", "1795777200"), 3600);
}

TEST_F(TimeLimit, FollowsTheClockHere) {
  in_zone("XYZ-3");  // three hours ahead of UTC: it is 13:00
  EXPECT_EQ(left("18:30"), 19800);
  EXPECT_EQ(left("12:00"), 82800);
}

TEST_F(TimeLimit, WhatIsNoTimeIsRefused) {
  for (const char* text : {"", "soon", "5x", "-5", "0", "nan", "inf", "1e300", "-1e300", "18:30x", "25:00",
                           "2026-11-27", "@", "@-5", "@1795773600", "2026-11-27T09:00", "slurm"}) {
    std::int64_t end_s = 0;
    EXPECT_EQ(parse_until(text, kNow, "", &end_s).code(), Code::kUsage) << text;
  }
}

PastEvent took(const std::string& name, int took_s) {
  PastEvent event;
  EXPECT_TRUE(parse_event(R"({"time":"2026-11-27T10:00:00.000Z","event":")" + name + R"(","took_ms":)" +
                              std::to_string(took_s * 1000) + "}",
                          &event));
  return event;
}

TEST_F(TimeLimit, TheLastSaveHasTime) {
  std::vector<PastEvent> events;
  EXPECT_DOUBLE_EQ(last_save_s(events, 300, 1000), 60) << "nothing is known";
  EXPECT_DOUBLE_EQ(last_save_s(events, 40, 1000), 40);
  EXPECT_DOUBLE_EQ(last_save_s(events, 300, 20), 10);
  events.push_back(took("checkpoint", 1));
  EXPECT_DOUBLE_EQ(last_save_s(events, 300, 1000), 2);
  for (int took_s = 2; took_s <= 100; ++took_s) events.push_back(took("checkpoint", took_s));
  EXPECT_DOUBLE_EQ(last_save_s(events, 300, 1000), 1.5 * 95);
}

PastEvent wrote(double bytes, int save_s, int took_s) {
  PastEvent event = took("checkpoint", took_s);
  event.json["bytes"] = bytes;
  event.json["save_ms"] = save_s * 1000;
  return event;
}

TEST_F(TimeLimit, ASaveHasTimeForTheLargestOfTheLatestSets) {
  std::vector<PastEvent> events;
  EXPECT_LT(save_time_s(events), 0) << "nothing is known";
  events.push_back(wrote(1e9, 10, 13));
  EXPECT_DOUBLE_EQ(save_time_s(events), 1.5 * (3 + 10));
  events.push_back(wrote(4e9, 20, 21));  // quicker, and larger: at the slower rate, with the longer stop
  EXPECT_DOUBLE_EQ(save_time_s(events), 1.5 * (3 + 40));
  for (int small = 0; small < 7; ++small) events.push_back(wrote(1e8, 1, 2));
  EXPECT_DOUBLE_EQ(save_time_s(events), 1.5 * (3 + 40)) << "the next one may be whole again";
  events.push_back(wrote(1e8, 1, 2));
  EXPECT_DOUBLE_EQ(save_time_s(events), 1.5 * (3 + 1)) << "the job has become small";
  events.push_back(wrote(0, 5, 6));
  EXPECT_DOUBLE_EQ(save_time_s(events), 1.5 * (6 + 1)) << "no bytes, no rate";
}

TEST_F(TimeLimit, TheLastSaveHasTimeForItsFarCopy) {
  std::vector<PastEvent> events{took("checkpoint", 4), took("flush", 20)};
  EXPECT_DOUBLE_EQ(last_save_s(events, 300, 1000), 1.5 * (4 + 20));
  for (int copies = 0; copies < 19; ++copies) events.push_back(took("flush", 10));
  EXPECT_DOUBLE_EQ(last_save_s(events, 300, 1000), 1.5 * (4 + 10));
}

}  // namespace
}  // namespace shadowib::cli
