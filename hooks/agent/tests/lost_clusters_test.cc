// What a member tells of clusters that have failed while its requests to them wait.
#include "hooks/agent/lost_clusters.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "hooks/agent/agent.h"
#include "hooks/agent/agent_state.h"
#include "hooks/job/cluster.h"
#include "hooks/job/current_job.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/protocol.h"

namespace shadowib {
namespace {

constexpr char kEpoch[] = "g0.test";

class LostClusters : public ::testing::Test {
 protected:
  LostClusters() {
    std::string name = ::testing::TempDir() + "lost-XXXXXX";
    top_ = ::mkdtemp(name.data());
    EXPECT_TRUE(Exchange::open("dir:" + top_ + "/x", true, &exchange_).ok());
    g_job.exchange = exchange_.get();
    std::strcpy(g_job.info.epoch, kEpoch);
    std::strcpy(g_job.info.directory, top_.c_str());
    std::strcpy(g_job.info.job, "job");
    std::filesystem::create_directories(std::filesystem::path(paths().renewing).parent_path());
    EXPECT_TRUE(exchange_->claim(cluster_key(kEpoch, "C"), encode_fields({{"index", "1"}})).ok());
    forget_lost_clusters();
  }
  ~LostClusters() override {
    forget_lost_clusters();
    g_job.exchange = nullptr;
    g_job.info = {};
    std::filesystem::remove_all(top_);
  }

  static JobPaths paths() { return job_paths(g_job.info.directory, g_job.info.job); }
  static std::string told() {
    std::string text;
    JsonWriter writer(&text);
    writer.begin_object();
    describe_lost_clusters(writer);
    writer.end_object();
    return text;
  }

  std::string top_;
  std::unique_ptr<Exchange> exchange_;
};

// Retries run out as the word of a recovery is heard: the cluster is judged behind the word, and is still away.
TEST_F(LostClusters, OneThatHasComeBackIsWaitedForNoMore) {
  const int recovery = hold_alive_lock(paths().renewing);
  ASSERT_GE(recovery, 0);
  note_lost_cluster(1);
  note_return(1);
  judge_lost_clusters();
  EXPECT_EQ(told(), R"({"waits_for":[1]})");
  release_alive_lock(recovery);
  EXPECT_EQ(told(), R"({"waits_for":[]})");
}

TEST_F(LostClusters, OneOfWhichNobodyCanTellIsWaitedFor) {
  note_lost_cluster(2);  // no cluster of that index is known
  judge_lost_clusters();
  EXPECT_EQ(told(), R"({"waits_for":[2]})");
  EXPECT_EQ(told(), R"({"waits_for":[2]})");
}

}  // namespace
}  // namespace shadowib
