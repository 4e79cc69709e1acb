// Members and the command against each other, in processes of their own: every way a checkpoint may end.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "hooks/coordinator.h"
#include "hooks/imager/checkpoint_set.h"
#include "hooks/job_members.h"
#include "hooks/protocol.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

using Environment = std::vector<std::pair<std::string, std::string>>;

class Member {
 public:
  Member(const std::string& directory, int index, const Environment& environment)
      : counter_path_(directory + "/counter" + std::to_string(index)) {
    std::filesystem::remove(counter_path_);  // an earlier member's, which runs() would have this one pass first
    pid_ = fork();
    if (pid_ != 0) return;
    setenv("SHADOWIB_JOB", "job", 1);
    setenv("SHADOWIB_DIR", directory.c_str(), 1);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    close_range(3, ~0u, 0);  // whatever the test runner leaks would lead outside the job
    execl(AGENT_VICTIM, AGENT_VICTIM, counter_path_.c_str(), getenv("AGENT_TEST_REQUEST"), nullptr);
    _exit(127);
  }
  ~Member() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  std::uint64_t counter() const {
    std::uint64_t value = 0;
    std::ifstream(counter_path_, std::ios::binary).read(reinterpret_cast<char*>(&value), sizeof(value));
    return value;
  }
  // Waits until its main thread has gone on; false if it is dead or stays where it is for so long.
  bool runs(int seconds = 10) {
    const std::uint64_t before = counter();
    const std::int64_t deadline = monotonic_ns() + seconds * std::int64_t{1'000'000'000};
    while (counter() <= before) {
      if (pid_ <= 0 || waitpid(pid_, &status_, WNOHANG) == pid_) {
        pid_ = -1;
        return false;
      }
      if (monotonic_ns() > deadline) return false;
      usleep(1000);
    }
    return true;
  }
  int wait() {
    waitpid(pid_, &status_, 0);
    pid_ = -1;
    return status_;
  }
  int pid() const { return pid_; }

 private:
  std::string counter_path_;
  pid_t pid_ = -1;
  int status_ = 0;
};

class AgentTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/shadowib-agent-test-XXXXXX";
    directory_ = mkdtemp(name);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  void TearDown() override {
    members_.clear();
    if (restart_ > 0) kill(restart_, SIGKILL), waitpid(restart_, nullptr, 0);
    end_what_they_started();
    if (!HasFailure())
      std::filesystem::remove_all(directory_);
    else
      std::cerr << "kept: " << directory_ << "\n";
  }
  // Starts members one after the other, so that indices are known.
  void start(int count, const Environment& environment = {}) {
    for (int i = 0; i < count; ++i) {
      members_.push_back(std::make_unique<Member>(directory_, static_cast<int>(members_.size()), environment));
      ASSERT_TRUE(members_.back()->runs());
    }
  }
  Status checkpoint(bool kill = false, int timeout_ms = 20000) {
    CheckpointOptions options;
    options.directory = directory_;
    options.job = "job";
    options.kill = kill;
    options.timeout_ms = timeout_ms;
    options.progress = [this](const CheckpointProgress& p) { phases_.push_back(p.phase); };
    return run_checkpoint(options, &report_);
  }
  // How often member 0 has been asked to settle, by what it says of itself; -1: it does not answer.
  int settles() const {
    std::vector<MemberStatus> members;
    if (!query_status(directory_, "job", "", 2000, &members, nullptr).ok() || members.empty()) return -1;
    const std::string name = "\"settles\":";
    const std::size_t at = members[0].json.find(name);
    return at == std::string::npos ? -1 : std::atoi(members[0].json.c_str() + at + name.size());
  }
  void expect_nothing_left() {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/sets", error))
      ADD_FAILURE() << "left behind: " << entry.path();
  }

  // The commands of members and the restored members, who outlive those who started them and would go on writing to
  // the directory: this process is their reaper.
  static void end_what_they_started() {
    for (;;) {
      std::ifstream children("/proc/thread-self/children");
      pid_t child;
      while (children >> child) kill(child, SIGKILL);
      if (waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) return;
    }
  }

  std::uint64_t counter(int index) const {
    std::uint64_t value = 0;
    std::ifstream file(directory_ + "/counter" + std::to_string(index), std::ios::binary);
    file.read(reinterpret_cast<char*>(&value), sizeof(value));
    return value;
  }

  std::string directory_;
  pid_t restart_ = -1;  // the restart command
  std::vector<std::unique_ptr<Member>> members_;
  CheckpointReport report_;
  std::vector<int> phases_;
};

TEST_F(AgentTest, CheckpointsInARowAndTheMembersGoOn) {
  start(2);
  for (std::uint32_t n = 1; n <= 3; ++n) {
    Status status = checkpoint();
    ASSERT_TRUE(status.ok()) << status.text();
    EXPECT_EQ(report_.members.size(), 2u);
    SetManifest manifest;
    ASSERT_TRUE(read_manifest(report_.set_path, &manifest).ok());
    EXPECT_EQ(manifest.members.size(), 2u);
    EXPECT_FALSE(manifest.files.empty());
    for (const auto& m : report_.members) {
      EXPECT_GT(m.bytes, 0u);
      EXPECT_GT(m.save_ns, 0);
      EXPECT_EQ(std::filesystem::file_size(report_.set_path + "/" + manifest.members[m.index].file), m.bytes);
    }
    for (auto& member : members_) EXPECT_TRUE(member->runs());
  }
  std::vector<MemberStatus> status;
  ASSERT_TRUE(query_status(directory_, "job", "", 2000, &status, nullptr).ok());
  ASSERT_EQ(status.size(), 2u);
  for (const auto& s : status) {
    EXPECT_TRUE(s.alive && s.answered);
    EXPECT_NE(s.json.find("\"hooks\":330"), std::string::npos) << s.json;
    EXPECT_NE(s.json.find("\"resumes\":3"), std::string::npos) << s.json;
  }
}

TEST_F(AgentTest, KillEndsTheMembersAfterTheCommit) {
  start(2);
  Status status = checkpoint(true);
  ASSERT_TRUE(status.ok()) << status.text();
  for (auto& member : members_) {
    int ended = member->wait();
    EXPECT_TRUE(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
  }
  EXPECT_TRUE(std::filesystem::exists(report_.set_path));
}

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
  for (int phase : {40, 60}) {
    SCOPED_TRACE(phase);
    members_.clear();
    start(2, {{"SHADOWIB_FAULT", std::to_string(phase) + ":stuck:1:1"}});
    Status status = checkpoint(false, 2000);
    EXPECT_EQ(status.code(), Code::kTimeout) << status.text();
    EXPECT_TRUE(members_[0]->runs());
    EXPECT_TRUE(members_[1]->runs(30));
    status = checkpoint();
    EXPECT_TRUE(status.ok()) << status.text();
    for (auto& member : members_) EXPECT_TRUE(member->runs());
    std::filesystem::remove_all(directory_ + "/sets");
  }
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
    for (auto& member : members_) EXPECT_TRUE(member->runs());
    Status next = checkpoint();  // waits for those that are still resuming
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
  for (auto& member : members_) EXPECT_TRUE(member->runs(60));
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

TEST_F(AgentTest, NobodyThereIsNotFound) {
  EXPECT_EQ(checkpoint().code(), Code::kNotFound);
  start(1);
  kill(members_[0]->pid(), SIGTERM);
  EXPECT_EQ(members_[0]->wait(), 0);
  EXPECT_EQ(checkpoint().code(), Code::kNotFound);
  std::vector<MemberStatus> status;
  ASSERT_TRUE(query_status(directory_, "job", "", 500, &status, nullptr).ok());
  ASSERT_EQ(status.size(), 1u);
  EXPECT_TRUE(status[0].gone && !status[0].alive);
}

TEST_F(AgentTest, WhoEndsWithoutDestructorsHasLeft) {
  for (const char* end : {"_exit", "handler"}) {
    SCOPED_TRACE(end);
    members_.clear();
    start(1, {{"AGENT_TEST_END", end}});
    kill(members_[0]->pid(), SIGTERM);
    EXPECT_EQ(members_[0]->wait(), 0);
    std::vector<MemberStatus> status;
    ASSERT_TRUE(query_status(directory_, "job", "", 500, &status, nullptr).ok());
    ASSERT_EQ(status.size(), 1u);
    EXPECT_TRUE(status[0].gone && !status[0].alive);
  }
}

TEST_F(AgentTest, WhoEndsDuringACheckpointIsInTheSetAndLeavesAfterwards) {
  start(1, {{"SHADOWIB_FAULT", "20:slow"}, {"AGENT_TEST_END", "_exit"}});
  Status taken;
  std::thread other([&] { taken = checkpoint(); });
  while (phases_.empty()) usleep(1000);
  // The phase takes 2 s, and who ends waits as long at most: late in it most of that is left for a busy machine.
  // Behind it, the signal waits for the checkpoint's end.
  usleep(1'700'000);
  kill(members_[0]->pid(), SIGTERM);
  other.join();
  EXPECT_TRUE(taken.ok()) << taken.text();
  EXPECT_EQ(members_[0]->wait(), 0);
  std::vector<MemberStatus> status;
  ASSERT_TRUE(query_status(directory_, "job", "", 500, &status, nullptr).ok());
  ASSERT_EQ(status.size(), 1u);
  EXPECT_TRUE(status[0].gone && !status[0].alive);
}

TEST_F(AgentTest, TwoCommandsAtOnceAreToldApart) {
  start(1, {{"SHADOWIB_FAULT", "20:slow"}});
  Status first;
  std::thread other([&] { first = checkpoint(); });
  while (phases_.empty()) usleep(1000);
  CheckpointOptions options;
  options.directory = directory_;
  options.job = "job";
  CheckpointReport report;
  EXPECT_EQ(run_checkpoint(options, &report).code(), Code::kBusy);
  other.join();
  EXPECT_TRUE(first.ok()) << first.text();
}

TEST_F(AgentTest, AMemberThatHasLeftIsNoPartOfTheSet) {
  start(2);
  kill(members_[0]->pid(), SIGTERM);
  EXPECT_EQ(members_[0]->wait(), 0);
  Status status = checkpoint();
  ASSERT_TRUE(status.ok()) << status.text();
  ASSERT_EQ(report_.members.size(), 1u);
  EXPECT_EQ(report_.members[0].index, 1u);
}

TEST_F(AgentTest, AJobNameUsedAgainBeginsAfresh) {
  start(2);
  members_.clear();
  start(1);
  Status status = checkpoint();
  ASSERT_TRUE(status.ok()) << status.text();
  ASSERT_EQ(report_.members.size(), 1u);
  EXPECT_EQ(report_.members[0].index, 0u);
}

TEST_F(AgentTest, AProgramAsksForItsOwnCheckpoint) {
  start(1);
  start(1, {{"AGENT_TEST_REQUEST", "request"}, {"SHADOWIB_COMMAND", AGENT_COMMAND}});  // runs on after it
  std::vector<ListedSet> sets;
  ASSERT_TRUE(list_sets(directory_, &sets).ok());
  ASSERT_EQ(sets.size(), 1u);
  EXPECT_TRUE(sets[0].status.ok()) << sets[0].status.text();
  EXPECT_EQ(sets[0].manifest.members.size(), 2u);
}

TEST_F(AgentTest, IntervalStartsCheckpointsByItself) {
  start(2, {{"SHADOWIB_INTERVAL", "0.3"}, {"SHADOWIB_COMMAND", AGENT_COMMAND}});
  const std::int64_t deadline = monotonic_ns() + 20'000'000'000;
  std::vector<ListedSet> sets;
  while (sets.size() < 2 && monotonic_ns() < deadline) {
    usleep(20000);
    ASSERT_TRUE(list_sets(directory_, &sets).ok());
  }
  EXPECT_GE(sets.size(), 2u);
  for (auto& member : members_) EXPECT_TRUE(member->runs());
}

// Kill, restart, checkpoint the restarted, kill, restart: the counters go on from where they were saved.
TEST_F(AgentTest, RestartOfARestartGoesOn) {
  start(2);
  for (int generation = 1; generation <= 2; ++generation) {
    SCOPED_TRACE(generation);
    const pid_t last = restart_;
    Status status = checkpoint(true);
    ASSERT_TRUE(status.ok()) << status.text();
    if (generation == 1) {
      for (auto& member : members_) EXPECT_TRUE(WIFSIGNALED(member->wait()));
    } else {
      waitpid(last, nullptr, 0);
    }
    std::uint64_t saved[2] = {counter(0), counter(1)};
    restart_ = fork();
    if (restart_ == 0) {
      close_range(3, ~0u, 0);
      execl(SHADOWIB_CLI, SHADOWIB_CLI, "restart", report_.set_path.c_str(), "--dir", directory_.c_str(), nullptr);
      _exit(127);
    }
    const std::int64_t deadline = monotonic_ns() + 20'000'000'000;
    while ((counter(0) <= saved[0] || counter(1) <= saved[1]) && monotonic_ns() < deadline) {
      int ended;
      ASSERT_EQ(waitpid(restart_, &ended, WNOHANG), 0) << "the restart command ended with " << std::hex << ended;
      usleep(1000);
    }
    ASSERT_GT(counter(0), saved[0]);
    ASSERT_GT(counter(1), saved[1]);
    EXPECT_LT(counter(0), saved[0] + 1000000) << "not the restored counter";
    std::vector<MemberStatus> members;
    ASSERT_TRUE(query_status(directory_, "job", "", 2000, &members, nullptr).ok());
    ASSERT_EQ(members.size(), 2u);
    for (const auto& m : members) {
      EXPECT_TRUE(m.alive && m.answered);
      EXPECT_NE(m.json.find("\"restarts\":" + std::to_string(generation)), std::string::npos) << m.json;
      EXPECT_NE(m.json.find("\"generation\":" + std::to_string(generation)), std::string::npos) << m.json;
    }
  }
  kill(restart_, SIGTERM);  // forwarded; the members end in an orderly way
  int ended;
  ASSERT_EQ(waitpid(restart_, &ended, 0), restart_);
  restart_ = -1;
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << std::hex << ended;
}

TEST_F(AgentTest, WhoTheRestartHasNotBroughtBackYetIsNotLeftOut) {
  start(2);
  JobView view;
  ASSERT_TRUE(open_job(directory_, "job", "", &view).ok());
  // As while a restart of three has brought two back.
  const int restarting = hold_alive_lock(directory_ + "/jobs/job/alive/restart");
  ASSERT_GE(restarting, 0);
  ASSERT_TRUE(view.exchange->publish(reserved_members_key(view.epoch), encode_reserved_members({0, 1, 3})).ok());
  Status status = checkpoint();
  EXPECT_EQ(status.code(), Code::kBusy) << status.text();
  EXPECT_NE(std::string(status.text()).find("has not brought all"), std::string::npos) << status.text();
  expect_nothing_left();
  close_owned_descriptor(restarting);  // it has died: nobody comes any more
  status = checkpoint();
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(report_.members.size(), 2u);
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
  EXPECT_EQ(checkpoint().code(), Code::kRefused);
  EXPECT_EQ(settles(), 8);
  EXPECT_EQ(checkpoint(false, 400).code(), Code::kRefused) << "and not that time is over";
  EXPECT_LT(settles(), 8 + 8) << "longer than the time-out of all";
  EXPECT_TRUE(members_[0]->runs());
  expect_nothing_left();
}

}  // namespace
}  // namespace shadowib
