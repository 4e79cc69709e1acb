// Members of a job and a directory of their own, for the tests of the agent.
#pragma once

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hooks/command/coordinator.h"
#include "hooks/job/members.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/lock.h"

namespace shadowib {

using Environment = std::vector<std::pair<std::string, std::string>>;

// Ends a process that makes this system call, as a filter of a container or a service may.
inline bool enter_filter_that_kills_at(unsigned call) {
  sock_filter words[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog program{4, words};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// AGENT_TEST_KILLED_AT: the number of a system call that its filter ends it at.
class Member {
 public:
  Member(const std::string& directory, int index, const Environment& environment)
      : counter_path_(directory + "/counter" + std::to_string(index)) {
    std::filesystem::remove(counter_path_);  // an earlier member's, which runs() would have this one pass first
    pid_ = fork();
    if (pid_ != 0) return;
    setenv("SHADOWIB_JOB", "job", 1);
    setenv("SHADOWIB_DIR", directory.c_str(), 1);
    setenv("SHADOWIB_COMMAND", SHADOWIB_CLI, 1);  // tries the filter of a container
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    const char* killed_at = getenv("AGENT_TEST_KILLED_AT");
    if (killed_at != nullptr && !enter_filter_that_kills_at(static_cast<unsigned>(std::atoi(killed_at)))) _exit(126);
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
  // Waits until its main thread has gone on; false if it is dead or stays where it is for so long. The time ends a
  // test that hangs and judges no speed: under a sanitizer beside other work a process takes 10 s and more to begin.
  bool runs(int seconds = 120) {
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
  int status() const { return status_; }  // of one that has ended

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
  Status checkpoint(bool kill = false, int timeout_ms = 100000) {
    CheckpointOptions options;
    options.directory = directory_;
    options.job = "job";
    options.exchange = exchange_;
    options.kill = kill;
    options.save = save_;
    options.timeout_ms = timeout_ms;
    options.progress = [this](const CheckpointProgress& p) {
      phases_.push_back(p.phase);
      has_begun_ = true;
    };
    return run_checkpoint(options, &report_);
  }
  // How often member 0 has been asked to settle, by what it says of itself; -1: it does not answer.
  int settles() const {
    std::vector<MemberStatus> members;
    if (!query_status(directory_, "job", "", 60000, &members, nullptr).ok() || members.empty()) return -1;
    const std::string name = "\"settles\":";
    const std::size_t at = members[0].json.find(name);
    return at == std::string::npos ? -1 : std::atoi(members[0].json.c_str() + at + name.size());
  }
  // Waits until all members have heard of the last request and are done with it, as with one whose command is dead.
  // The next request would take its place.
  void await_members_done() {
    JobView view;
    ASSERT_TRUE(open_job(directory_, "job", exchange_, &view).ok());
    Fields request;
    bool found = false;
    ASSERT_TRUE(view.fields("control/checkpoint", &request, &found).ok() && found);
    const Deadline deadline = Deadline::in_ms(60000);
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const std::string key = checkpoint_key(view.epoch, field_number(request, "n"), "done/" + std::to_string(i));
      std::string done;
      for (found = false; !found; usleep(1000)) {
        ASSERT_TRUE(view.exchange->get(key, &done, &found).ok());
        ASSERT_FALSE(deadline.has_passed()) << "member " << i << " has not done with checkpoint " << request["n"];
      }
    }
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
  std::string exchange_;  // URI; empty: the job's directory
  pid_t restart_ = -1;    // the restart command
  std::vector<std::unique_ptr<Member>> members_;
  CheckpointReport report_;
  std::vector<int> phases_;
  std::atomic<bool> has_begun_{false};  // for a thread beside that of the checkpoint
  SaveWay save_ = SaveWay::kStopped;    // of checkpoint()
};

}  // namespace shadowib
