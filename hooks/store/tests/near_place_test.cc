// Images that stay near their members: whose directory it is, what it survives, what gc finds.
#include "hooks/store/near_place.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "hooks/job/near_directory.h"

namespace shadowib {
namespace {
namespace fs = std::filesystem;

constexpr char kSet[] = "0123456789abcdef0123456789abcdef", kOther[] = "ffffffffffffffffffffffffffffffff";

class NearPlaceTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/shadowib-near-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    place_ = name;
  }
  void TearDown() override { fs::remove_all(place_); }

  void make(const std::string& set_id, const std::string& directory, const char* image = "member-0.img") {
    int fd = -1;
    const Status status = make_near_set(place_, "job", set_id, directory, &fd);
    ASSERT_TRUE(status.ok()) << status.text();
    ::close(fd);
    std::ofstream(near_set_path(place_, "job", set_id) + "/" + image) << "bytes";
  }
  std::vector<NearSet> list(const std::string& directory) {
    std::vector<NearSet> sets;
    EXPECT_TRUE(list_near_sets(place_, directory, &sets).ok());
    return sets;
  }

  std::string place_;
};

TEST_F(NearPlaceTest, ASetIsPrivateAndBelongsToItsDirectory) {
  make(kSet, "/ckpt");
  make(kOther, "/another");
  for (const auto& entry : fs::recursive_directory_iterator(near_root(place_)))
    if (entry.is_directory() && !entry.is_symlink()) {
      EXPECT_EQ(static_cast<unsigned>(entry.status().permissions()), 0700u) << entry.path();
    }
  ASSERT_TRUE(sync_near_set(place_, "job", kSet).ok());
  const std::vector<NearSet> sets = list("/ckpt");
  ASSERT_EQ(sets.size(), 1u);
  EXPECT_EQ(sets[0].job, "job");
  EXPECT_EQ(sets[0].set_id, kSet);
  ASSERT_TRUE(remove_near_set(place_, "job", kSet).ok());
  EXPECT_TRUE(list("/ckpt").empty());
  EXPECT_EQ(list("/another").size(), 1u);
}

// A keeper or a restart that was killed leaves what it was writing, beside pieces that are wanted.
TEST_F(NearPlaceTest, PartsWhoseWritersHaveEndedGo) {
  make(kSet, "/ckpt");
  make(kSet, "/ckpt", ".member-1.img.part-01234567");
  make(kSet, "/ckpt", ".member-2.img.part-01234567");
  const std::string path = near_set_path(place_, "job", kSet), left = path + "/.member-1.img.part-01234567",
                    busy = path + "/.member-2.img.part-01234567";
  const int writer = ::open(busy.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_TRUE(writer >= 0 && ::flock(writer, LOCK_EX) == 0);
  std::vector<std::string> removed;
  ASSERT_TRUE(remove_parts(path, true, &removed).ok());
  EXPECT_EQ(removed, std::vector<std::string>{left});
  EXPECT_TRUE(fs::exists(left));
  ASSERT_TRUE(remove_parts(path, false, &removed).ok());
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(busy) && fs::exists(path + "/member-0.img"));
  ::close(writer);
}

TEST_F(NearPlaceTest, AMembersImageGoesAndTheLastTakesTheDirectoryAlong) {
  make(kSet, "/ckpt");
  make(kSet, "/ckpt", "member-1.img");
  remove_near_image(place_, "job", kSet, "member-0.img");
  EXPECT_TRUE(fs::exists(near_set_path(place_, "job", kSet) + "/member-1.img"));
  EXPECT_EQ(list("/ckpt").size(), 1u);
  remove_near_image(place_, "job", kSet, "member-1.img");
  EXPECT_TRUE(fs::is_empty(near_root(place_)));
}

// The order in which a directory has its files is the file system's, so there are several sets.
TEST_F(NearPlaceTest, ASetThatCannotBeRemovedIsFoundAgain) {
  const bool as_root = ::geteuid() == 0;  // who may remove anything
  if (as_root) {
    ASSERT_EQ(::chown(place_.c_str(), 65534, 65534), 0);
    ASSERT_EQ(::seteuid(65534), 0);
  }
  std::vector<std::string> stuck;
  for (char digit = '0'; digit <= '7'; ++digit) {
    const std::string set_id(32, digit), path = near_set_path(place_, "job", set_id);
    make(set_id, "/ckpt");
    fs::create_directory(stuck.emplace_back(path + "/stuck" + digit));
    std::ofstream(stuck.back() + "/file") << "bytes";
    fs::permissions(stuck.back(), fs::perms::owner_read | fs::perms::owner_exec);
    fs::remove(path + "/" + kNearHome);  // now the newest, where that counts
    fs::create_symlink("/ckpt", path + "/" + kNearHome);
    const Status status = remove_near_set(place_, "job", set_id);
    EXPECT_EQ(status.code(), Code::kIo);
    EXPECT_NE(std::string(status.text()).find(stuck.back()), std::string::npos) << status.text();
  }
  EXPECT_EQ(list("/ckpt").size(), stuck.size());
  for (const std::string& directory : stuck) fs::permissions(directory, fs::perms::owner_all);
  for (const NearSet& set : list("/ckpt")) EXPECT_TRUE(remove_near_set(place_, set.job, set.set_id).ok());
  EXPECT_TRUE(list("/ckpt").empty());
  if (as_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
}

// In /dev/shm anybody may come first.
TEST_F(NearPlaceTest, ADirectoryThatIsNotTheUsersOwnIsRefused) {
  const std::string root = near_root(place_);
  const auto refused = [&](const char* words) {
    int fd = -1;
    for (const Status& status : {make_near_set(place_, "job", kSet, "/ckpt", &fd), check_near_root(place_, true)}) {
      EXPECT_EQ(status.code(), Code::kPermission) << status.text();
      EXPECT_NE(std::string(status.text()).find(words), std::string::npos) << status.text();
      EXPECT_NE(std::string(status.text()).find(root), std::string::npos) << status.text();
    }
  };
  fs::create_directory(place_ + "/elsewhere");
  fs::permissions(place_ + "/elsewhere", fs::perms::owner_all);
  fs::create_symlink(place_ + "/elsewhere", root);
  refused("is a link");
  fs::remove(root);
  std::ofstream(root) << "a file";
  refused("is a link or a file");
  fs::remove(root);
  fs::create_directory(root);
  fs::permissions(root, fs::perms::owner_all | fs::perms::group_read);
  refused("open to others");
  fs::permissions(root, fs::perms::owner_all);
  EXPECT_TRUE(check_near_root(place_, false).ok());
  if (::geteuid() != 0) return;  // below: only root gives a directory away
  ASSERT_EQ(::chown(root.c_str(), 65534, 65534), 0);
  refused("belongs to user 65534");
}

TEST_F(NearPlaceTest, TheTierAsksForItsKindOfFileSystem) {
  bool in_memory = false;
  ASSERT_TRUE(is_in_memory(place_, &in_memory).ok());
  const StoreSpec right{in_memory ? Tier::kMem : Tier::kDisk}, wrong{in_memory ? Tier::kDisk : Tier::kMem};
  EXPECT_TRUE(check_near_place(right, place_).ok());
  EXPECT_EQ(check_near_place(wrong, place_).code(), Code::kUsage);
  EXPECT_EQ(check_near_place(right, place_ + "/absent").code(), Code::kIo);
}

TEST(StoreSpec, WhatIsTakenAndWhatIsNot) {
  StoreSpec spec;
  for (const char* text :
       {"central", "mem:single", "disk:single", "mem:mirror", "disk:mirror", "mem:xor", "disk:rs:2", "mem:rs:7"}) {
    ASSERT_TRUE(parse_store(text, &spec).ok()) << text;
    EXPECT_EQ(spec.text(), text);
  }
  for (const char* text :
       {"", "auto", "mem", "mem:", "disk:mirrors", "disk:xors", "mem:rs", "mem:rs:", "mem:rs:0", "mem:rs:8",
        "mem:rs:22", "mem:rs:2:2", "mem:rs:-1", "xor", "disk:double", "tape:single", "single"})
    EXPECT_EQ(parse_store(text, &spec).code(), Code::kUsage) << text;
  ASSERT_TRUE(parse_store("mem:rs:1", &spec).ok());
  EXPECT_EQ(spec.text(), "mem:xor") << "the same code";
}

TEST(StoreSpec, ASetTakesAnothersPlaceIfItSurvivesNoLess) {
  const StoreSpec central, mem{Tier::kMem}, disk{Tier::kDisk}, copied{Tier::kMem, Scheme::kMirror};
  for (const StoreSpec& spec : {central, mem, disk}) {
    EXPECT_TRUE(replaces(spec, spec));
    EXPECT_TRUE(replaces(central, spec));
  }
  EXPECT_TRUE(replaces(disk, mem));
  EXPECT_FALSE(replaces(mem, disk));
  EXPECT_FALSE(replaces(disk, central));
  // Each survives a loss that the other does not.
  EXPECT_FALSE(replaces(disk, copied));
  EXPECT_FALSE(replaces(copied, disk));
  EXPECT_TRUE(replaces(copied, mem));
  StoreSpec sum, two;
  ASSERT_TRUE(parse_store("mem:xor", &sum).ok() && parse_store("mem:rs:2", &two).ok());
  EXPECT_TRUE(replaces(sum, copied) && replaces(copied, sum) && replaces(two, sum));
  EXPECT_FALSE(replaces(sum, two));
  EXPECT_TRUE(replaces({Tier::kDisk, Scheme::kMirror}, copied));
}

}  // namespace
}  // namespace shadowib
