// Protections of memory that is registered again: lifted, put back, and left alone where that cannot be.
#include "shadowib/cr/lifted_protection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "shadowib/base/mappings.h"

namespace shadowib {
namespace {

constexpr std::size_t kPage = 4096;

class Protections : public testing::Test {
 protected:
  void SetUp() override {
    memory_ =
        static_cast<char*>(::mmap(nullptr, 6 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory_, MAP_FAILED);
    memory_[kPage] = 'x';
    protect(1, PROT_NONE);
    protect(2, PROT_READ);
  }
  void TearDown() override { ::munmap(memory_, 6 * kPage); }

  void protect(std::size_t page, int protection) {
    ASSERT_EQ(::mprotect(memory_ + page * kPage, kPage, protection), 0);
  }

  // A letter for each page: n, r, w; ? if it is not mapped.
  std::string pages() const {
    const auto first = reinterpret_cast<std::uint64_t>(memory_);
    std::string letters(6, '?');
    for_each_mapping([&](const Mapping& m) {
      for (std::size_t i = 0; i < letters.size(); ++i)
        if (const std::uint64_t at = first + i * kPage; at >= m.start && at < m.end)
          letters[i] = m.executable ? 'x' : m.writable ? 'w' : m.readable ? 'r' : 'n';
      return true;
    });
    return letters;
  }

  char* memory_ = nullptr;
  LiftedProtection lifted_;
};

TEST_F(Protections, AreLiftedAndPutBack) {
  ASSERT_EQ(pages(), "wnrwww");
  ASSERT_TRUE(lifted_.lift(memory_ + kPage / 2, 3 * kPage, true));
  EXPECT_EQ(pages(), "wwwwww");
  EXPECT_EQ(memory_[kPage], 'x');
  EXPECT_EQ(lifted_.put_back(), 0);
  EXPECT_EQ(pages(), "wnrwww");
}

TEST_F(Protections, AreLiftedForReadingAlone) {
  ASSERT_TRUE(lifted_.lift(memory_ + kPage, 2 * kPage, false));
  EXPECT_EQ(pages(), "wrrwww");
  EXPECT_EQ(lifted_.put_back(), 0);
  EXPECT_EQ(pages(), "wnrwww");
}

TEST_F(Protections, StayWhereNothingIsInTheWay) {
  EXPECT_FALSE(lifted_.lift(memory_ + 3 * kPage, 2 * kPage, true));
  EXPECT_FALSE(lifted_.lift(memory_ + kPage, 0, true));
  EXPECT_EQ(pages(), "wnrwww");
}

TEST_F(Protections, StayWhereMemoryIsGone) {
  ASSERT_EQ(::munmap(memory_ + 4 * kPage, kPage), 0);
  EXPECT_FALSE(lifted_.lift(memory_, 5 * kPage, true));
  EXPECT_EQ(pages(), "wnrw?w");
  // Ours again, since TearDown() unmaps all of it.
  char* const hole = memory_ + 4 * kPage;
  EXPECT_EQ(::mmap(hole, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), hole);
}

TEST_F(Protections, StayWhereMemoryMayBeExecuted) {
  protect(4, PROT_READ | PROT_EXEC);
  EXPECT_FALSE(lifted_.lift(memory_, 5 * kPage, true));
  EXPECT_EQ(pages(), "wnrwxw");
}

TEST_F(Protections, StayWhereTheKernelRefuses) {
  // Shared memory of a descriptor that is open for reading alone.
  const int fd = ::memfd_create("read", 0);
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  ASSERT_EQ(::ftruncate(fd, kPage), 0);
  const int reading = ::open(path.c_str(), O_RDONLY);
  ASSERT_NE(::mmap(memory_ + 4 * kPage, kPage, PROT_READ, MAP_SHARED | MAP_FIXED, reading, 0), MAP_FAILED);
  ::close(reading);
  ::close(fd);
  EXPECT_FALSE(lifted_.lift(memory_, 5 * kPage, true));
  EXPECT_EQ(pages(), "wnrwrw");
}

}  // namespace
}  // namespace shadowib
