// What a member reads in the request of a checkpoint command, and in the choice that comes with "go". Who tells
// people that it gives up.
#include <gtest/gtest.h>

#include <string>

#include "hooks/agent/round_messages.h"
#include "hooks/agent/tests/directory_job.h"
#include "hooks/job/current_job.h"

namespace shadowib {
namespace {

const Fields kRequest{{"n", "1"},         {"members", "0"},       {"set", std::string(32, '0')},
                      {"near", ""},       {"timeout_ms", "1000"}, {"mem_place", "/mem"},
                      {"compress", "lz4"}};

TEST(RoundRequest, TakesTheCommandsChoice) {
  RoundRequest request;
  ASSERT_TRUE(request.parse(encode_fields(kRequest)).ok());
  EXPECT_EQ(request.compression, Compression::kLz4);
  EXPECT_TRUE(request.take_choice(encode_fields({{"near", "/mem"}, {"compress", "zstd"}})).ok());
  EXPECT_EQ(request.near, "/mem");
  EXPECT_EQ(request.compression, Compression::kZstd);
  EXPECT_TRUE(request.take_choice(encode_fields({{"near", ""}, {"compress", "none"}})).ok());
  EXPECT_EQ(request.near, "");
  EXPECT_EQ(request.compression, Compression::kNone);
}

TEST(RoundRequest, RefusesACompressionThatItDoesNotKnow) {
  Fields asked = kRequest;
  asked["compress"] = "brotli";
  RoundRequest request;
  const Status status = request.parse(encode_fields(asked));
  EXPECT_EQ(status.code(), Code::kVersion);
  EXPECT_NE(std::string(status.text()).find("brotli"), std::string::npos) << status.text();
}

TEST(RoundRequest, RefusesAChoiceThatItDoesNotKnow) {
  RoundRequest request;
  ASSERT_TRUE(request.parse(encode_fields(kRequest)).ok());
  const Status status = request.take_choice(encode_fields({{"near", "/mem"}, {"compress", "brotli"}}));
  EXPECT_EQ(status.code(), Code::kVersion);
  EXPECT_NE(std::string(status.text()).find("brotli"), std::string::npos) << status.text();
  EXPECT_EQ(request.near, "");
  EXPECT_EQ(request.compression, Compression::kLz4);
  EXPECT_EQ(request.take_choice("protocol=0").code(), Code::kVersion);
}

// An older command, or one that chose itself, says nothing with "go".
TEST(RoundRequest, LeavesARequestAloneThatHasNoChoice) {
  Fields asked = kRequest;
  asked.erase("mem_place");
  RoundRequest request;
  ASSERT_TRUE(request.parse(encode_fields(asked)).ok());
  EXPECT_TRUE(request.take_choice("").ok());
  EXPECT_EQ(request.compression, Compression::kLz4);
}

// Members 0 and 1 of a checkpoint whose command has given up.
class GivesUp : public ::testing::Test {
 protected:
  GivesUp() {
    Fields asked = kRequest;
    asked["members"] = "0,1";
    asked["last"] = "0";
    EXPECT_TRUE(request_.parse(encode_fields(asked)).ok());
  }

  bool tells(std::uint32_t member, const Status& status) {
    g_job.info.member = member;
    return RoundMessages(request_).give_up(status);
  }

  void command_gives_up(const Status& status, bool again) {
    Fields reason = fields_of_status(status);
    reason["again"] = again ? "1" : "0";
    RoundMessages messages(request_);
    ASSERT_TRUE(job_.exchange().publish(messages.key("fail/command"), encode_fields(reason)).ok());
    (void)job_.exchange().claim(messages.abort_key(), status.text()).ok();
  }

  const Status failed_ = Status(Code::kIo, EIO, "a fault"), passing_ = Status(Code::kRefused, EAGAIN, "it passes");
  DirectoryJob job_{"job.1"};
  RoundRequest request_;
};

// The second member was faster, and the command has heard of its reason when the first one has its own.
TEST_F(GivesUp, OneMemberTellsOfAReasonThatBothHave) {
  EXPECT_TRUE(tells(1, failed_));
  command_gives_up(failed_, false);
  EXPECT_FALSE(tells(0, failed_));
}

// The command heard of the second member's reason before that one came to the abort.
TEST_F(GivesUp, TheFirstMemberTellsForTheCommand) {
  command_gives_up(failed_, false);
  EXPECT_FALSE(tells(1, failed_));
  EXPECT_TRUE(tells(0, Status(Code::kAborted, 0, "given up")));
}

TEST_F(GivesUp, NobodyTellsOfWhatIsTriedAgain) {
  EXPECT_FALSE(tells(1, passing_));
  command_gives_up(passing_, true);
  EXPECT_FALSE(tells(0, passing_));
}

TEST_F(GivesUp, TheFirstMemberTellsOfTheLastTry) {
  EXPECT_FALSE(tells(1, passing_));
  command_gives_up(passing_, false);
  EXPECT_TRUE(tells(0, passing_));
}

}  // namespace
}  // namespace shadowib
