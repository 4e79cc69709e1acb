#include "shadowib/objects/keys.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace shadowib {
namespace {

TEST(KeyTable, AgainstAModel) {
  std::mt19937 random(7);
  KeyTable table;
  std::map<std::uint32_t, std::uint32_t> model;
  RealKey real;
  EXPECT_FALSE(table.find({17}, &real));
  EXPECT_EQ(real.value, 17u) << "an unknown key is its own translation";
  for (int i = 0; i < 5000; ++i) {
    // Keys as adapters make them: dense slots, a changing low byte; and some far apart.
    std::uint32_t key =
        i % 3 != 0 ? (static_cast<std::uint32_t>(i) << 8) | (random() & 0xff) : static_cast<std::uint32_t>(random());
    std::uint32_t to = static_cast<std::uint32_t>(random());
    table.insert({key}, {to});
    model[key] = to;
  }
  for (auto [key, to] : model) {
    ASSERT_TRUE(table.find({key}, &real));
    ASSERT_EQ(real.value, to);
  }
  for (int i = 0; i < 5000; ++i) {
    auto key = static_cast<std::uint32_t>(random());
    ASSERT_EQ(table.find({key}, &real), model.count(key) == 1);
  }
  table.clear();
  EXPECT_FALSE(table.find({model.begin()->first}, &real));
}

}  // namespace
}  // namespace shadowib
