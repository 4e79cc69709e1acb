// A member whose image is saved, and who cannot reach the exchange any more while another still writes its own.
#include <thread>

#include "hooks/agent/tests/agent_fixture.h"
#include "hooks/agent/tests/relay.h"
#include "hooks/job/members.h"
#include "hooks/job/protocol.h"
#include "shadowib/exchange/tests/redis_server.h"

namespace shadowib {
namespace {

// Member 0 stops before its image is written, and member 1 is cut off behind its own. Both wait for the test.
class CutOffTest : public AgentTest {
 protected:
  void SetUp() override {
    AgentTest::SetUp();
    if (!RedisServer::available()) GTEST_SKIP() << "there is no redis-server; ci/setup installs it";
    server_ = std::make_unique<RedisServer>();
    relay_ = std::make_unique<Relay>(server_->port());
    exchange_ = server_->uri();
    start(1, {{"SHADOWIB_EXCHANGE", server_->uri()}, {"SHADOWIB_FAULT", "70:stop:0"}});
    start(1, {{"SHADOWIB_EXCHANGE", relay_->uri()}});
    ASSERT_TRUE(open_job(directory_, "job", exchange_, &view_).ok());
  }
  void TearDown() override {
    if (command_.joinable()) command_.join();
    AgentTest::TearDown();
  }
  bool is_there(const char* what) {
    std::string text;
    bool found = false;
    return view_.exchange->get(view_.key(std::string("ckpt/1/") + what), &text, &found).ok() && found;
  }
  template <typename Condition>
  static bool until(Condition condition) {
    const std::int64_t deadline = monotonic_ns() + 120'000'000'000;
    while (!condition())
      if (monotonic_ns() > deadline || usleep(1000) != 0) return false;
    return true;
  }
  void begin(bool kill, int timeout_ms = 100000) {
    command_ = std::thread([=, this] { status_ = checkpoint(kill, timeout_ms); });
  }
  // It asks again and again, and stands.
  void cut_off() {
    int status = 0;
    ASSERT_EQ(waitpid(members_[0]->pid(), &status, WUNTRACED), members_[0]->pid());
    ASSERT_TRUE(WIFSTOPPED(status));
    ASSERT_TRUE(until([this] { return is_there("saved/1"); }));
    const std::uint64_t before = members_[1]->counter();
    relay_->cut();
    EXPECT_TRUE(until([&] { return relay_->refused() >= 10 || members_[1]->counter() != before; }));
    EXPECT_EQ(members_[1]->counter(), before) << "it goes on while member 0's image is written";
  }
  void save_the_other() const { kill(members_[0]->pid(), SIGCONT); }
  void expect_killed() {
    for (auto& member : members_) {
      EXPECT_FALSE(member->runs()) << "it lives beyond the set";
      const int ended = member->status();
      EXPECT_TRUE(member->pid() < 0 && WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL) << std::hex << ended;
    }
  }

  std::unique_ptr<RedisServer> server_;
  std::unique_ptr<Relay> relay_;
  JobView view_;
  std::thread command_;
  Status status_;
};

TEST_F(CutOffTest, StandsUntilAllAreSaved) {
  begin(false);
  cut_off();
  save_the_other();
  command_.join();
  EXPECT_TRUE(status_.ok()) << status_.text();
  for (auto& member : members_) EXPECT_TRUE(member->runs());
}

TEST_F(CutOffTest, GivesUpOnceTheExchangeIsBack) {
  begin(false);
  cut_off();
  relay_->mend();
  EXPECT_TRUE(until([this] { return is_there("abort"); }));
  save_the_other();
  command_.join();
  EXPECT_EQ(status_.code(), Code::kAborted) << status_.text();
  for (auto& member : members_) EXPECT_TRUE(member->runs());
  expect_nothing_left();
}

TEST_F(CutOffTest, IsKilledOnceTheExchangeIsBack) {
  begin(true);
  cut_off();
  save_the_other();
  EXPECT_TRUE(until([this] { return is_there("outcome"); }));
  relay_->mend();
  command_.join();
  EXPECT_TRUE(status_.ok()) << status_.text();
  expect_killed();
}

TEST_F(CutOffTest, EndsByTheSetIfTheExchangeIsGoneForGood) {
  begin(true, 20000);
  cut_off();
  save_the_other();
  command_.join();
  EXPECT_TRUE(status_.ok()) << status_.text();
  expect_killed();
}

TEST_F(CutOffTest, GoesOnIfTheCommandHasDiedWithoutASet) {
  const pid_t command = fork();
  if (command == 0) {
    close_range(3, ~0u, 0);
    setenv("SHADOWIB_FAULT", "220:crash", 1);
    execl(AGENT_COMMAND, AGENT_COMMAND, directory_.c_str(), "--exchange", exchange_.c_str(), "--kill", nullptr);
    _exit(127);
  }
  cut_off();
  save_the_other();
  int status = 0;
  ASSERT_EQ(waitpid(command, &status, 0), command);
  EXPECT_TRUE(WIFSIGNALED(status)) << std::hex << status;
  for (auto& member : members_) EXPECT_TRUE(member->runs());
  // The last member that goes on removes what the command has left.
  EXPECT_TRUE(until([this] { return std::filesystem::is_empty(directory_ + "/sets"); }));
}

}  // namespace
}  // namespace shadowib
