// What a member tells of clusters that have failed while its requests to them wait.
#include "hooks/agent/lost_clusters.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "hooks/agent/agent.h"
#include "hooks/agent/agent_state.h"
#include "hooks/agent/tests/directory_job.h"
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
    std::filesystem::create_directories(std::filesystem::path(paths().renewing).parent_path());
    EXPECT_TRUE(job_.exchange().claim(cluster_key(kEpoch, "C"), encode_fields({{"index", "1"}})).ok());
    forget_lost_clusters();
  }
  ~LostClusters() override { forget_lost_clusters(); }

  static JobPaths paths() { return job_paths(g_job.info.directory, g_job.info.job); }
  static std::string told() {
    std::string text;
    JsonWriter writer(&text);
    writer.begin_object();
    describe_lost_clusters(writer);
    writer.end_object();
    return text;
  }

  DirectoryJob job_{kEpoch};
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
