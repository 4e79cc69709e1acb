#include "shadowib/objects/keys.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

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

// A post translates while another thread registers memory.
TEST(KeyTable, AReaderFindsItsOwnWhileItGrows) {
  KeyTable table;
  table.insert({7}, {8});
  std::atomic<bool> stop{false};
  std::atomic<long> wrong{0};
  std::thread reader([&] {
    RealKey real;
    while (!stop.load()) {
      wrong += !table.find({7}, &real) || real.value != 8;
      wrong += table.find({50}, &real) || real.value != 50;
    }
  });
  for (std::uint32_t key = 100; key < 200000; ++key) table.insert({key}, {key + 1});
  stop = true;
  reader.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace shadowib
