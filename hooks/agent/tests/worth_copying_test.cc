// Which registered memory a member makes copies of.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

#include "hooks/agent/round_saver.h"

namespace shadowib {
namespace {

constexpr std::size_t kPage = 4096, kBytes = 1 << 20;

class WorthCopying : public testing::Test {
 protected:
  // Four parts of kBytes, the first of which begins at begin_.
  void SetUp() override {
    void* const at = ::mmap(nullptr, 4 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(at, MAP_FAILED);
    begin_ = reinterpret_cast<std::uint64_t>(at);
  }
  void TearDown() override { ::munmap(reinterpret_cast<void*>(begin_), 4 * kBytes); }
  void replace(int part, int protection, int flags, int fd = -1) {
    void* const at = reinterpret_cast<void*>(begin_ + part * kBytes);
    ASSERT_EQ(::mmap(at, kBytes, protection, flags | MAP_FIXED, fd, 0), at);
  }
  std::vector<std::vector<std::uint64_t>> worth(const std::vector<PinnedRange>& ranges) const {
    std::vector<PinnedRange> given;
    for (const PinnedRange& range : ranges) given.push_back({begin_ + range.start, begin_ + range.end});
    std::vector<std::vector<std::uint64_t>> found;
    for (const PinnedRange& range : worth_copying(given)) found.push_back({range.start - begin_, range.end - begin_});
    return found;
  }
  using Ranges = std::vector<std::vector<std::uint64_t>>;

  std::uint64_t begin_ = 0;
};

TEST_F(WorthCopying, AreWholePagesInOrderAndApart) {
  EXPECT_EQ(worth({{2 * kBytes + 1, 3 * kBytes - 1}, {100, kBytes / 2}, {100, kBytes / 2}, {kBytes / 4, kBytes}}),
            (Ranges{{0, kBytes}, {2 * kBytes, 3 * kBytes}}));
  EXPECT_EQ(worth({{kPage, 2 * kPage}, {7, 7}}), Ranges{}) << "too small";
  EXPECT_EQ(worth({}), Ranges{});
}

// A mapping that is two is one range.
TEST_F(WorthCopying, AreInPrivateMemoryWithoutAFile) {
  const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  replace(1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  EXPECT_EQ(worth({{0, 4 * kBytes}}), (Ranges{{0, kBytes}, {2 * kBytes, 4 * kBytes}}));
  replace(1, PROT_READ, MAP_PRIVATE, file);
  EXPECT_EQ(worth({{0, 4 * kBytes}}), (Ranges{{0, kBytes}, {2 * kBytes, 4 * kBytes}}));
  replace(1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS);
  EXPECT_EQ(worth({{0, 4 * kBytes}}), (Ranges{{0, kBytes}, {2 * kBytes, 4 * kBytes}}));
  replace(1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS);
  EXPECT_EQ(worth({{0, 4 * kBytes}}), (Ranges{{0, 4 * kBytes}}));
  ASSERT_EQ(::munmap(reinterpret_cast<void*>(begin_ + kBytes), kBytes), 0);
  EXPECT_EQ(worth({{0, 4 * kBytes}}), (Ranges{{0, kBytes}, {2 * kBytes, 4 * kBytes}}));
  ::close(file);
}

TEST_F(WorthCopying, AreTheLargest) {
  std::vector<PinnedRange> ranges;
  const std::size_t bytes = 16 * kPage, apart = bytes + 2 * kPage;
  void* const at = ::mmap(nullptr, 1100 * apart, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  const auto start = reinterpret_cast<std::uint64_t>(at);
  for (std::uint64_t i = 0; i < 1100; ++i)
    ranges.push_back({start + i * apart, start + i * apart + bytes + (i % 3 != 0 ? kPage : 0)});
  const std::vector<PinnedRange> found = worth_copying(ranges);
  ASSERT_EQ(found.size(), 1024u);
  std::size_t large = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    large += found[i].end - found[i].start > bytes;
    EXPECT_TRUE(i == 0 || found[i].start > found[i - 1].end);
  }
  EXPECT_EQ(large, 733u) << "all that are larger";
  ::munmap(at, 1100 * apart);
}

}  // namespace
}  // namespace shadowib
