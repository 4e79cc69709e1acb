// Registrations: order, look-up, removal.
#include "libraries/bsp/registers.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace shadowib::bsp {
namespace {

const auto kForget = [](void*) {};

// What a sync does with two processes that have the same addresses.
void commit(Registers* registers, std::size_t bytes) {
  for (int from = 0; from < 2; ++from)
    for (const auto& p : registers->pending()) {
      if (!p.is_push) continue;
      EXPECT_TRUE(registers->hear(from, {1000u * static_cast<unsigned>(from), bytes, p.key}));
    }
  registers->commit(kForget);
}

TEST(Registers, CountFromTheNextSuperstep) {
  Registers registers(2);
  int x[4];
  registers.push(x, sizeof(x), 7, nullptr);
  EXPECT_EQ(registers.find(x), Registers::kNone);
  commit(&registers, 16);
  ASSERT_NE(registers.find(x), Registers::kNone);
  EXPECT_EQ(registers.remote(registers.find(x), 1).address, 1000u);
  EXPECT_EQ(registers.remote(registers.find(x), 1).bytes, 16u);
  EXPECT_EQ(registers.find(x + 1), Registers::kNone);
}

TEST(Registers, TheNewestOfAnAddressIsFoundAndRemovedFirst) {
  Registers registers(2);
  int x[4];
  registers.push(x, 8, 1, nullptr);
  commit(&registers, 8);
  const std::uint32_t old = registers.find(x);
  registers.push(x, 16, 2, nullptr);
  commit(&registers, 16);
  EXPECT_NE(registers.find(x), old);
  EXPECT_EQ(registers.remote(registers.find(x), 0).bytes, 16u);
  EXPECT_TRUE(registers.pop(x));
  EXPECT_EQ(registers.remote(registers.find(x), 0).bytes, 16u) << "a removal counts from the next superstep";
  commit(&registers, 0);
  EXPECT_EQ(registers.find(x), old);
  EXPECT_TRUE(registers.pop(x));
  EXPECT_FALSE(registers.pop(x)) << "it is removed already";
  commit(&registers, 0);
  EXPECT_EQ(registers.find(x), Registers::kNone);
  EXPECT_EQ(registers.count(), 0u);
}

TEST(Registers, APopRemovesThePushOfItsSuperstep) {
  Registers registers(2);
  int x, forgotten = 0;
  registers.push(&x, 4, 1, &forgotten);
  EXPECT_TRUE(registers.pop(&x));
  EXPECT_FALSE(registers.pop(&x));
  registers.hear(0, {});
  std::vector<void*> removed;
  registers.commit([&removed](void* handle) { removed.push_back(handle); });
  EXPECT_EQ(removed, std::vector<void*>{&forgotten});
  EXPECT_EQ(registers.find(&x), Registers::kNone);
}

TEST(Registers, OrderTellsWhoRegistersInAnotherOne) {
  Registers a(2), b(2), c(2);
  int x, y;
  a.push(&x, 4, 1, nullptr);
  a.push(&y, 8, 2, nullptr);
  b.push(&y, 9, 3, nullptr);
  b.push(&x, 4, 4, nullptr);
  EXPECT_EQ(a.order(), b.order()) << "sizes and addresses may differ";
  c.push(&x, 4, 1, nullptr);
  EXPECT_NE(a.order(), c.order());
  commit(&a, 8);
  commit(&b, 8);
  EXPECT_EQ(a.order(), 0u);
  a.pop(&x);
  b.pop(&x);  // the second here, the first there
  EXPECT_NE(a.order(), b.order());
}

TEST(Registers, SlotsAreUsedAgain) {
  Registers registers(2);
  int x[3];
  for (int round = 0; round < 100; ++round) {
    for (int& each : x) registers.push(&each, 4, 1, nullptr);
    commit(&registers, 4);
    for (int& each : x) {
      EXPECT_LT(registers.find(&each), 3u);
      EXPECT_TRUE(registers.pop(&each));
    }
    commit(&registers, 4);
  }
}

TEST(Registers, HaveThePatternOfTheProcessThatHasMost) {
  const auto numbers = [](std::uint32_t width) {
    Pattern pattern(width, 0);
    pattern.add(0, width, 1);
    return pattern;
  };
  Registers registers(3);
  int x;
  registers.push(&x, 4, 1, nullptr, numbers(4));
  for (int from = 0; from < 3; ++from)
    registers.hear(from, {1000, from == 1 ? 0u : 4u + static_cast<unsigned>(from), 1});
  EXPECT_TRUE(registers.hear_pattern(2, numbers(4)));
  registers.commit(kForget);
  EXPECT_TRUE(registers.pattern(registers.find(&x)).splits(2));
  registers.pop(&x);
  registers.commit(kForget);
  registers.push(nullptr, 0, 0, nullptr);
  for (int from = 0; from < 3; ++from) registers.hear(from, {1000, 8, 1});
  EXPECT_TRUE(registers.hear_pattern(1, numbers(8)));
  EXPECT_FALSE(registers.hear_pattern(2, numbers(4))) << "another type";
  registers.commit(kForget);
  EXPECT_TRUE(registers.pattern(registers.find(nullptr)).splits(4)) << "it has registered nothing";
}

TEST(Registers, NothingStandsForNoMemory) {
  Registers registers(2);
  int x;
  registers.push(nullptr, 0, 0, nullptr);
  registers.push(&x, 4, 1, nullptr);
  commit(&registers, 0);
  EXPECT_NE(registers.find(nullptr), Registers::kNone);
  EXPECT_NE(registers.find(nullptr), registers.find(&x));
}

}  // namespace
}  // namespace shadowib::bsp
