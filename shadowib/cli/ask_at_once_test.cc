#include "shadowib/cli/ask_at_once.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

namespace shadowib::cli {
namespace {

std::vector<int> up_to(int count) {
  std::vector<int> items(static_cast<std::size_t>(count));
  std::iota(items.begin(), items.end(), 1);
  return items;
}

TEST(AskAtOnce, AllAreAskedAtTheSameTime) {
  std::atomic<int> asked{0};
  ask_at_once(up_to(20), [&](int) {
    ++asked;
    while (asked != 20) std::this_thread::yield();  // each waits for all others
  });
  EXPECT_EQ(asked, 20);
}

TEST(AskAtOnce, WhereNoThreadCanBeMadeTheRestIsAsked) {
  std::atomic<int> sum{0};
  int made = 0;
  ask_at_once(
      up_to(10), [&](int item) { sum += item; },
      [&](const auto& question) {
        if (++made > 3) throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
        return std::thread(question);
      });
  EXPECT_EQ(sum, 55);
}

}  // namespace
}  // namespace shadowib::cli
