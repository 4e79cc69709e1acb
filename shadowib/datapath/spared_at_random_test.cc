// Forced and spared requests against a model of what their log must know.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/tests/forced_signals_fixture.h"
#include "shadowib/objects/backend.h"
#include "shadowib/objects/forced_signals.h"

namespace shadowib {
namespace {

// A program posts and polls, a device executes, and checkpoints look, all at random. Beside it stands what a log must
// know: no place is used again before its request has run and its completion was taken, the program is told once of
// what it asked for or what failed, and a fence tells of all before it.
class SparedAtRandom : public Spared {
 protected:
  struct Request {
    unsigned flags;
    bool has_run, failed, told;
    bool is_due() const { return failed || (flags & IBV_SEND_SIGNALED) != 0; }
  };
  std::uint64_t up_to(std::uint64_t most) { return 1 + random() % most; }
  Request& at(std::uint64_t sequence) { return requests[log[sequence]]; }

  bool is_taken(const SendSlot& slot) {
    const auto id = reinterpret_cast<std::uint64_t>(static_cast<const SlotHeader*>(&slot));
    return std::find(g_in_hand.begin(), g_in_hand.end(), id) == g_in_hand.end() &&
           std::none_of(g_completed.begin(), g_completed.end(), [id](const ibv_wc& wc) { return wc.wr_id == id; });
  }
  // There is one thread.
  bool is_drained(std::uint64_t id) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
    return std::any_of(cq.refill.begin(), cq.refill.end(), [id](const Drained& d) { return d.wc.wr_id == id; });
  }
  void post_some() {
    constexpr ibv_wr_opcode kOneSided[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
    const bool one_sided = random() % (log.size() < 24 ? 2 : 32) != 0;
    const std::size_t count = random() % 4 == 0 ? up_to(4) : 1;
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory), 8, 1};
    std::vector<ibv_send_wr> list(count);
    const std::uint64_t first = requests.size(), before = qp.send.head;
    for (std::size_t i = 0; i < count; ++i) {
      list[i].wr_id = requests.size();
      list[i].sg_list = &sge;
      list[i].num_sge = 1;
      list[i].opcode = one_sided ? kOneSided[random() % 3] : IBV_WR_SEND;
      list[i].send_flags = random() % 8 == 0 ? IBV_SEND_SIGNALED : 0;
      if (i + 1 < count) list[i].next = &list[i + 1];
      requests.push_back({list[i].send_flags, false, false, false});
    }
    if (random() % 16 == 0) {
      list.back().send_flags |= IBV_SEND_INLINE;
      if (random() % 2 == 0) sge.length = 17;  // too long
    }
    if (random() % 16 == 0) g_takes = static_cast<int>(random() % count);
    ibv_send_wr* bad = nullptr;
    const bool whole = random() % 4 == 0;
    const int rc = whole ? post_send_whole(qp, list.data(), count) : post_send(&qp.qp.qp_base, list.data(), &bad);
    g_takes = -1;
    const std::uint64_t taken = qp.send.head - before;
    ASSERT_EQ(taken == count, rc == 0) << rc;
    if (!whole && rc != 0) {
      ASSERT_EQ(bad, &list[taken]);
    }
    full += taken == 0;
    for (std::uint64_t id = first; id < first + taken; ++id) {
      const std::uint64_t s = log.size();
      log.push_back(id);
      ASSERT_EQ(qp.send.slot(s).user_wr_id, id);
      ASSERT_TRUE(is_taken(qp.send.slot(s))) << "another's completion leads to " << s;
      if (s < kSlots) continue;
      ASSERT_TRUE(at(s - kSlots).has_run) << s;
      ASSERT_TRUE(!at(s - kSlots).is_due() || at(s - kSlots).told || is_drained(log[s - kSlots])) << s;
    }
  }
  void execute_one(bool fails = false) {
    if (g_posted.empty()) return;
    const Posted next = g_posted.front();
    const bool is_fence = next.opcode == IBV_WR_BIND_MW;
    fails = fails && !is_fence;
    execute(1, in_error ? IBV_WC_WR_FLUSH_ERR : fails ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS);
    in_error = in_error || fails;
    if (is_fence) return;
    const auto* slot = reinterpret_cast<const SlotHeader*>(next.wr_id);
    Request& request = at(qp.send.sequence_of(slot));
    ASSERT_FALSE(request.has_run);
    request.has_run = true;
    request.failed = in_error;
  }
  void note_told(const Ids& ids) {
    for (const std::uint64_t id : ids) {
      ASSERT_TRUE(id > 0 && id < requests.size()) << id;
      ASSERT_TRUE(requests[id].has_run && requests[id].is_due() && !requests[id].told) << id;
      requests[id].told = true;
    }
  }
  // Another polls and posts while this poller is held up with its completions.
  void poll_beside_others() {
    if (cq.refill_count != 0) return;  // it polls under a lock
    g_after_poll = [&] {
      for (std::uint64_t n = up_to(24); n > 0; --n) {
        if (random() % 2 == 0) post_some();
        if (random() % 2 == 0) execute_one();
        if (random() % 4 == 0) note_told(poll(static_cast<int>(up_to(4))));
      }
    };
    note_told(poll(static_cast<int>(up_to(4))));
  }
  void look() {
    const std::uint64_t known = frontier();
    for (std::uint64_t s = known < kSlots ? 0 : known - kSlots; s < known; ++s) ASSERT_TRUE(at(s).has_run) << s;
  }
  // A checkpoint, and then a program that has polled all.
  void settle() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
    if (is_spared(qp, frontier())) (void)post_fence(qp, qp.sparing.of_checkpoint);
    while (!g_posted.empty()) execute_one();
    if (is_spared(qp, frontier())) (void)post_fence(qp, qp.sparing.of_checkpoint);  // the other was behind fewer
    while (!g_posted.empty()) execute_one();
    ASSERT_EQ(frontier(), qp.send.head);
    while (!cq.refill.empty()) note_told(poll(16));
    for (std::uint64_t s = 0; s < log.size(); ++s) ASSERT_EQ(at(s).told, at(s).is_due()) << s;
    ASSERT_TRUE(qp.send.has_room_for(kSlots));
    ++settled;
  }
  // What ibv_modify_qp does for a way to RESET.
  void reset() {
    g_posted.clear();
    g_completed.clear();
    purge_completions(cq, qp.qp_num);
    qp.send.clear();
    qp.sparing.reset();
    qp.send.messages = 0;
    log.clear();
    in_error = false;
  }
  // A checkpoint in whose image a tail has not run, and its restart: that tail goes down again, and nothing else.
  void forget_drained() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
    cq.refill.clear();
    cq.note_refill();
  }
  void restart() {
    drain_completions(cq);
    std::uint64_t ran = 0;
    while (ran < log.size() && at(ran).has_run) ++ran;
    qp.sparing.proven = ran;  // by a fence, or by the peer's count
    retire_executed(qp);
    ASSERT_EQ(executed_frontier(qp), ran);
    g_posted.clear();
    qp.sparing.forget();
    context->translate = true;
    qp.turn_sends();
    qp.send.retire_to(ran);
    ASSERT_EQ(repost_sends(qp, ran), 0);
    ASSERT_EQ(g_posted.size(), log.size() - ran);
    for (const Posted& again : g_posted) {
      ASSERT_EQ(reinterpret_cast<const SlotHeader*>(again.wr_id)->user_wr_id, log[ran++]);
      ASSERT_NE(again.flags & IBV_SEND_SIGNALED, 0u);
    }
  }
  void step() {
    switch (random() % 64) {
      case 0:
        return settle();
      case 1:
        if (random() % 4 == 0) reset();
        return;
      case 2:
        return execute_one(random() % 4 == 0);
      case 3:
        return look();
      case 4:
        (void)post_fence(qp, qp.sparing.of_checkpoint);
        return;
      case 5:
        return poll_beside_others();
      default:
        if (const auto what = random() % 4; what < 2)
          post_some();
        else if (what == 2)
          execute_one();
        else
          note_told(poll(static_cast<int>(up_to(3))));
    }
  }

  std::mt19937 random{20261130};
  std::vector<Request> requests{1};  // by wr_id
  std::vector<std::uint64_t> log;    // wr_ids by sequence
  bool in_error = false;
  std::uint64_t full = 0, settled = 0;
};

TEST_F(SparedAtRandom, NoneIsLostOrToldOfTwice) {
  for (int n = 0; n < 150000 && !HasFatalFailure(); ++n) step();
  EXPECT_GT(requests.size(), 40000u);
  EXPECT_GT(qp.sparing.forced, 1000u);
  EXPECT_GT(full, 1000u) << "the queue was hardly ever full";
  EXPECT_GT(settled, 1000u);
}

TEST_F(SparedAtRandom, ARestartPostsAgainWhatHasNotRun) {
  for (int life = 0; life < 500 && !HasFatalFailure(); ++life) {
    std::destroy_at(&qp);
    std::construct_at(&qp);
    context->translate = false;
    cq.reserved = 0;
    SetUp();
    requests.resize(1);
    log.clear();
    in_error = false;
    forget_drained();
    for (std::uint64_t n = up_to(200); n > 0 && !HasFatalFailure(); --n) step();
    if (!in_error) restart();
    for (std::uint64_t n = up_to(100); n > 0 && !HasFatalFailure(); --n) step();
    if (!HasFatalFailure()) settle();
  }
  EXPECT_GT(settled, 500u);
}

}  // namespace
}  // namespace shadowib
