#include "shadowib/objects/qp_numbers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace shadowib {
namespace {

ShadowQp* shadow(std::uintptr_t n) { return reinterpret_cast<ShadowQp*>(n << 4); }

TEST(QpNumbers, FindsWhatIsThereAndNothingElse) {
  QpNumbers numbers;
  EXPECT_EQ(numbers.find({7}), nullptr);
  for (std::uint32_t n = 1; n <= 1000; ++n) numbers.insert({n * 16384}, shadow(n));
  for (std::uint32_t n = 1; n <= 1000; ++n) EXPECT_EQ(numbers.find({n * 16384}), shadow(n));
  EXPECT_EQ(numbers.find({16385}), nullptr);
  EXPECT_EQ(numbers.find({0xffffffff}), nullptr);
  numbers.erase({16384});
  EXPECT_EQ(numbers.find({16384}), nullptr);
  EXPECT_EQ(numbers.find({2 * 16384}), shadow(2));
  numbers.clear();
  EXPECT_EQ(numbers.find({2 * 16384}), nullptr);
}

TEST(QpNumbers, NumbersComeAndGoForEver) {
  QpNumbers numbers;
  for (std::uint32_t n = 1; n < 100000; ++n) {
    numbers.insert({n}, shadow(n));
    ASSERT_EQ(numbers.find({n}), shadow(n));
    if (n > 8) numbers.erase({n - 8});
  }
  EXPECT_EQ(numbers.find({99999}), shadow(99999));
  EXPECT_EQ(numbers.find({5}), nullptr);
}

TEST(QpNumbers, AReaderFindsItsOwnWhileOthersComeAndGo) {
  QpNumbers numbers;
  numbers.insert({1}, shadow(1));
  std::atomic<bool> stop{false};
  std::atomic<long> wrong{0};
  std::thread reader([&] {
    while (!stop.load()) wrong += numbers.find({1}) != shadow(1);
  });
  // A reader may be held up for any number of changes: what it looks at must not go away.
  for (std::uint32_t n = 2; n < 200000; ++n) {
    numbers.insert({n * 83 % 0xffffff}, shadow(n));
    if (n % 2 == 0) numbers.erase({n * 83 % 0xffffff});
  }
  stop = true;
  reader.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace shadowib
