// Members that go on while savers write their images (--save forked).
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>

#include "hooks/agent/tests/agent_fixture.h"
#include "hooks/imager/checkpoint_set.h"
#include "hooks/job/phase.h"

namespace shadowib {
namespace {

constexpr std::int64_t kSlowNs = 2'000'000'000;  // hooks/threads/fault.h

class AgentSaverTest : public AgentTest {
 protected:
  AgentSaverTest() { save_ = SaveWay::kForked; }
  // Begins a checkpoint and returns when the programs have gone on and savers are slow.
  void begin() {
    other_ = std::thread([this] { taken_ = checkpoint(); });
    while (!savers_run()) usleep(1000);
  }
  Status end() {
    other_.join();
    return taken_;
  }
  // The savers that run, by the name that they have.
  static std::vector<int> savers() {
    std::vector<int> pids;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::string name;
      std::getline(std::ifstream(entry.path() / "comm"), name);
      if (name == "shadowib-saver") pids.push_back(std::atoi(entry.path().filename().c_str()));
    }
    return pids;
  }
  bool savers_run() const { return is_adopted(savers()); }

  std::thread other_;
  Status taken_;

 private:
  // This process is their reaper, and nobody else's savers have it for a parent.
  static bool is_adopted(const std::vector<int>& pids) {
    return std::any_of(pids.begin(), pids.end(), [](int pid) {
      std::string text;
      std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), text);
      const std::size_t name = text.rfind(')');
      return name != std::string::npos && text[name + 2] != 'Z' && std::atoi(text.c_str() + name + 4) == getpid();
    });
  }
};

// For how long a member's counter has stood, at most: it may have been stopped right after the look before it moved.
// So whoever gets no processor for a while does not take it for one that has hardly stood.
class Standing {
 public:
  void look(const std::function<std::uint64_t()>& read) {
    const std::int64_t before_ns = monotonic_ns();
    const std::uint64_t counter = read();
    if (counter != counter_) since_ns_ = looked_ns_;
    counter_ = counter;
    looked_ns_ = before_ns;
    longest_ns_ = std::max(longest_ns_, looked_ns_ - since_ns_);
  }
  std::int64_t stands_ns() const { return monotonic_ns() - since_ns_; }
  // Also if it has gone on since.
  std::int64_t longest_ns() const { return std::max(longest_ns_, stands_ns()); }

 private:
  std::uint64_t counter_ = 0;
  std::int64_t since_ns_ = monotonic_ns(), looked_ns_ = since_ns_, longest_ns_ = 0;
};

TEST_F(AgentSaverTest, MembersRunWhileTheirImagesAreWritten) {
  start(2, {{"SHADOWIB_FAULT", "68:slow"}});
  begin();
  for (auto& member : members_) EXPECT_TRUE(member->runs());
  EXPECT_TRUE(savers_run());
  std::vector<ListedSet> sets;
  ASSERT_TRUE(list_sets(directory_, &sets).ok());
  EXPECT_TRUE(sets.empty());
  CheckpointReport second;
  CheckpointOptions options;
  options.directory = directory_;
  options.job = "job";
  EXPECT_EQ(run_checkpoint(options, &second).code(), Code::kBusy);
  const Status status = end();
  ASSERT_TRUE(status.ok()) << status.text();
  SetManifest manifest;
  ASSERT_TRUE(read_manifest(report_.set_path, &manifest).ok());
  for (const auto& m : report_.members) {
    EXPECT_EQ(m.save, "forked") << m.why_stopped;
    EXPECT_GE(m.save_ns, kSlowNs);
    EXPECT_EQ(std::filesystem::file_size(report_.set_path + "/" + manifest.members[m.index].file), m.bytes);
  }
  EXPECT_FALSE(savers_run());
}

// A saver shares the memory of its program for a moment, and members look who shares theirs.
TEST_F(AgentSaverTest, NoSaverIsMadeBeforeAllMembersHaveLooked) {
  start(1, {{"SHADOWIB_FAULT", "68:slow"}});
  start(1, {{"SHADOWIB_FAULT", "65:slow"}});
  other_ = std::thread([this] { taken_ = checkpoint(); });
  Standing member;
  for (; !savers_run(); usleep(1000)) member.look([this] { return counter(0); });
  const std::int64_t stood_ns = member.longest_ns();
  const Status status = end();
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_GE(stood_ns, kSlowNs * 9 / 10) << "the first saver was there before member 1 had come to phase 65";
}

TEST_F(AgentSaverTest, NobodyGoesOnBeforeAllMembersAreCopied) {
  start(1);
  start(1, {{"SHADOWIB_FAULT", "66:slow"}});
  std::atomic<bool> ended{false};
  std::thread other([&] { taken_ = checkpoint(), ended = true; });
  std::int64_t longest_ns = 0;
  for (Standing member; !ended; usleep(1000)) {
    member.look([this] { return counter(0); });
    longest_ns = std::max(longest_ns, member.stands_ns());
  }
  other.join();
  ASSERT_TRUE(taken_.ok()) << taken_.text();
  EXPECT_GE(longest_ns, kSlowNs * 9 / 10) << "member 0 has gone on while member 1 was not copied";
}

// At once: who ends does not wait for its image.
TEST_F(AgentSaverTest, AMemberThatEndsMeanwhileEndsTheCheckpoint) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    SCOPED_TRACE(signal);
    members_.clear();
    start(2, {{"SHADOWIB_FAULT", "68:slow"}});
    begin();
    kill(members_[0]->pid(), signal);
    members_[0]->wait();
    const Status status = end();
    EXPECT_EQ(status.code(), Code::kAborted) << status.text();
    EXPECT_NE(std::string(status.text()).find("member 0"), std::string::npos) << status.text();
    EXPECT_TRUE(members_[1]->runs());
    expect_nothing_left();
  }
}

TEST_F(AgentSaverTest, ASaverThatDiesOrFailsEndsTheCheckpoint) {
  for (const auto& [fault, code, text] : {std::tuple{"68:crash:1", Code::kAborted, "use --save auto or stopped"},
                                          {"68:fail:1", Code::kIo, "fault point 68"},
                                          {"68:enospc:1", Code::kIo, "no space left"}}) {
    SCOPED_TRACE(fault);
    members_.clear();
    start(2, {{"SHADOWIB_FAULT", fault}});
    const Status status = checkpoint();
    EXPECT_EQ(status.code(), code) << status.text();
    EXPECT_NE(std::string(status.text()).find(text), std::string::npos) << status.text();
    for (auto& member : members_) EXPECT_TRUE(member->runs());
    expect_nothing_left();
    EXPECT_FALSE(savers_run());
  }
}

TEST_F(AgentSaverTest, AnAutomaticOneIsTakenAnewWithoutASaverThatDies) {
  save_ = SaveWay::kAuto;
  start(2);
  Status status = checkpoint();
  ASSERT_TRUE(status.ok()) << status.text();
  for (const auto& m : report_.members) EXPECT_EQ(m.save, "forked") << m.why_stopped;
  EXPECT_EQ(report_.why_stopped, "");
  members_.clear();
  start(2, {{"SHADOWIB_FAULT", "68:crash:1"}});
  status = checkpoint();
  ASSERT_TRUE(status.ok()) << status.text();
  for (const auto& m : report_.members) EXPECT_EQ(m.save, "") << "it is a checkpoint of --save stopped";
  EXPECT_NE(report_.why_stopped.find("was killed"), std::string::npos) << report_.why_stopped;
  EXPECT_EQ(report_.why_stopped.find("use --save"), std::string::npos) << report_.why_stopped;
  for (auto& member : members_) EXPECT_TRUE(member->runs());
  EXPECT_FALSE(savers_run());
}

// A saver that hangs is ended at the time-out, and the next checkpoint is as ever.
TEST_F(AgentSaverTest, ASaverThatHangsIsEndedAtTheTimeOut) {
  start(1, {{"SHADOWIB_FAULT", "68:stop"}});
  const Status status = checkpoint(false, 3000);
  EXPECT_EQ(status.code(), Code::kTimeout) << status.text();
  EXPECT_TRUE(members_[0]->runs());
  EXPECT_FALSE(savers_run());
  expect_nothing_left();
  save_ = SaveWay::kStopped;
  EXPECT_TRUE(checkpoint().ok());
}

TEST_F(AgentSaverTest, AMemberWithoutASaverStands) {
  start(1, {{"AGENT_TEST_ADOPTS", "1"}});
  const Status status = checkpoint();
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(report_.members[0].save, "stopped");
  EXPECT_NE(report_.members[0].why_stopped.find("adopts orphans"), std::string::npos);
  EXPECT_TRUE(members_[0]->runs());
}

// Only the calls of hooks/raw/needed_calls.h have been tried there.
TEST_F(AgentSaverTest, AMemberUnderAFilterIsAskedForNoMoreCalls) {
  for (const SaveWay save : {SaveWay::kForked, SaveWay::kAuto}) {
    save_ = save;
    members_.clear();
    start(1, {{"AGENT_TEST_KILLED_AT", std::to_string(SYS_getrusage)}});
    const Status status = checkpoint();
    ASSERT_TRUE(status.ok()) << status.text();
    EXPECT_EQ(report_.members[0].save, "stopped");
    EXPECT_NE(report_.members[0].why_stopped.find("seccomp"), std::string::npos) << report_.members[0].why_stopped;
    EXPECT_TRUE(members_[0]->runs());
  }
}

TEST_F(AgentSaverTest, EndsByKillInTheOrderOfEveryOther) {
  start(1, {{"SHADOWIB_FAULT", "68:fail"}});
  const Status status = checkpoint(true);
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(report_.members[0].save, "");
  EXPECT_TRUE(WIFSIGNALED(members_[0]->wait()));
}

}  // namespace
}  // namespace shadowib
