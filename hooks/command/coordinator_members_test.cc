// A command and its members, where members are locks and keys only.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "hooks/command/coordinator.h"
#include "hooks/job/cluster.h"
#include "hooks/job/collection.h"
#include "hooks/job/members.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

namespace fs = std::filesystem;

constexpr char kJob[] = "j", kEpoch[] = "g0-test";

class MembersOfACommand : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/shadowib-members-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
    const JobPaths paths = job_paths(directory_, kJob);
    fs::create_directories(paths.alive);
    std::ofstream(paths.epoch) << kEpoch << "\n";
    ASSERT_TRUE(Exchange::open(default_exchange(directory_, kJob), true, &exchange_).ok());
  }
  void TearDown() override {
    for (const int lock : locks_) close_owned_descriptor(lock);
    exchange_.reset();
    fs::remove_all(directory_);
  }
  std::string lock_of(const std::string& who) { return alive_path(directory_, kJob, kEpoch, who); }
  void join(std::uint32_t index, Fields fields, const char* epoch = kEpoch) {
    locks_.push_back(hold_alive_lock(alive_path(directory_, kJob, epoch, std::to_string(index))));
    ASSERT_GE(locks_.back(), 0);
    fields["pid"] = std::to_string(::getpid());
    ASSERT_TRUE(exchange_->claim(member_key(epoch, index), encode_fields(fields)).ok());
    for (const char* n : {"1", "2", "3"})  // a command waits for those words when it has given up
      ASSERT_TRUE(
          exchange_->publish(std::string(epoch) + "/ckpt/" + n + "/done/" + std::to_string(index), "protocol=1\n")
              .ok());
  }
  Status checkpoint(int timeout_ms) {
    CheckpointOptions options;
    options.directory = directory_;
    options.job = kJob;
    options.timeout_ms = timeout_ms;
    CheckpointReport report;
    return run_checkpoint(options, &report);
  }

  std::string directory_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<int> locks_;
};

TEST_F(MembersOfACommand, ThoseThatMeetInDifferentWaysAreRefusedBeforeAnythingIsAsked) {
  join(0, {{"version", "1.0"}, {"meets", std::to_string(kMeetingVersion)}});
  join(1, {{"version", "0.9"}});
  const Status status = checkpoint(10000);
  EXPECT_EQ(status.code(), Code::kVersion) << status.text();
  EXPECT_NE(std::string(status.text()).find("0.9"), std::string::npos) << status.text();
  std::string text;
  bool found = true;
  ASSERT_TRUE(exchange_->get(std::string(kEpoch) + "/control/checkpoint", &text, &found).ok());
  EXPECT_FALSE(found);
}

TEST_F(MembersOfACommand, TheSlowOneIsNamedWithItsPhase) {
  for (const std::uint32_t index : {0, 1})
    join(index, {{"version", "1.0"}, {"meets", std::to_string(kMeetingVersion)}});
  const std::string round = std::string(kEpoch) + "/ckpt/1/";
  for (const char* index : {"0", "1"}) ASSERT_TRUE(exchange_->publish(round + "phase/" + index, "protocol=1\n").ok());
  (void)exchange_->barrier(round + "b/10", "0", 2, 0, "").ok();
  ASSERT_TRUE(exchange_->barrier(round + "b/10", "1", 2, 0, "").ok());
  EXPECT_EQ(exchange_->barrier(round + "b/20", "0", 2, 0, "").code(), Code::kTimeout);
  const Status status = checkpoint(300);
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_NE(std::string(status.text()).find("member 1 "), std::string::npos) << status.text();
  EXPECT_NE(std::string(status.text()).find("phase 20 "), std::string::npos) << status.text();
}

TEST_F(MembersOfACommand, OneLockOfACommandStays) {
  join(0, {{"version", "1.0"}, {"meets", std::to_string(kMeetingVersion)}});
  for (int n = 1; n <= 3; ++n) {
    EXPECT_EQ(checkpoint(50).code(), Code::kTimeout);
    EXPECT_TRUE(fs::exists(lock_of("ckpt" + std::to_string(n))));
    EXPECT_FALSE(fs::exists(lock_of("ckpt" + std::to_string(n - 1))));
  }
}

// A restart was killed before its members joined; the next has made its epoch when the command has seen the first's.
TEST_F(MembersOfACommand, TheEpochOfAKilledRestartIsNotWaitedFor) {
  static constexpr char kNext[] = "g2-test";
  ASSERT_TRUE(exchange_->publish(reserved_members_key(kEpoch), encode_reserved_members({0})).ok());
  locks_.push_back(hold_alive_lock(job_paths(directory_, kJob).restart));
  std::thread next([this] {
    ::usleep(300'000);  // later or earlier, the command comes to the member that is there
    join(0, {{"version", "1.0"}, {"meets", "3"}}, kNext);
    const std::string epoch = job_paths(directory_, kJob).epoch;
    std::ofstream(epoch + ".new") << kNext << "\n";
    fs::rename(epoch + ".new", epoch);
  });
  const Status status = checkpoint(3000);
  next.join();
  EXPECT_EQ(status.code(), Code::kTimeout) << status.text();  // this member does not answer
  EXPECT_NE(std::string(status.text()).find("member 0 "), std::string::npos) << status.text();
}

// However many members come one by one, each look costs one list, and no look begins at once after another.
TEST_F(MembersOfACommand, ACollectionAsksForAllAtOnce) {
  constexpr std::uint32_t kMembers = 300;
  std::vector<std::uint32_t> members;
  for (std::uint32_t m = 0; m < kMembers; ++m) members.push_back(m);
  Collection collection(*exchange_, "k/saved", members);
  ASSERT_TRUE(collection.look().ok());
  EXPECT_EQ(collection.missing().size(), kMembers);
  for (std::uint32_t m = 0; m < kMembers; ++m)
    ASSERT_TRUE(exchange_->publish("k/saved/" + std::to_string(m), std::to_string(m)).ok());
  const std::uint64_t before = exchange_->operations();
  ASSERT_TRUE(collection.look().ok());
  EXPECT_EQ(exchange_->operations() - before, 2u) << "a list and a look-up";
  EXPECT_TRUE(collection.complete());
  for (std::uint32_t m = 0; m < kMembers; ++m) EXPECT_EQ(collection.values()[m], std::to_string(m));
}

// The others come later, or have come and left.
TEST_F(MembersOfACommand, AreAsManyAsTheJobIsToHave) {
  join(0, {{"meets", std::to_string(kMeetingVersion)}, {"expects", "3"}});
  join(1, {{"meets", std::to_string(kMeetingVersion)}, {"expects", "3"}});
  const Status early = checkpoint(200);
  EXPECT_EQ(early.code(), Code::kBusy) << early.text();
  EXPECT_NE(std::string(early.text()).find("2 of the 3 processes of job j have joined"), std::string::npos)
      << early.text();
  EXPECT_FALSE(fs::exists(directory_ + "/sets")) << "nothing is written";
  join(2, {{"meets", std::to_string(kMeetingVersion)}, {"expects", "3"}});
  close_owned_descriptor(locks_[1]);  // it has left
  locks_.erase(locks_.begin() + 1);
  EXPECT_EQ(checkpoint(200).code(), Code::kTimeout) << "members that are locks alone do not answer";
}

// A CLC of one cluster is no reason to refuse a checkpoint of the whole job, which may be the last one.
TEST_F(MembersOfACommand, WaitForACheckpointOfTheirCluster) {
  join(0, {{"meets", std::to_string(kMeetingVersion)}, {"cluster", "A"}});
  ASSERT_TRUE(exchange_->claim(federation_key(kEpoch), encode_fields({{"policy", "paper"}})).ok());
  for (const auto& [cluster, index] : {std::pair{"A", "0"}, {"B", "1"}})
    ASSERT_TRUE(exchange_->claim(cluster_key(kEpoch, cluster), encode_fields({{"index", index}})).ok());
  const int turn = hold_alive_lock(lock_of(turn_lock(1)));
  ASSERT_GE(turn, 0);
  const std::int64_t began = monotonic_ns();
  const Status busy = checkpoint(100);
  EXPECT_GE(monotonic_ns() - began, 100'000'000) << "it has not waited";
  EXPECT_EQ(busy.code(), Code::kBusy) << busy.text();
  EXPECT_NE(std::string(busy.text()).find("cluster B "), std::string::npos) << busy.text();
  // The CLC ends when the command has the other cluster's turn. The member dies when it is asked.
  std::atomic<bool> over{false};
  std::thread clc([&, member = locks_.back()] {
    std::unique_ptr<Exchange> exchange;
    EXPECT_TRUE(Exchange::open(default_exchange(directory_, kJob), false, &exchange).ok());
    while (!over && !is_alive(lock_of(turn_lock(0)))) std::this_thread::yield();
    release_alive_lock(turn);
    std::string text;
    for (bool asked = false; !over && !asked; std::this_thread::yield())
      EXPECT_TRUE(exchange->get(std::string(kEpoch) + "/control/checkpoint", &text, &asked).ok());
    release_alive_lock(member);
  });
  const Status status = checkpoint(600'000);
  over = true;
  clc.join();
  locks_.pop_back();
  EXPECT_EQ(status.code(), Code::kAborted) << status.text();
  EXPECT_NE(std::string(status.text()).find("died during the checkpoint"), std::string::npos) << status.text();
}

// A CLC without it would be the one that its cluster goes back to.
TEST_F(MembersOfACommand, OfAClusterMayHaveDiedOnlyInAnOrderlyWay) {
  for (const std::uint32_t index : {0u, 1u})
    join(index, {{"meets", std::to_string(kMeetingVersion)}, {"cluster", "A"}});
  ASSERT_TRUE(exchange_->claim(federation_key(kEpoch), encode_fields({{"policy", "paper"}})).ok());
  ASSERT_TRUE(exchange_->claim(cluster_key(kEpoch, "A"), encode_fields({{"index", "0"}})).ok());
  release_alive_lock(locks_.back());
  locks_.pop_back();
  const Status dead = checkpoint(200);
  EXPECT_EQ(dead.code(), Code::kRefused) << dead.text();
  EXPECT_NE(std::string(dead.text()).find("has died"), std::string::npos) << dead.text();
  ASSERT_TRUE(exchange_->publish(std::string(kEpoch) + "/gone/1", "").ok());
  EXPECT_EQ(checkpoint(200).code(), Code::kTimeout) << "the other one is asked, and does not answer";
}

// A restart brings back the members of its set.
TEST_F(MembersOfACommand, AreThoseOfTheSetAfterARestart) {
  constexpr char kLater[] = "g1-test";
  std::ofstream(job_paths(directory_, kJob).epoch) << kLater << "\n";
  join(0, {{"meets", std::to_string(kMeetingVersion)}, {"expects", "3"}}, kLater);
  EXPECT_EQ(checkpoint(200).code(), Code::kTimeout);
}

}  // namespace
}  // namespace shadowib
