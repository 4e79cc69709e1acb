#include "libraries/bsp/pattern.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace shadowib::bsp {
namespace {

// struct { short a; double b; int c[2]; char d[3]; }, 32 bytes.
Pattern record(std::uint64_t phase = 0) {
  Pattern pattern(32, phase);
  pattern.add(0, 2, 1);
  pattern.add(8, 8, 1);
  pattern.add(16, 4, 2);
  return pattern;
}

Pattern numbers(std::uint32_t width) {
  Pattern pattern(width, 0);
  pattern.add(0, width, 1);
  return pattern;
}

std::string turned(const Pattern& pattern, std::uint64_t at, std::string data) {
  pattern.turn(at, reinterpret_cast<std::byte*>(data.data()), data.size());
  return data;
}

TEST(Pattern, TurnsNumbersOfAnArray) {
  EXPECT_EQ(turned(numbers(2), 0, "abcdef"), "badcfe");
  EXPECT_EQ(turned(numbers(4), 8, "abcdefgh"), "dcbahgfe");
  EXPECT_EQ(turned(numbers(8), 0, "abcdefgh"), "hgfedcba");
  EXPECT_EQ(turned(numbers(16), 0, "0123456789abcdef"), "fedcba9876543210");
  EXPECT_EQ(turned(Pattern(1, 0), 0, "abc"), "abc") << "characters";
}

TEST(Pattern, TurnsMembersOfRecordsAndLeavesTheRest) {
  const std::string one = "ab......ABCDEFGH01234567xyz....!";
  EXPECT_EQ(one.size(), 32u);
  EXPECT_EQ(turned(record(), 0, one + one), "ba......HGFEDCBA32107654xyz....!ba......HGFEDCBA32107654xyz....!");
  EXPECT_EQ(turned(record(), 40, "ABCDEFGH"), "HGFEDCBA") << "the second element's b";
  EXPECT_EQ(turned(record(), 20, "4567xyz....!ab"), "7654xyz....!ba");
  EXPECT_EQ(turned(record(16), 0, "01234567xyz....!ab......"), "32107654xyz....!ba......") << "registered from c on";
}

TEST(Pattern, FindsWhatSplitsANumber) {
  for (const std::uint64_t at : {1, 9, 15, 17, 19, 21, 33}) EXPECT_TRUE(record().splits(at)) << at;
  for (const std::uint64_t at : {0, 2, 5, 8, 16, 20, 24, 25, 27, 31, 32, 34}) EXPECT_FALSE(record().splits(at)) << at;
  EXPECT_TRUE(record(16).splits(1));
  EXPECT_FALSE(record(16).splits(4));
  EXPECT_TRUE(record(16).splits(17));
  EXPECT_FALSE(record(16).splits(18));
  EXPECT_FALSE(Pattern(1, 0).splits(3));
}

TEST(Pattern, AgreesWhereNumbersAreTheSame) {
  Pattern pair(16, 0);
  pair.add(0, 8, 2);
  EXPECT_TRUE(pair.agrees(numbers(8), 1 << 20));
  EXPECT_TRUE(numbers(8).agrees(pair, 1 << 20));
  EXPECT_FALSE(pair.agrees(numbers(4), 1 << 20));
  EXPECT_FALSE(numbers(4).agrees(Pattern(1, 0), 4)) << "characters are none";
  EXPECT_TRUE(record(8).agrees(numbers(8), 8));
  EXPECT_FALSE(record(8).agrees(numbers(8), 16));
  EXPECT_TRUE(record().agrees(record(), 1 << 20));
  EXPECT_FALSE(record().agrees(record(16), 32));
}

TEST(Pattern, IsReadAsItWasTold) {
  const std::vector<std::byte> told = record(16).encode();
  EXPECT_EQ(static_cast<int>(told[0]), 32) << "lowest byte first";
  Pattern read;
  ASSERT_TRUE(read.decode(told.data(), told.size()));
  EXPECT_EQ(read.encode(), told);
  EXPECT_FALSE(read.decode(told.data(), told.size() - 8));
  EXPECT_FALSE(read.decode(told.data(), 3));
}

// A width of 0 would divide by it, and what is beyond the unit would be turned twice.
TEST(Pattern, ToldWronglyIsRefused) {
  const auto is_read = [](std::uint64_t unit, std::uint64_t offset, std::uint32_t width, std::uint64_t count) {
    Pattern told(unit, 0), read;
    told.add(0, 1, 1);
    told.add(offset, width, count);
    const std::vector<std::byte> bytes = told.encode();
    return read.decode(bytes.data(), bytes.size());
  };
  EXPECT_TRUE(is_read(32, 8, 8, 3));
  EXPECT_FALSE(is_read(32, 8, 0, 3));
  EXPECT_FALSE(is_read(32, 8, 3, 3));
  EXPECT_FALSE(is_read(32, 8, 8, 4));
  EXPECT_FALSE(is_read(32, 40, 8, 0));
  EXPECT_FALSE(is_read(32, 0, 8, 1));
  EXPECT_FALSE(is_read(0, 8, 8, 3));
}

}  // namespace
}  // namespace shadowib::bsp
