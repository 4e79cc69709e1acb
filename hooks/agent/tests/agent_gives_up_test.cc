// Members and the command, in processes of their own: every way in which a checkpoint or a restart may fail.
#include "hooks/agent/tests/agent_fixture.h"

namespace shadowib {
namespace {

TEST_F(AgentTest, APhaseThatFailsAbortsAndAllGoOn) {
  for (int phase : {10, 20, 30, 35, 40, 50, 60, 70}) {
    SCOPED_TRACE(phase);
    members_.clear();
    start(2, {{"SHADOWIB_FAULT", std::to_string(phase) + ":fail:1"}});
    Status status = checkpoint();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(std::string(status.text()).find("fault point " + std::to_string(phase)), std::string::npos)
        << status.text();
    for (auto& member : members_) EXPECT_TRUE(member->runs());
    expect_nothing_left();
  }
}

// As it was with one that waited for a lock of its program's.
TEST_F(AgentTest, AnAgentThatIsStuckHoldsItsProgramUpForNoLongerThanTheCheckpointMayTake) {
  start(2, {{"SHADOWIB_FAULT", "40:stuck:1:1"}});
  Status status = checkpoint(false, 2000);
  EXPECT_EQ(status.code(), Code::kTimeout) << status.text();
  EXPECT_TRUE(members_[0]->runs());
  EXPECT_TRUE(members_[1]->runs());
  status = checkpoint();
  EXPECT_TRUE(status.ok()) << status.text();
  for (auto& member : members_) EXPECT_TRUE(member->runs());
}

// Back from having been held up, it undoes its part while the program stands once more, and may need a lock again.
TEST_F(AgentTest, AnAgentThatIsStuckTwiceHoldsItsProgramUpForNoLongerThanThat) {
  start(1);
  start(1, {{"SHADOWIB_FAULT", "60:stuck:1:1"}, {"AGENT_TEST_STUCK_RESUME", "1"}});
  const Status status = checkpoint(false, 2000);
  EXPECT_EQ(status.code(), Code::kTimeout) << status.text();
  EXPECT_TRUE(members_[1]->runs());
  const Status next = checkpoint(false, 120000);  // when it has undone its part
  EXPECT_TRUE(next.ok()) << next.text();
  EXPECT_EQ(report_.members.size(), 2u);
  for (auto& member : members_) EXPECT_TRUE(member->runs());
}

TEST_F(AgentTest, AMemberThatDiesAbortsAndTheOthersGoOn) {
  for (int phase : {10, 20, 30, 35, 40, 50, 60, 70}) {
    SCOPED_TRACE(phase);
    members_.clear();
    start(2, {{"SHADOWIB_FAULT", std::to_string(phase) + ":crash:1"}});
    Status status = checkpoint();
    EXPECT_EQ(status.code(), Code::kAborted) << status.text();
    EXPECT_NE(std::string(status.text()).find("died"), std::string::npos) << status.text();
    EXPECT_TRUE(members_[0]->runs());
    EXPECT_FALSE(members_[1]->runs());
    expect_nothing_left();
    status = checkpoint();  // the rest is a job of its own
    EXPECT_TRUE(status.ok()) << status.text();
    EXPECT_EQ(report_.members.size(), 1u);
    std::filesystem::remove_all(directory_ + "/sets");
  }
}

// From its saved image on, a member has no say: the set is committed whole or not at all, and with --kill nobody
// stays behind.
TEST_F(AgentTest, FailingAfterTheSaveObeysTheCommand) {
  for (bool kill : {false, true}) {
    SCOPED_TRACE(kill);
    members_.clear();
    std::filesystem::remove_all(directory_ + "/sets");
    start(2, {{"SHADOWIB_FAULT", "80:fail:1"}});
    Status status = checkpoint(kill);
    if (!status.ok()) expect_nothing_left();
    if (status.ok() && kill) {
      for (auto& member : members_) EXPECT_TRUE(WIFSIGNALED(member->wait()));
    } else {
      for (auto& member : members_) EXPECT_TRUE(member->runs());
    }
  }
}

TEST_F(AgentTest, ACommandThatDiesIsNoticedByItsLock) {
  start(2);
  for (int point : {200, 210, 220}) {
    SCOPED_TRACE(point);
    pid_t command = fork();
    if (command == 0) {
      setenv("SHADOWIB_FAULT", (std::to_string(point) + ":crash").c_str(), 1);
      execl(AGENT_COMMAND, AGENT_COMMAND, directory_.c_str(), nullptr);
      _exit(127);
    }
    int status;
    waitpid(command, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    await_members_done();
    for (auto& member : members_) EXPECT_TRUE(member->runs());
    Status next = checkpoint();
    EXPECT_TRUE(next.ok()) << next.text();
    std::filesystem::remove_all(report_.set_path);
    expect_nothing_left();
  }
}

// By Ctrl-Z, for example, with all images saved: it is there, and decides nothing.
TEST_F(AgentTest, ACommandThatIsStoppedHoldsNobodyUpForLong) {
  start(2);
  const pid_t command = fork();
  if (command == 0) {
    setenv("SHADOWIB_FAULT", "220:stop", 1);
    execl(AGENT_COMMAND, AGENT_COMMAND, directory_.c_str(), "--timeout-ms", "6000", nullptr);
    _exit(127);
  }
  int status = 0;
  ASSERT_EQ(waitpid(command, &status, WUNTRACED), command);
  EXPECT_TRUE(WIFSTOPPED(status));
  for (auto& member : members_) EXPECT_TRUE(member->runs());
  kill(command, SIGCONT);  // it may commit what it has, or give up
  ASSERT_EQ(waitpid(command, &status, 0), command);
  EXPECT_TRUE(WIFEXITED(status));
  const Status next = checkpoint();
  EXPECT_TRUE(next.ok()) << next.text();
  for (auto& member : members_) EXPECT_TRUE(member->runs());
}

// With --kill it may have committed, and members that go on would have lived beyond it.
TEST_F(AgentTest, ACommandThatIsStoppedAndMayKillIsWaitedFor) {
  start(2);
  const pid_t command = fork();
  if (command == 0) {
    setenv("SHADOWIB_FAULT", "220:stop", 1);
    execl(AGENT_COMMAND, AGENT_COMMAND, directory_.c_str(), "--timeout-ms", "6000", "--kill", nullptr);
    _exit(127);
  }
  int status = 0;
  ASSERT_EQ(waitpid(command, &status, WUNTRACED), command);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_FALSE(members_[0]->runs(24));  // 3 s longer than without
  EXPECT_FALSE(members_[1]->runs(1));
  kill(command, SIGCONT);
  ASSERT_EQ(waitpid(command, &status, 0), command);
  ASSERT_TRUE(WIFEXITED(status));
  for (auto& member : members_) {
    if (WEXITSTATUS(status) != 0) {
      EXPECT_TRUE(member->runs());
      continue;
    }
    const int ended = member->wait();
    EXPECT_TRUE(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
  }
}

TEST_F(AgentTest, ARestartThatFailsInOneMemberEndsAllAndSaysSo) {
  for (int phase : {110, 120, 130, 140}) {
    SCOPED_TRACE(phase);
    members_.clear();
    start(2);
    Status status = checkpoint(true);
    ASSERT_TRUE(status.ok()) << status.text();
    for (auto& member : members_) member->wait();
    const std::string fault = std::to_string(phase) + ":fail:1";
    const std::uint64_t saved[2] = {counter(0), counter(1)};
    pid_t command = fork();
    if (command == 0) {
      close_range(3, ~0u, 0);
      setenv("SHADOWIB_FAULT", fault.c_str(), 1);
      execl(SHADOWIB_CLI, SHADOWIB_CLI, "restart", report_.set_path.c_str(), "--dir", directory_.c_str(), nullptr);
      _exit(127);
    }
    int ended = 0;
    ASSERT_EQ(waitpid(command, &ended, 0), command);
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) != 0) << std::hex << ended;
    for (int i : {0, 1}) EXPECT_EQ(counter(i), saved[i]) << "member " << i << " ran although the restart failed";
    std::filesystem::remove_all(directory_ + "/sets");
  }
}

TEST_F(AgentTest, UnsettledRunsAMomentAndTriesAgain) {
  start(1);
  start(1, {{"AGENT_TEST_UNSETTLED", "2"}});
  Status status = checkpoint();
  EXPECT_TRUE(status.ok()) << status.text();
}

TEST_F(AgentTest, NeverSettlingAndRefusalNameTheirReason) {
  start(1);
  start(1, {{"AGENT_TEST_UNSETTLED", "1000"}});
  Status status = checkpoint();
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_NE(std::string(status.text()).find("does not settle"), std::string::npos) << status.text();
  members_.clear();
  start(2, {{"AGENT_TEST_REFUSE", "1"}});
  status = checkpoint();
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_NE(std::string(status.text()).find("queue pair 7"), std::string::npos) << status.text();
  for (auto& member : members_) EXPECT_TRUE(member->runs());
  expect_nothing_left();
}

TEST_F(AgentTest, WhatPassesIsWaitedFor) {
  start(2, {{"AGENT_TEST_PASSING", "2"}});
  const Status status = checkpoint();
  EXPECT_TRUE(status.ok()) << status.text();
  members_.clear();
  std::filesystem::remove_all(report_.set_path);
  start(1, {{"AGENT_TEST_PASSING", "1000"}});
  const std::int64_t began_ns = monotonic_ns();
  EXPECT_EQ(checkpoint().code(), Code::kRefused);
  EXPECT_GE(monotonic_ns() - began_ns, 5'000'000'000) << "what takes seconds passes, too";
  const int tries = settles();
  EXPECT_GE(tries, 8);
  const Code late = checkpoint(false, 400).code();
  if (settles() > tries + 1) {  // else the first attempt has taken all the time, on a slow machine
    EXPECT_EQ(late, Code::kRefused) << "and not that time is over";
  }
  EXPECT_LT(settles(), tries + 8) << "longer than the time-out of all";
  EXPECT_TRUE(members_[0]->runs());
  expect_nothing_left();
}

}  // namespace
}  // namespace shadowib
