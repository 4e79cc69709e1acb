#include "hooks/raw/room.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace shadowib {
namespace {

class RoomTest : public testing::Test {
 protected:
  RoomTest() {
    char name[] = "/tmp/room_test-XXXXXX";
    if (::mkdtemp(name) == nullptr) std::abort();
    root_ = name;
  }
  ~RoomTest() override { std::filesystem::remove_all(root_); }

  void group(const std::string& path, const std::string& limit, std::uint64_t taken, std::uint64_t idle) {
    std::filesystem::create_directories(root_ + path);
    std::ofstream(root_ + path + "/memory.max") << limit << "\n";
    std::ofstream(root_ + path + "/memory.current") << taken << "\n";
    std::ofstream(root_ + path + "/memory.stat") << "anon 12345\nactive_file 77\ninactive_file " << idle << "\n";
  }

  std::string root_;
};

TEST_F(RoomTest, AGroupMayTakeWhatItsLimitAndThoseAboveLeave) {
  group("/job", "1000", 300, 0);
  group("/job/step", "max", 200, 0);
  EXPECT_EQ(cgroup_room(2, root_, "/job/step"), 700u);
  group("/job/step", "600", 200, 0);
  EXPECT_EQ(cgroup_room(2, root_, "/job/step"), 400u);
  std::string least;
  cgroup_room(2, root_, "/job/step", &least);
  EXPECT_EQ(least, root_ + "/job/step");
  group("/job/step", "2000", 200, 0);
  cgroup_room(2, root_, "/job/step", &least);
  EXPECT_EQ(least, root_ + "/job");
  group("/job/step", "600", 800, 0);
  EXPECT_EQ(cgroup_room(2, root_, "/job/step"), 0u);
}

TEST_F(RoomTest, PageCacheThatNobodyUsesIsNotTaken) {
  group("/job", "1000", 900, 500);
  EXPECT_EQ(cgroup_room(2, root_, "/job"), 600u);
}

TEST_F(RoomTest, GroupsOfVersion1HaveOtherNames) {
  std::filesystem::create_directories(root_ + "/job");
  std::ofstream(root_ + "/job/memory.limit_in_bytes") << "1000\n";
  std::ofstream(root_ + "/job/memory.usage_in_bytes") << "900\n";
  std::ofstream(root_ + "/job/memory.stat") << "cache 3\ninactive_file 1\ntotal_inactive_file 500\n";
  EXPECT_EQ(cgroup_room(1, root_, "/job"), 600u);
}

TEST_F(RoomTest, WithoutALimitThereIsNone) {
  group("/job", "max", 300, 0);
  EXPECT_EQ(cgroup_room(2, root_, "/job"), ~std::uint64_t{0});
  EXPECT_EQ(cgroup_room(2, root_, ""), ~std::uint64_t{0});
  EXPECT_EQ(cgroup_room(2, root_ + "/nowhere", "/job"), ~std::uint64_t{0});
}

TEST_F(RoomTest, TheLeastLimitCounts) {
  group("/job", "1000", 300, 0);
  group("/job/step", "max", 200, 0);
  EXPECT_EQ(cgroup_limit(2, root_, "/job/step"), 1000u);
  group("/job/step", "600", 200, 0);
  EXPECT_EQ(cgroup_limit(2, root_, "/job/step"), 600u);
  EXPECT_EQ(cgroup_limit(2, root_, ""), ~std::uint64_t{0});
}

TEST_F(RoomTest, ThisMachineHasSome) {
  EXPECT_GT(free_memory(), 0u);
  EXPECT_LT(free_memory(), std::uint64_t{1} << 60);
  EXPECT_GT(host_memory_available(), 0u);
  EXPECT_GT(host_memory(), host_memory_available());
  EXPECT_GT(free_space(root_.c_str()), 0u);
  EXPECT_EQ(free_space((root_ + "/nowhere").c_str()), 0u);
}

TEST_F(RoomTest, ThisProcessGrowsByWhatItWrites) {
  constexpr std::size_t kBytes = 32 << 20;
  const std::uint64_t before = own_memory();
  void* const at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  EXPECT_GE(own_memory(), before + kBytes / 2);
  ::munmap(at, kBytes);
}

}  // namespace
}  // namespace shadowib
