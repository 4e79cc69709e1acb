#include "shadowib/cli/supervise/retry_on.h"

#include <gtest/gtest.h>

namespace shadowib::cli {
namespace {

TEST(ExitCodes, AreNumbersAndRanges) {
  ExitCodes codes;
  ASSERT_TRUE(parse_exit_codes("1,5,250-255", &codes).ok());
  EXPECT_EQ(codes.count(), 8u);
  for (const unsigned code : {1u, 5u, 250u, 255u}) EXPECT_TRUE(codes.test(code)) << code;
  ASSERT_TRUE(parse_exit_codes("7", &codes).ok());
  EXPECT_EQ(codes.count(), 1u) << "those of before are gone";
}

TEST(ExitCodes, OthersAreRefused) {
  ExitCodes codes;
  for (const char* text : {"", "0", "256", "1,", ",1", "a", "5-3", "1-", "-3", "1-2-3", "1 2"})
    EXPECT_EQ(parse_exit_codes(text, &codes).code(), Code::kUsage) << text;
}

}  // namespace
}  // namespace shadowib::cli
