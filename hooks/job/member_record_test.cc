#include "hooks/job/member_record.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "hooks/job/protocol.h"

namespace shadowib {
namespace {

class MemberRecordTest : public ::testing::Test {
 protected:
  MemberRecordTest() {
    char name[] = "/tmp/shadowib-record-XXXXXX";
    top_ = ::mkdtemp(name);
    path_ = top_ + "/g0-1.3";
  }
  ~MemberRecordTest() override { std::filesystem::remove_all(top_); }
  std::string top_, path_;
};

TEST_F(MemberRecordTest, TellsAMemberThatDiedFromOneThatLeft) {
  const int lock = hold_alive_lock(path_);
  ASSERT_GE(lock, 0);
  EXPECT_FALSE(read_member_record(path_).joined) << "a lock alone is nobody yet";
  record_joined(path_, 42, 4711, "node1");
  MemberRecord record = read_member_record(path_);
  EXPECT_TRUE(record.joined);
  EXPECT_FALSE(record.left);
  EXPECT_EQ(record.pid, 42);
  EXPECT_EQ(record.start_time, 4711u);
  EXPECT_EQ(record.host, "node1");
  EXPECT_TRUE(is_alive(path_)) << "writing must not give the lock up";
  record_left(path_, 3);
  record = read_member_record(path_);
  EXPECT_TRUE(record.left);
  EXPECT_EQ(record.status, 3);
  EXPECT_TRUE(is_alive(path_));
  release_alive_lock(lock);
}

TEST_F(MemberRecordTest, IsWrittenThroughTheLock) {
  const int lock = hold_alive_lock(path_);
  for (const int status : {-1, 0, 7, 10, 42, 255}) {
    record_joined(path_, 42, 4711, "node1");
    record_left_by_lock(lock, status);
    EXPECT_TRUE(read_member_record(path_).left);
    EXPECT_EQ(read_member_record(path_).status, status);
    EXPECT_TRUE(is_alive(path_));
  }
  release_alive_lock(lock);
}

TEST_F(MemberRecordTest, TellsAMemberThatWasSavedFromOneThatDied) {
  const int lock = hold_alive_lock(path_);
  record_joined(path_, 42, 4711, "node1");
  EXPECT_EQ(read_member_record(path_).saved_as, "");
  record_saved_by_lock(lock, "demo.0003");
  EXPECT_EQ(read_member_record(path_).saved_as, "demo.0003");
  EXPECT_FALSE(read_member_record(path_).left);
  EXPECT_TRUE(is_alive(path_));
  record_joined(path_, 43, 4712, "node1");
  EXPECT_EQ(read_member_record(path_).saved_as, "") << "of another life";
  release_alive_lock(lock);
}

TEST_F(MemberRecordTest, NamesTheCluster) {
  const int lock = hold_alive_lock(path_);
  record_joined(path_, 42, 4711, "node1", "east");
  EXPECT_EQ(read_member_record(path_).cluster, "east");
  EXPECT_EQ(read_member_record(path_).host, "node1");
  EXPECT_EQ(parse_member_record("member pid=1 starttime=2 host=h\n").cluster, "");
  release_alive_lock(lock);
}

TEST_F(MemberRecordTest, KeepsTheTimeOfJoining) {
  const int lock = hold_alive_lock(path_);
  const timespec times[2] = {{1000, 0}, {2000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  record_joined(path_, 1, 1, "h");
  record_left(path_, -1);
  struct stat st {};
  ASSERT_EQ(::stat(path_.c_str(), &st), 0);
  EXPECT_EQ(st.st_mtim.tv_sec, 2000);
  EXPECT_EQ(read_member_record(path_).status, -1);
  release_alive_lock(lock);
}

TEST(MemberRecord, IgnoresWhatWasCutShort) {
  EXPECT_FALSE(parse_member_record("member pid=1 start").joined);
  const MemberRecord record = parse_member_record("member pid=1 starttime=2 host=h\nleft stat");
  EXPECT_TRUE(record.joined);
  EXPECT_FALSE(record.left);
  EXPECT_FALSE(parse_member_record("").joined);
  EXPECT_FALSE(parse_member_record("somebody's notes\n").joined);
}

}  // namespace
}  // namespace shadowib
