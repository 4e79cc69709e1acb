// Whom the death of a member is told, before and after its restart is over.
#include "hooks/imager/restore/meeting.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>

#include "hooks/job/protocol.h"
#include "shadowib/base/status.h"

namespace shadowib {
namespace {

constexpr const char* kEpoch = "g1-00000007";
constexpr int kKilled = 9, kExited = 0;  // as wait() tells it

class MeetingTest : public ::testing::Test {
 protected:
  MeetingTest() {
    EXPECT_NE(::mkdtemp(directory_), nullptr);
    std::snprintf(job_.exchange, sizeof(job_.exchange), "dir:%s/x", directory_);
    std::strcpy(job_.epoch, kEpoch);
    EXPECT_TRUE(Exchange::open(job_.exchange, true, &exchange_).ok());
  }
  ~MeetingTest() override { std::filesystem::remove_all(directory_); }

  std::string said(const std::string& key) {
    std::string value;
    bool found = false;
    EXPECT_TRUE(exchange_->get(key, &value, &found).ok());
    return found ? value : "nothing";
  }
  std::string abort() { return said(std::string(kEpoch) + "/restart/abort"); }
  std::string death() {
    Fields fields;
    const std::string text = said(death_key(kEpoch));
    return decode_fields(text, &fields) && fields.count("how") != 0 ? fields["member"] + ": " + fields["how"] : text;
  }

  char directory_[32] = "/tmp/meeting-XXXXXX";
  JobInfo job_{};
  std::unique_ptr<Exchange> exchange_;
};

TEST_F(MeetingTest, ADeathBeforeTheEndOfARestartIsToldToThoseThatHaveComeToIt) {
  ASSERT_TRUE(exchange_->publish(std::string(kEpoch) + "/restart/done/0", "").ok());
  ExchangeMeeting(job_).member_ended(1, kKilled);
  EXPECT_EQ(abort(), "member 1 ended (signal 9) before the restart was over");
  EXPECT_EQ(death(), "1: signal 9");
}

TEST_F(MeetingTest, ADeathAfterItGivesUpNothing) {
  ASSERT_TRUE(exchange_->publish(std::string(kEpoch) + "/restart/done/1", "").ok());
  ExchangeMeeting(job_).member_ended(1, kKilled);
  EXPECT_EQ(abort(), "nothing");
  EXPECT_EQ(death(), "1: signal 9");
}

TEST_F(MeetingTest, AnEndIsNoDeath) {
  ASSERT_TRUE(exchange_->publish(std::string(kEpoch) + "/restart/done/1", "").ok());
  ExchangeMeeting(job_).member_ended(1, kExited);
  EXPECT_EQ(abort(), "nothing");
  EXPECT_EQ(death(), "nothing");
}

}  // namespace
}  // namespace shadowib
