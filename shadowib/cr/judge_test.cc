// The settling rule as a table: each row is a state of a send queue and its peer, and what must be said of it.
#include "shadowib/cr/judge.h"

#include <gtest/gtest.h>

#include <ostream>

namespace shadowib {

std::ostream& operator<<(std::ostream& out, Verdict verdict) {
  constexpr const char* kNames[] = {"empty", "blocked", "held", "doomed", "moving"};
  return out << kNames[static_cast<int>(verdict)];
}

namespace {

constexpr std::uint32_t kOwn = 7, kPeer = 9;

SendFacts with(void (*change)(SendFacts&)) {
  SendFacts send{.messages_before = 3};
  change(send);
  return send;
}

QpCounts peer_row() {
  return {
      .qp_num = kPeer, .remote_qp_num = kOwn, .consumed = 3, .outstanding = 0, .delivered = 0, .state = IBV_QPS_RTS};
}

Judgement by_peer(void (*change_send)(SendFacts&), void (*change_peer)(QpCounts&, PeerFacts&)) {
  QpCounts row = peer_row();
  PeerFacts peer{.row = &row, .connected = true, .receives_left = 0};
  change_peer(row, peer);
  return judge_by_peer(with(change_send), peer);
}

constexpr auto kAsIs = [](SendFacts&) {};
constexpr auto kPeerAsIs = [](QpCounts&, PeerFacts&) {};

TEST(JudgeAlone, SaysWhatNeedsNoPeer) {
  struct Row {
    const char* what;
    void (*change)(SendFacts&);
    std::optional<Verdict> verdict;
  };
  const Row rows[] = {
      {"nothing is left", [](SendFacts& s) { s.all_executed = true; }, Verdict::kEmpty},
      {"nothing is left, but a completion", [](SendFacts& s) { s.all_executed = s.owes_completion = true; },
       Verdict::kMoving},
      {"something is left, and a completion", [](SendFacts& s) { s.owes_completion = true; }, Verdict::kMoving},
      {"flushes are on their way", [](SendFacts& s) { s.state = IBV_QPS_ERR; }, Verdict::kMoving},
      {"in error, and empty",
       [](SendFacts& s) {
         s.state = IBV_QPS_ERR;
         s.all_executed = true;
       },
       Verdict::kEmpty},
      {"a datagram runs", [](SendFacts& s) { s.reliable = false; }, Verdict::kMoving},
      {"a datagram is held",
       [](SendFacts& s) {
         s.reliable = false;
         s.state = IBV_QPS_SQD;
       },
       Verdict::kHeld},
      {"a datagram's queue drains",
       [](SendFacts& s) {
         s.reliable = false;
         s.state = IBV_QPS_SQD;
         s.draining = true;
       },
       Verdict::kMoving},
      {"a connection with requests left is the peer's matter", kAsIs, std::nullopt},
      {"a guest is not waited for", [](SendFacts& s) { s.to_guest = true; }, Verdict::kDoomed},
      {"nor is an idle one", [](SendFacts& s) { s.to_guest = s.all_executed = true; }, Verdict::kDoomed},
      {"nor one that only sends",
       [](SendFacts& s) {
         s.to_guest = s.all_executed = true;
         s.state = IBV_QPS_RTR;
       },
       Verdict::kDoomed},
      {"nor over an unreliable connection",
       [](SendFacts& s) {
         s.to_guest = true;
         s.reliable = false;
       },
       Verdict::kDoomed},
      {"what a guest has acknowledged completes", [](SendFacts& s) { s.to_guest = s.owes_completion = true; },
       Verdict::kMoving},
      {"flushes of a guest's connection come",
       [](SendFacts& s) {
         s.to_guest = true;
         s.state = IBV_QPS_ERR;
       },
       Verdict::kMoving},
      {"a connection to a guest that has ended is an error and empty",
       [](SendFacts& s) {
         s.to_guest = s.all_executed = true;
         s.state = IBV_QPS_ERR;
       },
       Verdict::kEmpty},
      {"a datagram to a guest is held",
       [](SendFacts& s) {
         s.to_guest = s.datagrams = true;
         s.reliable = false;
       },
       Verdict::kHeld},
  };
  for (const Row& row : rows) EXPECT_EQ(judge_alone(with(row.change)), row.verdict) << row.what;
}

TEST(JudgeByPeer, BlocksOnlyAMessageThatWaitsForAReceive) {
  EXPECT_EQ(by_peer(kAsIs, kPeerAsIs).verdict, Verdict::kBlocked);
  for (const ibv_wr_opcode opcode :
       {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_RDMA_WRITE_WITH_IMM}) {
    QpCounts row = peer_row();
    const SendFacts send{.oldest = opcode, .messages_before = 3};
    EXPECT_EQ(judge_by_peer(send, {.row = &row, .connected = true, .receives_left = 0}).verdict, Verdict::kBlocked)
        << opcode;
  }
  // One-sided requests may have run: their completion tells (H1, H2, H9).
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP,
                                     IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_LOCAL_INV, IBV_WR_BIND_MW}) {
    QpCounts row = peer_row();
    const SendFacts send{.oldest = opcode, .messages_before = 3};
    EXPECT_EQ(judge_by_peer(send, {.row = &row, .connected = true, .receives_left = 0}).verdict, Verdict::kMoving)
        << opcode;
  }
}

TEST(JudgeByPeer, WaitsWhileTheMessageMayRun) {
  EXPECT_EQ(by_peer(kAsIs, [](QpCounts&, PeerFacts& p) { p.receives_left = 1; }).verdict, Verdict::kMoving);
  // H3: the receiver has completed it, the acknowledgement is on its way.
  EXPECT_EQ(by_peer(kAsIs, [](QpCounts& row, PeerFacts&) { row.consumed = 4; }).verdict, Verdict::kMoving);
  EXPECT_EQ(by_peer(kAsIs, [](QpCounts& row, PeerFacts&) { row.consumed = 2; }).verdict, Verdict::kMoving);
  // H17: nobody tells of the shared queue that the request names.
  EXPECT_EQ(by_peer(kAsIs, [](QpCounts&, PeerFacts& p) { p.receives_left.reset(); }).verdict, Verdict::kMoving);
}

TEST(JudgeByPeer, HoldsWhatCannotHaveRun) {
  const auto in_sqd = [](SendFacts& s) { s.state = IBV_QPS_SQD; };
  EXPECT_EQ(by_peer(in_sqd, [](QpCounts&, PeerFacts& p) { p.receives_left = 5; }).verdict, Verdict::kHeld);
  EXPECT_EQ(by_peer(
                [](SendFacts& s) {
                  s.state = IBV_QPS_SQD;
                  s.draining = true;
                },
                [](QpCounts&, PeerFacts& p) { p.receives_left = 5; })
                .verdict,
            Verdict::kMoving);
  const Judgement not_ready = by_peer(kAsIs, [](QpCounts& row, PeerFacts&) { row.state = IBV_QPS_INIT; });
  EXPECT_EQ(not_ready.verdict, Verdict::kHeld);
  EXPECT_TRUE(not_ready.awaits_peer);
  EXPECT_FALSE(by_peer(in_sqd, kPeerAsIs).awaits_peer);
}

TEST(JudgeByPeer, DoomsWhatHasNoPeer) {
  for (const std::uint32_t state : {IBV_QPS_ERR, IBV_QPS_RESET}) {
    QpCounts row = peer_row();
    row.state = state;
    EXPECT_EQ(judge_by_peer(with(kAsIs), {.row = &row, .connected = true, .receives_left = 0}).verdict,
              Verdict::kDoomed)
        << state;
  }
  EXPECT_EQ(judge_by_peer(with(kAsIs), {}).verdict, Verdict::kDoomed) << "gone";
  EXPECT_EQ(by_peer(kAsIs, [](QpCounts&, PeerFacts& p) { p.connected = false; }).verdict, Verdict::kDoomed)
      << "connected elsewhere";
  // Not gone, but not heard of yet.
  EXPECT_EQ(judge_by_peer(with(kAsIs), {.may_come = true}).verdict, Verdict::kMoving);
}

// The oldest request has no signal, and may have run.
TEST(JudgeByPeer, WaitsForTheFenceBehindWhatHasNoSignal) {
  constexpr auto unproven = [](SendFacts& s) { s.unproven = true; };
  constexpr auto in_sqd = [](SendFacts& s) {
    s.unproven = true;
    s.state = IBV_QPS_SQD;
  };
  constexpr auto receives_left = [](QpCounts&, PeerFacts& p) { p.receives_left = 5; };
  EXPECT_EQ(by_peer(unproven, receives_left).verdict, Verdict::kMoving);
  EXPECT_EQ(by_peer(unproven, kPeerAsIs).verdict, Verdict::kBlocked) << "the peer's counts tell";
  EXPECT_EQ(by_peer(in_sqd, receives_left).verdict, Verdict::kMoving) << "it may have run before";
  EXPECT_EQ(by_peer(in_sqd, kPeerAsIs).verdict, Verdict::kBlocked);
  const Judgement not_ready = by_peer(unproven, [](QpCounts& row, PeerFacts&) { row.state = IBV_QPS_INIT; });
  EXPECT_EQ(not_ready.verdict, Verdict::kMoving) << "the peer was ready once";
  EXPECT_FALSE(not_ready.awaits_peer);
  const Judgement gone = judge_by_peer(with(unproven), {});
  EXPECT_EQ(gone.verdict, Verdict::kMoving);
  EXPECT_TRUE(gone.may_be_doomed);
}

}  // namespace
}  // namespace shadowib
