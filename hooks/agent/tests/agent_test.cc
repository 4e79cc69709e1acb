// Members and the command, in processes of their own: who joins, leaves, asks and comes back.
#include <filesystem>
#include <thread>

#include "hooks/agent/tests/agent_fixture.h"
#include "hooks/agent/tests/relay.h"
#include "hooks/imager/checkpoint_set.h"
#include "hooks/job/member_record.h"
#include "hooks/job/members.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/exchange/tests/redis_server.h"

namespace shadowib {
namespace {

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
  ASSERT_TRUE(query_status(directory_, "job", "", 60000, &status, nullptr).ok());
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

TEST_F(AgentTest, WhoEndsWhileTheAgentIsBusyHasLeft) {
  const std::string busy = directory_ + "/busy";
  start(1, {{"AGENT_TEST_BUSY", busy}, {"AGENT_TEST_END", "_exit"}});
  JobView view;
  ASSERT_TRUE(open_job(directory_, "job", "", &view).ok());
  std::thread other([&] { (void)checkpoint().ok(); });
  while (::access(busy.c_str(), F_OK) != 0) usleep(1000);
  kill(members_[0]->pid(), SIGTERM);
  EXPECT_EQ(members_[0]->wait(), 0);
  const MemberRecord record = read_member_record(alive_path(directory_, "job", view.epoch, lock_name(0)));
  EXPECT_TRUE(record.left);
  EXPECT_EQ(record.status, 0);
  ::unlink(busy.c_str());
  other.join();
}

TEST_F(AgentTest, WhoEndsDuringACheckpointIsInTheSetAndLeavesAfterwards) {
  start(1, {{"SHADOWIB_FAULT", "20:slow"}, {"AGENT_TEST_END", "_exit"}});
  Status taken;
  std::thread other([&] { taken = checkpoint(); });
  while (!has_begun_) usleep(1000);
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
  while (!has_begun_) usleep(1000);
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

TEST_F(AgentTest, AProgramThatAsksIsToldThatAnotherCannotBeCaptured) {
  start(1, {{"AGENT_TEST_DESCRIPTORS", "closed"}});
  members_.push_back(std::make_unique<Member>(
      directory_, 1, Environment{{"AGENT_TEST_REQUEST", "request"}, {"SHADOWIB_COMMAND", AGENT_COMMAND}}));
  const int ended = members_.back()->wait();
  ASSERT_TRUE(WIFEXITED(ended));
  EXPECT_EQ(WEXITSTATUS(ended), 50 + static_cast<int>(Code::kRefused));
}

// Another command's round may end between the end of this one's and its answer.
TEST_F(AgentTest, AProgramThatAsksIsToldOfItsOwnCheckpoint) {
  for (const char* refused : {"1", "2"}) {
    SCOPED_TRACE(refused);
    members_.clear();
    members_.push_back(std::make_unique<Member>(directory_, 0,
                                                Environment{{"AGENT_TEST_REQUEST", "request"},
                                                            {"AGENT_TEST_REFUSE", refused},
                                                            {"AGENT_TEST_FOREIGN", "1"},
                                                            {"SHADOWIB_COMMAND", AGENT_COMMAND}}));
    const bool own_is_taken = refused[0] == '2';
    EXPECT_EQ(members_[0]->runs(), own_is_taken);
    if (own_is_taken) continue;
    const int ended = members_[0]->status();
    EXPECT_TRUE(WIFEXITED(ended));
    EXPECT_EQ(WEXITSTATUS(ended), 50 + static_cast<int>(Code::kAborted));  // the reason is forgotten by then
  }
}

TEST_F(AgentTest, AProgramThatAsksIsToldTheWholePath) {
  std::string deep = directory_;
  for (int i = 0; i < 3; ++i) deep += "/" + std::string(200, 'd');
  std::filesystem::create_directories(deep);
  members_.push_back(std::make_unique<Member>(
      deep, 0,
      Environment{
          {"AGENT_TEST_REQUEST", "request"}, {"AGENT_TEST_TALKS", "1"}, {"SHADOWIB_COMMAND", AGENT_COMMAND}}));
  EXPECT_TRUE(members_[0]->runs());
}

TEST_F(AgentTest, IntervalStartsCheckpointsByItself) {
  start(2, {{"SHADOWIB_INTERVAL", "0.3"}, {"SHADOWIB_COMMAND", AGENT_COMMAND}});
  const std::int64_t deadline = monotonic_ns() + 120'000'000'000;
  std::vector<ListedSet> sets;
  while (sets.size() < 2 && monotonic_ns() < deadline) {
    usleep(20000);
    ASSERT_TRUE(list_sets(directory_, &sets).ok());
  }
  EXPECT_GE(sets.size(), 2u);
  for (auto& member : members_) EXPECT_TRUE(member->runs());
}

// A program that has used up its descriptors is checkpointed and restarted all the same, and has none afterwards.
TEST_F(AgentTest, AProgramWithoutADescriptorLeftIsCheckpointed) {
  start(1, {{"AGENT_TEST_DESCRIPTORS", "full"}});
  for (const bool kill_it : {false, true}) {
    const Status status = checkpoint(kill_it);
    ASSERT_TRUE(status.ok()) << status.text();
    if (!kill_it) {
      EXPECT_TRUE(members_[0]->runs());
    }
  }
  EXPECT_TRUE(WIFSIGNALED(members_[0]->wait()));
  const std::uint64_t saved = counter(0);
  restart_ = fork();
  if (restart_ == 0) {
    close_range(3, ~0u, 0);
    execl(SHADOWIB_CLI, SHADOWIB_CLI, "restart", report_.set_path.c_str(), "--dir", directory_.c_str(), nullptr);
    _exit(127);
  }
  const std::int64_t deadline = monotonic_ns() + 120'000'000'000;
  while (counter(0) <= saved && monotonic_ns() < deadline) usleep(1000);
  const Status again = checkpoint();
  EXPECT_TRUE(again.ok()) << again.text();
  kill(restart_, SIGTERM);
  int ended;
  ASSERT_EQ(waitpid(restart_, &ended, 0), restart_);
  restart_ = -1;
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << std::hex << ended;
}

// Where the limit cannot be raised, either: the command says so, and not after its time-out.
TEST_F(AgentTest, AProgramThatCanHaveNoDescriptorIsRefused) {
  start(1, {{"AGENT_TEST_DESCRIPTORS", "full_hard"}});
  const Status status = checkpoint(false, 60000);  // out of time is another code
  EXPECT_TRUE(status.ok() || (status.code() == Code::kRefused &&
                              std::string(status.text()).find("RLIMIT_NOFILE") != std::string::npos))
      << status.text();  // CAP_SYS_RESOURCE raises a hard limit
  EXPECT_TRUE(members_[0]->runs());
  kill(members_[0]->pid(), SIGTERM);
  const int ended = members_[0]->wait();
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << std::hex << ended;
}

// How many of a process's descriptors are eventfds.
int eventfds_of(pid_t pid) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code error;
    count += std::filesystem::read_symlink(entry, error) == "anon_inode:[eventfd]";
  }
  return count;
}

TEST_F(AgentTest, AProgramThatHasClosedOurDescriptorsIsFoundAndRefused) {
  start(2, {{"AGENT_TEST_DESCRIPTORS", "closed"}});
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Status status = checkpoint();
    EXPECT_EQ(status.code(), Code::kRefused) << status.text();
    EXPECT_NE(std::string(status.text()).find("close_range"), std::string::npos) << status.text();
    expect_nothing_left();
    EXPECT_TRUE(members_[0]->runs() && members_[1]->runs());
    // The agent sleeps on one again. Something else under its number, such as a directory, is always ready: it would
    // spin.
    for (auto& member : members_) {
      const std::int64_t hangs = monotonic_ns() + 120'000'000'000;  // the program goes on before its agent sleeps
      while (eventfds_of(member->pid()) != 1 && monotonic_ns() < hangs) usleep(1000);
      EXPECT_EQ(eventfds_of(member->pid()), 1);
    }
  }
}

// Kill, restart, checkpoint the restarted, kill, restart: the counters go on from where they were saved.
// The watch has told of it already, and the connection breaks below the question for it.
TEST_F(AgentTest, ARequestThatCouldNotBeReadIsLookedForAgain) {
  if (!RedisServer::available()) GTEST_SKIP() << "there is no redis-server; ci/setup installs it";
  const RedisServer server;
  Relay relay(server.port());
  exchange_ = server.uri();
  start(1, {{"SHADOWIB_EXCHANGE", relay.uri()}});
  ASSERT_TRUE(checkpoint().ok());  // behind it the agent looks for a request by the next one only
  relay.drop_request("checkpoint");
  // A question that the agent had asked before may be answered by one request: that is not dropped, and the next is.
  for (int request = 0; request < 50 && !relay.dropped(); ++request) {
    const Status status = checkpoint(false, 20000);
    ASSERT_TRUE(status.ok()) << status.text();
  }
  EXPECT_TRUE(relay.dropped());
}

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
    const std::int64_t deadline = monotonic_ns() + 120'000'000'000;
    while ((counter(0) <= saved[0] || counter(1) <= saved[1]) && monotonic_ns() < deadline) {
      int ended;
      ASSERT_EQ(waitpid(restart_, &ended, WNOHANG), 0) << "the restart command ended with " << std::hex << ended;
      usleep(1000);
    }
    ASSERT_GT(counter(0), saved[0]);
    ASSERT_GT(counter(1), saved[1]);
    EXPECT_LT(counter(0), saved[0] + 1000000) << "not the restored counter";
    std::vector<MemberStatus> members;
    ASSERT_TRUE(query_status(directory_, "job", "", 60000, &members, nullptr).ok());
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

}  // namespace
}  // namespace shadowib
