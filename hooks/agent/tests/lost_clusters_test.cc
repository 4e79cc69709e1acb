// What a member tells of clusters that have failed while its requests to them wait.
#include "hooks/agent/lost_clusters.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "hooks/agent/agent.h"
#include "hooks/agent/agent_state.h"
#include "hooks/agent/tests/directory_job.h"
#include "hooks/job/cluster.h"
#include "hooks/job/current_job.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/member_record.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr char kEpoch[] = "g0.test";

// Verdicts that the participant has heard.
class Judged : public Participant {
 public:
  Judged() { g_agent.participant = this; }
  ~Judged() override { g_agent.participant = nullptr; }
  Status settle(const SettleContext&) override { return {}; }
  Status quiesce() override { return {}; }
  void resume() override {}
  Status restart(const JobInfo&, Exchange*) override { return {}; }
  void describe(std::string*) override {}
  void judge_cluster(unsigned cluster, bool failed) override {
    EXPECT_EQ(cluster, 1u);
    told.push_back(failed);
  }

  std::vector<bool> told;
};

class LostClusters : public ::testing::Test {
 protected:
  LostClusters() {
    std::filesystem::create_directories(std::filesystem::path(paths().renewing).parent_path());
    EXPECT_TRUE(job_.exchange().claim(cluster_key(kEpoch, "C"), encode_fields({{"index", "1"}})).ok());
    forget_lost_clusters();
  }
  ~LostClusters() override {
    forget_lost_clusters();
    if (held_ >= 0) release_alive_lock(held_);
  }

  static JobPaths paths() { return job_paths(g_job.info.directory, g_job.info.job); }
  // Of cluster C, living: it has its lock, and the exchange lists it. The file of its lock.
  std::string add_member() {
    EXPECT_TRUE(job_.exchange().claim(std::string(kEpoch) + "/member/7", "").ok());
    const std::string lock = alive_path(g_job.info.directory, g_job.info.job, kEpoch, "7");
    std::filesystem::create_directories(std::filesystem::path(lock).parent_path());
    held_ = hold_alive_lock(lock);
    EXPECT_GE(held_, 0);
    record_joined(lock, 1, 1, "host", "C");
    return lock;
  }
  // So many milliseconds after the test's begin.
  void judge(int ms) { judge_lost_clusters(begin_ns_ + std::int64_t{ms} * 1'000'000); }
  static std::string told() {
    std::string text;
    JsonWriter writer(&text);
    writer.begin_object();
    describe_lost_clusters(writer);
    writer.end_object();
    return text;
  }

  DirectoryJob job_{kEpoch};
  int held_ = -1;  // the member's lock
  const std::int64_t begin_ns_ = monotonic_ns();
};

// Retries run out as the word of a recovery is heard: the cluster is judged behind the word, and is still away.
TEST_F(LostClusters, OneThatHasComeBackIsWaitedForNoMore) {
  const int recovery = hold_alive_lock(paths().renewing);
  ASSERT_GE(recovery, 0);
  note_lost_cluster(1);
  note_return(1);
  judge(0);
  EXPECT_EQ(told(), R"({"waits_for":[1]})");
  release_alive_lock(recovery);
  EXPECT_EQ(told(), R"({"waits_for":[]})");
}

// A killed process closes its connections first. On a busy machine it has its lock for some time after that: a
// verdict of then would fail the requests of a job that goes on.
TEST_F(LostClusters, OneThatStillHasItsLockIsLookedAtAgain) {
  Judged judged;
  const std::string lock = add_member();
  note_lost_cluster(1);
  judge(0);
  EXPECT_TRUE(judged.told.empty());
  EXPECT_GT(lost_clusters_wait_ms(), 0);
  release_alive_lock(std::exchange(held_, -1));
  judge(1'000);
  EXPECT_EQ(judged.told, std::vector<bool>({true}));
  EXPECT_EQ(told(), R"({"waits_for":[1]})");
}

TEST_F(LostClusters, OneThatGoesOnLivingIsNotWaitedForLong) {
  Judged judged;
  add_member();
  note_lost_cluster(1);
  for (const int ms : {0, 1'000, 9'000}) judge(ms);
  EXPECT_TRUE(judged.told.empty());
  judge(11'000);
  EXPECT_EQ(judged.told, std::vector<bool>({false}));
  EXPECT_EQ(lost_clusters_wait_ms(), -1);
}

TEST_F(LostClusters, OneThatHasLeftIsJudgedAtOnce) {
  Judged judged;
  record_left(add_member(), 0);
  note_lost_cluster(1);
  judge(0);
  EXPECT_EQ(judged.told, std::vector<bool>({false}));
  EXPECT_EQ(lost_clusters_wait_ms(), -1);
}

TEST_F(LostClusters, OneOfWhichNobodyCanTellIsWaitedFor) {
  note_lost_cluster(2);  // no cluster of that index is known
  judge(0);
  EXPECT_EQ(told(), R"({"waits_for":[2]})");
  EXPECT_EQ(told(), R"({"waits_for":[2]})");
}

}  // namespace
}  // namespace shadowib
