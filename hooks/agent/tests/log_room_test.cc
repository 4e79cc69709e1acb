// A log of messages to another cluster that gets full: who asks for a checkpoint of that cluster, who takes it, and
// how often.
#include "hooks/agent/log_room.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/join.h"
#include "hooks/agent/own_checkpoints.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/agent/tests/directory_job.h"
#include "hooks/job/cluster.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr char kEpoch[] = "g0.test";
constexpr int kIntervalMs = 50'000;  // of SHADOWIB_LOG_INTERVAL; longer than any test

class FakeParticipant : public Participant {
 public:
  Status settle(const SettleContext&) override { return {}; }
  Status quiesce() override { return {}; }
  void resume() override {}
  Status restart(const JobInfo&, Exchange*) override { return {}; }
  void describe(std::string*) override {}
  bool log_fills() override { return fills; }
  std::uint64_t logged_since(unsigned cluster) override { return cluster == 2 ? 1 : 0; }

  bool fills = true;
};

// This process is member 0, of cluster 0, and is connected to cluster 2.
class LogRoom : public ::testing::Test {
 protected:
  LogRoom() {
    g_agent.participant = &participant_;
    std::ofstream(job_.top() + "/command") << "#!/bin/sh\necho \"$@\" >>" << job_.top() << "/commands\n";
    ::chmod((job_.top() + "/command").c_str(), 0700);
    ::setenv("SHADOWIB_COMMAND", (job_.top() + "/command").c_str(), 1);
    ::setenv("SHADOWIB_CLUSTER", "A", 1);
    ::setenv("SHADOWIB_LOG_INTERVAL", std::to_string(kIntervalMs / 1000).c_str(), 1);
    EXPECT_TRUE(read_cluster_choice().ok());
    begin_cluster_anew(job_.exchange());
    begin_own_checkpoints();
  }
  ~LogRoom() override {
    ::unsetenv("SHADOWIB_CLUSTER");
    ::unsetenv("SHADOWIB_LOG_INTERVAL");
    EXPECT_TRUE(read_cluster_choice().ok());
    begin_cluster_anew(job_.exchange());
    begin_own_checkpoints();
    g_agent.participant = nullptr;
  }

  std::uint64_t asked(unsigned cluster) {
    return latest_request(&job_.exchange(), kEpoch, room_name(cluster).c_str());
  }
  // Lines of what has been started, once there are that many.
  std::string commands(int count) {
    for (const std::int64_t begin = monotonic_ns(); monotonic_ns() - begin < 60'000'000'000; ::usleep(1000)) {
      std::ifstream file(job_.top() + "/commands");
      const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
      if (std::count(text.begin(), text.end(), '\n') >= count) return text;
    }
    return "no command was started";
  }

  FakeParticipant participant_;
  DirectoryJob job_{kEpoch};
};

TEST_F(LogRoom, AsksEachClusterThatItIsConnectedTo) {
  EXPECT_EQ(log_room_wait_ms(), -1);
  note_log_filling();
  EXPECT_GE(log_room_wait_ms(), 0);
  ask_for_log_room();
  EXPECT_EQ(asked(2), 1u);
  EXPECT_EQ(asked(0), 0u) << "its own";
  EXPECT_EQ(asked(1), 0u) << "it has no connection to that one";
}

TEST_F(LogRoom, AsksOnceInAnIntervalUntilThereIsRoom) {
  note_log_filling();
  ask_for_log_room();
  note_log_filling();
  ask_for_log_room();
  EXPECT_EQ(asked(2), 1u);
  EXPECT_GT(log_room_wait_ms(), kIntervalMs / 2) << "it is full still: it will ask again";
  forget_log_room();
  note_log_filling();
  ask_for_log_room();
  EXPECT_EQ(asked(2), 2u) << "a number that others have seen asks nobody";
  forget_log_room();
  participant_.fills = false;
  note_log_filling();
  ask_for_log_room();
  EXPECT_EQ(asked(2), 2u);
  EXPECT_EQ(log_room_wait_ms(), -1);
}

TEST_F(LogRoom, WithoutAnIntervalNobodyIsAskedAndNobodyTakesAny) {
  ::setenv("SHADOWIB_LOG_INTERVAL", "0", 1);
  EXPECT_TRUE(read_cluster_choice().ok());
  begin_cluster_anew(job_.exchange());
  note_log_filling();
  EXPECT_EQ(log_room_wait_ms(), -1);
  ask_for_log_room();
  EXPECT_EQ(asked(2), 0u);
  note_room_request();
  EXPECT_EQ(own_checkpoint_wait_ms(), -1);
}

TEST_F(LogRoom, TheFirstThatIsAskedForIsTakenAtOnceAndTheNextNotSoon) {
  note_room_request();
  EXPECT_LE(own_checkpoint_wait_ms(), 1);
  start_own_checkpoint();
  EXPECT_NE(commands(1).find("--cluster A"), std::string::npos) << commands(1);
  start_own_checkpoint();
  EXPECT_GT(own_checkpoint_wait_ms(), kIntervalMs / 2) << "one that was refused is tried again then";
  restart_interval();  // it has been committed
  EXPECT_EQ(own_checkpoint_wait_ms(), -1);
  note_room_request();
  EXPECT_GT(own_checkpoint_wait_ms(), kIntervalMs / 2);
  start_own_checkpoint();
  const std::string started = commands(1);
  EXPECT_EQ(std::count(started.begin(), started.end(), '\n'), 1);
}

TEST_F(LogRoom, AnIntervalThatIsNoneIsRefusedByName) {
  for (const char* wrong : {"soon", "-1", "5s", "1e9", "nan"}) {
    ::setenv("SHADOWIB_LOG_INTERVAL", wrong, 1);
    const Status status = read_cluster_choice();
    EXPECT_EQ(status.code(), Code::kUsage) << wrong;
    EXPECT_NE(std::string(status.text()).find("SHADOWIB_LOG_INTERVAL"), std::string::npos) << status.text();
  }
}

// A process that comes late passes over what was asked before.
TEST_F(LogRoom, WhatWasAskedBeforeIsPassedOver) {
  for (const char* name : {"checkpoint.0", "room.0"})
    ASSERT_TRUE(job_.exchange().publish(std::string(kEpoch) + "/control/" + name, encode_fields({{"n", "7"}})).ok());
  begin_cluster_anew(job_.exchange());
  EXPECT_FALSE(is_new_room_request(7));
  EXPECT_FALSE(is_new_clc_request(0, 7));
  EXPECT_TRUE(is_new_room_request(8));
  EXPECT_TRUE(is_new_clc_request(0, 8));
}

TEST_F(LogRoom, EachNumberIsHeardOnce) {
  EXPECT_TRUE(is_new_room_request(3));
  EXPECT_FALSE(is_new_room_request(3));
  EXPECT_FALSE(is_new_room_request(2));
  EXPECT_TRUE(is_new_room_request(4));
}

}  // namespace
}  // namespace shadowib
