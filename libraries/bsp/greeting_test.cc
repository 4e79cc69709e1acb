// Greetings, and those that are refused: hazard B13, a late process of an old run.
#include "libraries/bsp/greeting.h"

#include <gtest/gtest.h>

namespace shadowib::bsp {
namespace {

Greeting example() {
  Greeting greeting;
  greeting.epoch = 0xabcdef;
  greeting.process = 1;
  greeting.processes = 3;
  greeting.lid = 17;
  greeting.mtu = 5;
  greeting.slots_key = 99;
  greeting.slots_address = 1ull << 40;
  greeting.gid.raw[15] = 4;
  greeting.queue_pairs = {10, 0, 12};
  return greeting;
}

TEST(Greeting, ComesBack) {
  const std::vector<std::byte> value = encode(example());
  Greeting read;
  ASSERT_EQ(decode(value.data(), value.size(), 0xabcdef, 1, 3, &read), "");
  EXPECT_EQ(read.queue_pairs, example().queue_pairs);
  EXPECT_EQ(read.slots_address, 1ull << 40);
  EXPECT_EQ(read.slots_key, 99u);
  EXPECT_EQ(read.lid, 17);
  EXPECT_EQ(read.gid.raw[15], 4);
}

TEST(Greeting, OfAnotherRunProcessOrSizeIsRefused) {
  const std::vector<std::byte> value = encode(example());
  Greeting read;
  EXPECT_EQ(decode(value.data(), value.size(), 0xabcdee, 1, 3, &read), "it is of another run");
  EXPECT_EQ(decode(value.data(), value.size(), 0xabcdef, 2, 3, &read), "it is another process's");
  EXPECT_EQ(decode(value.data(), value.size(), 0xabcdef, 1, 4, &read), "it counts 3 processes instead of 4");
  EXPECT_EQ(decode(value.data(), value.size() - 4, 0xabcdef, 1, 3, &read), "its size is wrong");
  EXPECT_EQ(decode(value.data(), 3, 0xabcdef, 1, 3, &read), "it is too short");
  EXPECT_TRUE(read.queue_pairs.empty());
}

// A field in native order would be another number on one of them.
TEST(Greeting, IsTheSameOnEachArchitecture) {
  const std::vector<std::byte> value = encode(example());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(value.data()), 4), "BSP1");
  EXPECT_EQ(static_cast<int>(value[8]), 0xef) << "the epoch's lowest byte";
}

TEST(Greeting, OfAnotherByteOrderIsUnderstoodAndOfAnotherLayoutRefused) {
  Greeting other = example(), read;
  other.layout ^= kBigEndian;
  std::vector<std::byte> value = encode(other);
  EXPECT_EQ(decode(value.data(), value.size(), 0xabcdef, 1, 3, &read), "");
  EXPECT_EQ(read.layout ^ layout_of_values(), kBigEndian);
  other.layout ^= 4;
  value = encode(other);
  EXPECT_EQ(decode(value.data(), value.size(), 0xabcdef, 1, 3, &read),
            "its processor lays out long, pointers or long double otherwise; one job has one layout");
}

TEST(Greeting, NamesOfRunsDiffer) {
  EXPECT_NE(greeting_name(1, 0), greeting_name(2, 0));
  EXPECT_NE(greeting_name(1, 0), greeting_name(1, 1));
  EXPECT_LE(greeting_name(~0ull, kMaxProcesses).size() + 6, 64u);  // ".ready"
}

}  // namespace
}  // namespace shadowib::bsp
