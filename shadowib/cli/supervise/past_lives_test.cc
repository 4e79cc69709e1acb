#include "shadowib/cli/supervise/past_lives.h"

#include <gtest/gtest.h>

#include <string>

#include "shadowib/cli/supervise/bounds.h"

namespace shadowib::cli {
namespace {

std::vector<PastEvent> past(const std::vector<std::string>& lines) {
  std::vector<PastEvent> events(lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i)
    EXPECT_TRUE(parse_event("{\"time\":\"2026-11-25T19:40:01.000Z\"," + lines[i] + "}", &events[i])) << lines[i];
  return events;
}

const std::string kStarted = R"("event":"started")", kSaved = R"("event":"checkpoint","number":3,"kill":false)",
                  kSavedAndEnded = R"("event":"checkpoint","number":4,"kill":true)",
                  kRestarted = R"("event":"restart","number":4)", kFailed = R"("event":"failure","member":0)",
                  kNotEnded = R"("event":"kill_failed","number":4)";

TEST(PastLives, AnEndOnRequestIsPlannedUntilTheNextLife) {
  EXPECT_EQ(planned_end({}), kFromTheBeginning);
  EXPECT_EQ(planned_end(past({kStarted, kSavedAndEnded})), 4u);
  EXPECT_EQ(planned_end(past({kStarted, kSavedAndEnded, kRestarted})), kFromTheBeginning);
  EXPECT_EQ(planned_end(past({kStarted, kSavedAndEnded, kRestarted, kFailed})), kFromTheBeginning);
  EXPECT_EQ(planned_end(past({kStarted, kSaved})), kFromTheBeginning);
  EXPECT_EQ(planned_end(past({kStarted, kSavedAndEnded, kNotEnded})), kFromTheBeginning);
  EXPECT_EQ(ends_on_request(past({kStarted, kSavedAndEnded, kNotEnded, kSavedAndEnded})), 1);
  EXPECT_EQ(ends_on_request(past({kStarted, kSavedAndEnded, kRestarted, kSavedAndEnded, kNotEnded, kNotEnded})), 1);
  EXPECT_EQ(ends_on_request(past({kStarted, kSaved, kSavedAndEnded, kRestarted, kSavedAndEnded})), 2);
  EXPECT_EQ(last_end_on_request(past({kStarted, kSaved})), nullptr);
  EXPECT_EQ(count_events(past({kStarted, kSaved, kRestarted, kStarted}), "started"), 2);
}

TEST(PastLives, ALifeBeginsWithItsSet) {
  EXPECT_EQ(set_of_life({}), kFromTheBeginning);
  EXPECT_EQ(set_of_life(past({kStarted, kSaved})), kFromTheBeginning);
  EXPECT_EQ(set_of_life(past({kStarted, kSavedAndEnded, kRestarted, kSaved})), 4u);
  EXPECT_EQ(set_of_life(past({kRestarted, kStarted})), kFromTheBeginning);
}

}  // namespace
}  // namespace shadowib::cli
