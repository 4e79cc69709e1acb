// The gates of clusters that went back, as one member's agent keeps them: what it tells its participant and others,
// and when they open.
#include "hooks/agent/gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <string>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/gate_board.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/agent/tests/directory_job.h"
#include "hooks/job/current_job.h"
#include "hooks/job/job_directory.h"

namespace shadowib {
namespace {

constexpr std::uint64_t kNothing = std::numeric_limits<std::uint64_t>::max(), kUnknown = 0;
constexpr char kEpoch[] = "g0.test";
constexpr unsigned kBack = 1;  // this member is of cluster 0

class FakeParticipant : public Participant {
 public:
  Status settle(const SettleContext&) override { return {}; }
  Status quiesce() override { return {}; }
  void resume() override {}
  Status restart(const JobInfo&, Exchange*) override { return {}; }
  void describe(std::string*) override {}
  void set_gate(unsigned cluster, std::uint64_t earliest, bool) override {
    others[cluster] = earliest;
    if (cluster == kBack) on_gate(earliest);
  }
  std::uint64_t gate_earliest(unsigned cluster) override { return cluster == kBack ? left : kNothing; }
  std::uint64_t logged_since(unsigned cluster) override { return cluster == kBack ? since : 0; }

  std::array<std::uint64_t, federation::kMaxClusters> others{};
  std::uint64_t left = kNothing, since = 1;
  std::function<void(std::uint64_t)> on_gate = [](std::uint64_t) {};  // what others have left
};

class AgentGate : public ::testing::Test {
 protected:
  AgentGate() {
    g_job.info.member = 0;
    g_agent.participant = &participant_;
    begin_cluster_anew(job_.exchange());
    participant_.others.fill(kNothing);
  }
  ~AgentGate() override {
    begin_cluster_anew(job_.exchange());
    g_agent.participant = nullptr;
  }

  // The word of a recovery: the cluster's next incarnation lives.
  void tell_word() {
    IncarnationWord word;
    word.n = ++words_;
    word.incarnations = federation::PerCluster(2);
    word.incarnations[0] = 1;
    word.incarnations[1] = 1 + static_cast<federation::Incarnation>(words_);
    EXPECT_TRUE(take_word(word));
  }
  // Its line. `replaying`: members that say what they send again.
  void publish_line(std::uint64_t number, const std::vector<std::uint32_t>& replaying) {
    RecoveryPlan plan;
    plan.back = {kBack};
    plan.sns = federation::PerCluster(2);
    plan.incarnations = federation::PerCluster(2);
    plan.incarnations[0] = 1;
    plan.incarnations[1] = 1 + static_cast<federation::Incarnation>(words_);
    plan.generation = 1;
    plan.replaying = replaying;
    EXPECT_TRUE(job_.exchange().claim(recovery_key(kEpoch, number, "line"), encode_fields(encode_plan(plan))).ok());
  }
  void other_says(std::uint64_t number, std::uint32_t member, const std::string& left) {
    EXPECT_TRUE(
        job_.exchange()
            .publish(recovery_key(kEpoch, number, "gate/" + std::to_string(member)), encode_fields({{"left", left}}))
            .ok());
  }
  std::string said(std::uint64_t number) {
    std::string text;
    bool found = false;
    Fields fields;
    EXPECT_TRUE(job_.exchange().get(recovery_key(kEpoch, number, "gate/0"), &text, &found).ok());
    return found && decode_fields(text, &fields) ? "left " + field_text(fields, "left") : "nothing";
  }
  std::uint64_t told() const { return participant_.others[kBack]; }
  static std::string board_file() {
    return job_paths(g_job.info.directory, g_job.info.job).top + "/" + gate_board_name(kEpoch, 1);
  }

  FakeParticipant participant_;
  DirectoryJob job_{kEpoch};
  std::uint64_t words_ = 0;
};

TEST_F(AgentGate, IsShutByTheWordAndOpensWhenNobodyHasAnythingLeft) {
  EXPECT_EQ(gates_wait_ms(), -1);
  EXPECT_FALSE(must_send_again());
  participant_.left = 500;
  tell_word();
  EXPECT_EQ(told(), kUnknown);
  EXPECT_GE(gates_wait_ms(), 0);
  EXPECT_TRUE(must_send_again());
  look_at_gates();  // there is no line yet
  EXPECT_EQ(told(), kUnknown);
  publish_line(1, {0, 7});
  look_at_gates();
  EXPECT_EQ(said(1), "left 1:500");
  EXPECT_EQ(told(), kUnknown) << "member 7 has not said anything";
  other_says(1, 7, "1:300");
  look_at_gates();
  EXPECT_EQ(told(), 300u);
  participant_.left = kNothing;
  look_at_gates();
  EXPECT_EQ(said(1), "left ");
  EXPECT_FALSE(must_send_again()) << "others do, this one does not";
  EXPECT_GE(gates_wait_ms(), 0);
  other_says(1, 7, "");
  look_at_gates();
  EXPECT_EQ(told(), kNothing);
  EXPECT_EQ(gates_wait_ms(), -1);
}

TEST_F(AgentGate, AMemberStaysUntilItHasSentAllAndSaidSo) {
  participant_.left = 500;
  tell_word();
  publish_line(1, {0});
  EXPECT_TRUE(must_send_again());
  look_at_gates();
  EXPECT_TRUE(must_send_again());
  participant_.left = kNothing;
  EXPECT_TRUE(must_send_again()) << "others have not heard of it";
  look_at_gates();
  EXPECT_FALSE(must_send_again());
}

TEST_F(AgentGate, TheLineOfAnEarlierRecoveryOpensNothing) {
  tell_word();
  publish_line(1, {0});
  tell_word();  // the first command has died, and the next one has told, and has no line yet
  look_at_gates();
  EXPECT_EQ(told(), kUnknown);
  publish_line(2, {0});
  look_at_gates();
  EXPECT_EQ(told(), kNothing);
}

TEST_F(AgentGate, WhoEndedInAnOrderlyWayHasNothingLeft) {
  tell_word();
  publish_line(1, {0, 7});
  EXPECT_TRUE(job_.exchange().publish(std::string(kEpoch) + "/gone/7", encode_fields({})).ok());
  for (int looks = 0; looks < 1000 && gates_wait_ms() >= 0; ++looks) {
    look_at_gates();
    ::usleep(5000);
  }
  EXPECT_EQ(told(), kNothing);
}

// It is quicker than the exchange.
TEST_F(AgentGate, TheBoardIsHeardAsWell) {
  tell_word();
  publish_line(1, {0, 7});
  other_says(1, 7, "1:300");
  GateBoard board(board_file(), 7, 8);
  board.write(kBack, 400, kNothing);
  look_at_gates();
  EXPECT_EQ(told(), 400u);
  board.write(kBack, kNothing, kNothing);
  look_at_gates();
  EXPECT_EQ(told(), kNothing);
}

// One look hands over as often as there is something to hand over: what the participant says is on the board at once,
// and what the other one says then wakes this member.
TEST_F(AgentGate, OneLookHandsOverAgainAndAgain) {
  constexpr std::uint64_t kSteps = 200;
  tell_word();
  publish_line(1, {0, 7});
  other_says(1, 7, "1:100");
  participant_.left = 50;
  GateBoard other(board_file(), 7, 8);
  other.write(kBack, 100, kNothing);
  std::uint64_t most = 0, looks = 0;
  participant_.on_gate = [&](std::uint64_t earliest) {
    if (earliest <= participant_.left || earliest == kNothing) return;
    const std::uint64_t step = earliest / 100;
    participant_.left = step < kSteps ? 100 * step + 50 : kNothing;
    note_gate_moved(kBack, participant_.left, step < kSteps ? 100 * step + 100 : kNothing);
    EXPECT_EQ(other.read(0)[kBack], participant_.left);
    other.write(kBack, step < kSteps ? 100 * step + 100 : kNothing, 0);
    most = std::max(most, step);
  };
  for (; told() != kNothing && looks < kSteps; ++looks) look_at_gates();
  EXPECT_EQ(told(), kNothing);
  EXPECT_EQ(most, kSteps);
  EXPECT_LT(looks, kSteps / 4) << "a look takes 20 ms if nobody wakes the member";
}

// It may send a datagram, or connect, and what others send again must not be overtaken.
TEST_F(AgentGate, WhoWasNeverConnectedWaitsForOthersAndSaysNothing) {
  participant_.since = 0;
  tell_word();
  EXPECT_EQ(told(), kUnknown);
  EXPECT_FALSE(must_send_again()) << "it may end";
  publish_line(1, {7});
  look_at_gates();
  EXPECT_EQ(told(), kUnknown);
  other_says(1, 7, "1:300");
  look_at_gates();
  EXPECT_EQ(told(), 300u);
  EXPECT_FALSE(must_send_again());
  other_says(1, 7, "");
  look_at_gates();
  EXPECT_EQ(told(), kNothing);
  EXPECT_EQ(gates_wait_ms(), -1);
  EXPECT_EQ(said(1), "nothing");
}

TEST_F(AgentGate, OpensAtOnceIfNobodyWasConnected) {
  participant_.since = 0;
  tell_word();
  publish_line(1, {});
  look_at_gates();
  EXPECT_EQ(told(), kNothing);
  EXPECT_EQ(gates_wait_ms(), -1);
}

// Two come back while a third cluster still has to get something of both: each waits for the other's word.
TEST_F(AgentGate, WhoComesBackSaysWhatItsImageHas) {
  publish_line(1, {0, 7});
  publish_line(2, {0, 7});
  std::vector<RecoveryPlan> plans;
  ASSERT_TRUE(read_plans(job_.exchange(), kEpoch, &plans, nullptr).ok());
  participant_.left = 500;
  shut_gates_of(plans, 0);
  tell_gates();
  look_at_gates();
  EXPECT_EQ(said(2), "left 1:500");
  EXPECT_EQ(told(), kUnknown) << "member 7 has not said anything by this line";
  other_says(2, 7, "1:300");
  look_at_gates();
  EXPECT_EQ(told(), 300u);
}

// Alone in what goes back, it has no gate to wait at. Others wait for its word.
TEST_F(AgentGate, WhoComesBackAloneSpeaks) {
  publish_line(1, {0, 7});
  std::vector<RecoveryPlan> plans;
  ASSERT_TRUE(read_plans(job_.exchange(), kEpoch, &plans, nullptr).ok());
  participant_.left = kNothing;
  shut_gates_of(plans, kBack);
  look_at_gates();
  EXPECT_EQ(said(1), "left ");
  EXPECT_EQ(gates_wait_ms(), -1);
}

// A process that joins while others send again: what it sends is new.
TEST_F(AgentGate, ANewcomerWaitsToo) {
  publish_line(1, {7});
  std::vector<RecoveryPlan> plans;
  ASSERT_TRUE(read_plans(job_.exchange(), kEpoch, &plans, nullptr).ok());
  shut_gates_of(plans, 0);
  EXPECT_EQ(told(), kNothing) << "the participant hears of it when it is there";
  tell_gates();
  EXPECT_EQ(told(), kUnknown);
  other_says(1, 7, "1:300");
  look_at_gates();
  EXPECT_EQ(told(), 300u);
  other_says(1, 7, "");
  look_at_gates();
  EXPECT_EQ(told(), kNothing);
}

}  // namespace
}  // namespace shadowib
