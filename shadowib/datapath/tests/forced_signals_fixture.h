// A queue pair and its completion queue over a backend that executes and completes as a test tells it, for the tests
// of signals that the program did not ask for.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/backend.h"
#include "shadowib/objects/forced_signals.h"
#include "shadowib/objects/registry.h"

namespace shadowib {

struct Posted {
  std::uint64_t wr_id;
  unsigned flags;
  ibv_wr_opcode opcode;
};
inline std::deque<Posted> g_posted;
inline int g_takes = -1;  // requests of a call; all, if negative
inline std::deque<ibv_wc> g_completed;
inline std::vector<std::uint64_t> g_in_hand;  // of a poller that is held up
inline int g_events = 0;                      // that lie in the channel
inline int g_armed = 0;                       // requests for one
inline std::function<void()> g_before_arming;
inline std::function<void()>
    g_after_poll;  // what others do while a poller is held up behind the backend's answer; once
inline bool g_can_resize = true;

inline constexpr std::uint32_t kSlots = 8;

class ForcedSignals : public testing::Test {
 protected:
  void SetUp() override {
    g_posted.clear();
    g_completed.clear();
    g_events = g_armed = 0;
    g_takes = -1;
    g_can_resize = true;
    g_before_arming = g_after_poll = nullptr;
    g_backend = {};
    g_backend.needs_signals = true;
    g_backend.poll_cq = [](ibv_cq*, int count, ibv_wc* wc) {
      int n = 0;
      for (; n < count && !g_completed.empty(); g_completed.pop_front()) wc[n++] = g_completed.front();
      if (auto others = std::exchange(g_after_poll, nullptr)) {
        for (int i = 0; i < n; ++i) g_in_hand.push_back(wc[i].wr_id);
        std::thread(others).join();
        g_in_hand.clear();
      }
      return n;
    };
    g_backend.resize_cq = [](ibv_cq* real, int entries) {
      if (!g_can_resize) return EOPNOTSUPP;
      real->cqe = entries;
      return 0;
    };
    g_backend.req_notify_cq = [](ibv_cq*, int) {
      if (g_before_arming) std::exchange(g_before_arming, nullptr)();
      ++g_armed;
      return 0;
    };
    g_backend.get_cq_event = [](ibv_comp_channel* channel, ibv_cq** real) {
      if (g_events == 0) return -1;
      --g_events;
      *real = reinterpret_cast<ibv_cq*>(channel->context);  // the only one
      return 0;
    };
    g_backend.ack_cq_events = [](ibv_cq*, unsigned) {};
    real_cq.cqe = cq.cq.cqe = 4;
    real_cq.cq_context = &cq;
    cq.real = &real_cq;
    cq.cq.channel = &channel.channel;
    cq.cq.context = &context->program();
    real_channel.context = reinterpret_cast<ibv_context*>(&real_cq);
    channel.real = &real_channel;
    qp.context = context.get();
    qp.qp_num = {77};
    qp.init.send_cq = &cq.cq;
    qp.real_cap.max_send_wr = kSlots;
    qp.real_post_send = [](ibv_qp*, ibv_send_wr* wr, ibv_send_wr** bad) {
      for (int taken = 0; wr != nullptr && taken != g_takes; wr = wr->next, ++taken)
        g_posted.push_back({wr->wr_id, wr->send_flags, wr->opcode});
      *bad = wr;
      return wr != nullptr ? ENOMEM : 0;
    };
    ASSERT_TRUE(qp.send.create(kSlots, 1, 16, false));
    qp.send.belongs_to(qp.qp_num);
    begin_forcing_signals(qp);
  }
  int send(std::uint64_t wr_id, unsigned flags, ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory), 8, 1};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags;
    return post_send(&qp.qp.qp_base, &wr, &bad);
  }
  // The backend has executed the oldest; it completes those that are signaled.
  void execute(int count, ibv_wc_status status = IBV_WC_SUCCESS) {
    for (; count > 0; --count) {
      ASSERT_FALSE(g_posted.empty());
      if ((g_posted.front().flags & IBV_SEND_SIGNALED) != 0 || status != IBV_WC_SUCCESS) {
        ibv_wc wc{};
        wc.wr_id = g_posted.front().wr_id;
        wc.status = status;
        g_completed.push_back(wc);
      }
      g_posted.pop_front();
    }
  }
  std::vector<std::uint64_t> poll(int count) {
    ibv_wc wc[16] = {};
    const int n = poll_cq(&cq.cq, count, wc);
    std::vector<std::uint64_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(wc[i].wr_id);
    return ids;
  }
  using Ids = std::vector<std::uint64_t>;

  std::unique_ptr<ShadowContext> context = std::make_unique<ShadowContext>();
  ibv_cq real_cq{};
  ibv_comp_channel real_channel{};
  ShadowChannel channel;
  ShadowCq cq{};
  ShadowQp qp;
  char memory[64] = {};
};

// A reliable connection, every fourth of whose unsignaled requests is forced.
class Spared : public ForcedSignals {
 protected:
  static constexpr std::uint32_t kEvery = 4;
  void SetUp() override {
    ForcedSignals::SetUp();
    window.rkey = 0x1200;
    pd.fence = &window;
    qp.qp.qp_base.pd = &pd.pd;
    qp.sparing.room = Sparing::kRoom;
    qp.sparing.every = kEvery;
  }
  // Which of those that were posted are signaled ('s'), not ('-'), or fences ('F').
  static std::string posted() {
    std::string text;
    for (const Posted& p : g_posted)
      text += p.opcode == IBV_WR_BIND_MW ? 'F' : (p.flags & IBV_SEND_SIGNALED) != 0 ? 's' : '-';
    return text;
  }
  void post(int count, ibv_wr_opcode opcode) {
    for (; count > 0; --count) ASSERT_EQ(send(++last, 0, opcode), 0);
  }
  int post_list(std::initializer_list<ibv_wr_opcode> opcodes) {
    std::vector<ibv_send_wr> list(opcodes.size());
    std::size_t n = 0;
    for (const ibv_wr_opcode opcode : opcodes) {
      list[n].opcode = opcode;
      if (++n < list.size()) list[n - 1].next = &list[n];
    }
    ibv_send_wr* bad = nullptr;
    return post_send(&qp.qp.qp_base, list.data(), &bad);
  }
  // As a checkpoint does.
  std::uint64_t frontier() {
    drain_completions(cq);
    note_fences(qp);
    retire_executed(qp);
    return executed_frontier(qp);
  }
  ibv_mw window{};
  ShadowPd pd{};
  std::uint64_t last = 0;
};

}  // namespace shadowib
