// What a member reads in the request of a checkpoint command, and in the choice that comes with "go".
#include <gtest/gtest.h>

#include <string>

#include "hooks/agent/round_messages.h"

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

}  // namespace
}  // namespace shadowib
