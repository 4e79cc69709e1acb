#include "libraries/bsp/types.h"

#include <gtest/gtest.h>

namespace shadowib::bsp {
namespace {

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

struct Converted {
  std::string why;
  std::vector<std::byte> bytes;
};

Converted from(const char* target, char code, std::initializer_list<int> values) {
  Converted converted;
  const std::vector<std::byte> bytes = bytes_of(values);
  converted.why = convert(target, code, bytes.data(), bytes.size(), &converted.bytes);
  return converted;
}

// These run on x86-64.
TEST(Types, ValuesOfAnotherByteOrderAreTurned) {
  EXPECT_EQ(from("s390x", 'i', {0, 0, 1, 2, 0xff, 0xff, 0xff, 0xfe}).bytes,
            bytes_of({2, 1, 0, 0, 0xfe, 0xff, 0xff, 0xff}));
  EXPECT_EQ(from("s390x", 'h', {1, 2}).bytes, bytes_of({2, 1}));
  EXPECT_EQ(from("s390x", 'd', {0x3f, 0xf0, 0, 0, 0, 0, 0, 1}).bytes, bytes_of({1, 0, 0, 0, 0, 0, 0xf0, 0x3f}));
  EXPECT_NE(from("s390x", 'c', {1, 2, 3}).why.find("may be anything"), std::string::npos);
}

TEST(Types, LongGrowsWithItsSign) {
  EXPECT_EQ(from("i686", 'l', {0xfe, 0xff, 0xff, 0xff}).bytes,
            bytes_of({0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}));
  EXPECT_EQ(from("i686", 'L', {0xfe, 0xff, 0xff, 0xff}).bytes, bytes_of({0xfe, 0xff, 0xff, 0xff, 0, 0, 0, 0}));
}

TEST(Types, MessagesOfAnotherByteOrderAreTurnedOrRefused) {
  std::vector<std::byte> data = bytes_of({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(turn('i', data.data(), data.size()), "");
  EXPECT_EQ(data, bytes_of({4, 3, 2, 1, 8, 7, 6, 5}));
  EXPECT_EQ(turn(0, data.data(), 0), "");
  EXPECT_NE(turn(0, data.data(), 8).find("not known"), std::string::npos);
  EXPECT_NE(turn('c', data.data(), 8).find("may be anything"), std::string::npos);
  EXPECT_NE(turn('d', data.data(), 7).find("no whole numbers"), std::string::npos);
}

TEST(Types, WhatHasNoTypeStaysOnItsArchitecture) {
  EXPECT_EQ(from("x86_64", 0, {1, 2, 3}).bytes, bytes_of({1, 2, 3}));
  EXPECT_NE(from("aarch64", 0, {1, 2, 3}).why, "");
  EXPECT_NE(from("s390x", 'i', {1, 2, 3}).why, "");
  EXPECT_EQ(from("s390x", 0, {}).why, "");  // as a message without a tag
}

}  // namespace
}  // namespace shadowib::bsp
