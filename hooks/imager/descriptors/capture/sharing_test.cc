#include "hooks/imager/descriptors/capture/sharing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>

#include "hooks/raw/proc.h"

namespace shadowib::descriptors {
namespace {

// Which object each number is of, as the capture asks.
std::map<int, std::uint32_t> objects_of(const std::vector<int>& fds) {
  Sharing sharing(fds);
  std::vector<Object> objects;
  std::map<int, std::uint32_t> found;
  for (std::size_t i = 0; i < fds.size(); ++i) {
    const auto next = static_cast<std::uint32_t>(objects.size());
    const int shared = sharing.find_or_add(i, Object{}, objects, next);
    if (shared < 0) objects.emplace_back();
    found[fds[i]] = shared < 0 ? next : static_cast<std::uint32_t>(shared);
  }
  return found;
}

// Whatever was sorted before, numbers share what they share now.
TEST(Sharing, IsThatOfNow) {
  if (compare_descriptions(1, 1) != 0) GTEST_SKIP() << "kcmp is denied here";
  std::mt19937 random(7);
  std::vector<int> mine;
  const auto open_one = [&] {
    const int fd = random() % 3 == 0 && !mine.empty() ? ::dup(mine[random() % mine.size()])
                   : random() % 2 == 0                ? ::eventfd(0, EFD_CLOEXEC)
                                                      : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    mine.push_back(fd);
  };
  for (int i = 0; i < 300; ++i) open_one();
  for (int round = 0; round < 5; ++round) {
    sort_descriptors();
    for (int i = 0; i < round * 60; ++i) {  // other descriptions at the same numbers, and other numbers
      const std::size_t at = random() % mine.size();
      if (random() % 2 == 0) {
        ::close(mine[at]);
        mine.erase(mine.begin() + static_cast<long>(at));
        open_one();
      } else if (const int from = mine[random() % mine.size()]; from != mine[at]) {
        ::dup2(from, mine[at]);
      }
    }
    std::sort(mine.begin(), mine.end());
    const auto found = objects_of(mine);
    for (const int a : mine)
      for (const int b : mine)
        ASSERT_EQ(found.at(a) == found.at(b), compare_descriptions(a, b) == 0) << a << ", " << b << ", " << round;
  }
  forget_sorted_descriptors();
  for (const int fd : mine) ::close(fd);
}

}  // namespace
}  // namespace shadowib::descriptors
