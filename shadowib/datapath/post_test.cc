// Posts to a backend that refuses when told to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/backend.h"

namespace shadowib {
extern int g_unanswered;  // test_surroundings.cc
namespace {

int g_room = 0;   // requests the backend still takes
int g_calls = 0;  // lists it was given

template <typename Wr>
int take(ibv_qp*, Wr* wr, Wr** bad) {
  ++g_calls;
  for (; wr != nullptr; wr = wr->next, --g_room)
    if (g_room == 0) {
      *bad = wr;
      return ENOMEM;
    }
  return 0;
}

// kTranslated, kTurning: as after a restart, by the functions of before or by those for it.
enum class Way { kIdentity, kTranslated, kTurning };

class PostTest : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    g_backend = {};
    g_room = 1000;
    context->translate = is_translated();
    if (is_translated()) qp.turn_sends(), qp.turn_receives();
    qp.context = context.get();
    qp.qp_num = {77};
    qp.real_post_send = take<ibv_send_wr>;
    qp.real_post_recv = take<ibv_recv_wr>;
    ASSERT_TRUE(qp.send.create(4, 1, 16, false));
    ASSERT_TRUE(qp.receive.create(4, 1, 0, true));
  }
  static bool is_translated() { return GetParam() != Way::kIdentity; }
  static int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    return (GetParam() == Way::kTurning ? post_send_turning : shadowib::post_send)(qp, wr, bad);
  }
  static int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    return (GetParam() == Way::kTurning ? post_recv_turning : shadowib::post_recv)(qp, wr, bad);
  }
  int send(int count, unsigned flags = IBV_SEND_SIGNALED, std::uint32_t length = 8) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory), length, 1};
    ibv_send_wr wr[4] = {}, *bad = nullptr;
    for (int i = 0; i < count; ++i) {
      wr[i].next = i + 1 < count ? &wr[i + 1] : nullptr;
      wr[i].sg_list = &sge;
      wr[i].num_sge = 1;
      wr[i].opcode = IBV_WR_SEND;
      wr[i].send_flags = flags;
    }
    int rc = post_send(&qp.qp.qp_base, wr, &bad);
    refused_at = rc != 0 ? static_cast<int>(bad - wr) : -1;
    return rc;
  }
  int receive(int count) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory), 8, 1};
    ibv_recv_wr wr[4] = {}, *bad = nullptr;
    for (int i = 0; i < count; ++i) wr[i] = {1, i + 1 < count ? &wr[i + 1] : nullptr, &sge, 1};
    int rc = post_recv(&qp.qp.qp_base, wr, &bad);
    refused_at = rc != 0 ? static_cast<int>(bad - wr) : -1;
    return rc;
  }
  std::unique_ptr<ShadowContext> context = std::make_unique<ShadowContext>();
  ShadowQp qp;
  char memory[64] = {};
  int refused_at = -1;
};

// A slot that a refused request had been written to stayed pending: the queue was full for good.
TEST_P(PostTest, ARefusedSendLeavesItsSlotFree) {
  g_room = 0;
  EXPECT_EQ(send(1), ENOMEM);
  EXPECT_EQ(refused_at, 0);
  EXPECT_EQ(qp.send.head, 0u);
  EXPECT_EQ(qp.send.messages, 0u);
  g_room = 1000;
  EXPECT_EQ(send(1), 0);
  EXPECT_EQ(qp.send.head, 1u);
  EXPECT_EQ(qp.send.messages, 1u);
}

// Linux' rxe answers with an error and has taken the request all the same: it names none that is bad.
TEST_P(PostTest, AnErrorThatNamesNoRequestRefusesNone) {
  qp.real_post_send = [](ibv_qp*, ibv_send_wr*, ibv_send_wr**) { return EAGAIN; };
  EXPECT_EQ(send(1), 0);
  EXPECT_EQ(qp.send.head, 1u);
  EXPECT_EQ(qp.send.messages, 1u);
  EXPECT_FALSE(qp.send.slot(0).done());
}

// A window's first use closes the short way (entry/memory_window.cc), and it stays so.
TEST_P(PostTest, AClosedShortWayStaysClosed) {
  EXPECT_EQ(send(1), 0);
  EXPECT_EQ(receive(1), 0);
  qp.turn_sends();
  qp.turn_receives();
  for (std::uint64_t i = 1; i < 4; ++i) {
    EXPECT_FALSE(qp.send.short_slot().is_free());
    EXPECT_FALSE(qp.receive.short_slot().is_free());
    EXPECT_EQ(send(1), 0);
    EXPECT_EQ(receive(1), 0);
    EXPECT_EQ(qp.send.head, i + 1);
    EXPECT_EQ(qp.receive.head, i + 1);
  }
  EXPECT_EQ(send(1), ENOMEM);
  EXPECT_EQ(receive(1), ENOMEM);
}

TEST_P(PostTest, AListIsTakenUpToTheOneRefused) {
  g_room = 1;
  EXPECT_EQ(send(3), ENOMEM);
  EXPECT_EQ(refused_at, 1);
  EXPECT_EQ(qp.send.head, 1u);
  EXPECT_EQ(qp.send.messages, 1u);
  g_room = 1000;
  EXPECT_EQ(send(3), 0);
  EXPECT_EQ(qp.send.head, 4u);
  EXPECT_EQ(send(1), ENOMEM) << "none has completed";
}

// After a restart a long list goes down in a few parts; which request was refused is said across them.
TEST_P(PostTest, ALongListGoesDownInFewParts) {
  constexpr int kRequests = 40;
  for (int room : {1000, 0, 15, 16, 17, 39}) {
    ShadowQp longer;
    longer.context = context.get();
    if (is_translated()) longer.turn_sends();
    longer.real_post_send = take<ibv_send_wr>;
    ASSERT_TRUE(longer.send.create(64, 1, 0, false));
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory), 8, 1};
    ibv_send_wr wr[kRequests] = {}, *bad = nullptr;
    for (int i = 0; i < kRequests; ++i) {
      wr[i].wr_id = static_cast<std::uint64_t>(i);
      wr[i].next = i + 1 < kRequests ? &wr[i + 1] : nullptr;
      wr[i].sg_list = &sge;
      wr[i].num_sge = 1;
      wr[i].opcode = IBV_WR_SEND;
    }
    g_room = room;
    g_calls = 0;
    const int rc = post_send(&longer.qp.qp_base, wr, &bad);
    const auto taken = static_cast<std::uint64_t>(std::min(room, kRequests));
    EXPECT_EQ(rc, room < kRequests ? ENOMEM : 0) << room;
    EXPECT_EQ(bad, room < kRequests ? wr + room : nullptr) << room;
    EXPECT_EQ(longer.send.head, taken);
    EXPECT_EQ(longer.send.messages, taken);
    EXPECT_LE(g_calls, 3);
    for (std::uint64_t i = 0; i < 64; ++i) EXPECT_EQ(longer.send.slot(i).done(), i >= taken) << room << " " << i;
  }
}

TEST_P(PostTest, InlineDataThatDoesNotFitIsRefusedAndForgotten) {
  EXPECT_EQ(send(1, IBV_SEND_INLINE, 17), EINVAL);
  EXPECT_EQ(qp.send.head, 0u);
  EXPECT_EQ(send(1, IBV_SEND_INLINE, 16), 0);
  EXPECT_EQ(qp.send.head, 1u);
}

TEST_P(PostTest, ARefusedReceiveLeavesItsSlotFree) {
  g_room = 0;
  EXPECT_EQ(receive(1), ENOMEM);
  EXPECT_EQ(refused_at, 0);
  EXPECT_EQ(receive(2), ENOMEM);
  EXPECT_EQ(refused_at, 0);
  g_room = 1;
  EXPECT_EQ(receive(3), ENOMEM);
  EXPECT_EQ(refused_at, 1);
  g_room = 1000;
  EXPECT_EQ(receive(3), 0);
  EXPECT_EQ(qp.receive.head, 4u);
  EXPECT_EQ(receive(1), ENOMEM) << "none has completed";
}

// A datagram's address handle is the program's: what goes down is the backend's, and the log keeps the program's.
TEST_P(PostTest, DatagramsGoDownWithTheBackendsHandle) {
  static ibv_ah* posted_ah;
  static std::uint32_t posted_number;
  ibv_ah real{};
  ShadowAh ah;
  ah.real = &real;
  qp.qp.qp_base.qp_type = IBV_QPT_UD;
  qp.turn_sends();
  qp.real_post_send = [](ibv_qp*, ibv_send_wr* wr, ibv_send_wr**) {
    posted_ah = wr->wr.ud.ah;
    posted_number = wr->wr.ud.remote_qpn;
    return 0;
  };
  ibv_sge sge{reinterpret_cast<std::uint64_t>(memory), 8, 1};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.opcode = IBV_WR_SEND;
  wr.sg_list = &sge;
  wr.wr.ud = {&ah.ah, 5, 6};
  for (std::uint64_t posted : {0, 1}) {
    wr.num_sge = static_cast<int>(posted);  // the plain kind has one
    posted_ah = nullptr;
    ASSERT_EQ(post_send(&qp.qp.qp_base, &wr, &bad), 0);
    EXPECT_EQ(posted_ah, &real);
    EXPECT_EQ(posted_number, 1005u) << "as resolve_destination says";
    EXPECT_EQ(qp.send.head, posted + 1);
    EXPECT_EQ(qp.send.slot(posted).wr.wr.ud.ah, &ah.ah);
    EXPECT_EQ(qp.send.slot(posted).wr.wr.ud.remote_qpn, 5u);
    EXPECT_EQ(qp.send.slot(posted).wr.wr.ud.remote_qkey, 6u);
  }
  qp.real_post_send = [](ibv_qp*, ibv_send_wr* refused, ibv_send_wr** at) {
    *at = refused;
    return EINVAL;
  };
  EXPECT_EQ(post_send(&qp.qp.qp_base, &wr, &bad), EINVAL);
  EXPECT_EQ(bad, &wr);
  EXPECT_EQ(qp.send.head, 2u);
}

// The same of an XRC request's queue, which is the program's number in the log.
TEST_P(PostTest, XrcRequestsGoDownWithTheBackendsQueue) {
  static std::uint32_t posted_number;
  qp.qp.qp_base.qp_type = IBV_QPT_XRC_SEND;
  qp.turn_sends();
  qp.real_post_send = [](ibv_qp*, ibv_send_wr* wr, ibv_send_wr**) {
    posted_number = wr->qp_type.xrc.remote_srqn;
    return 0;
  };
  ibv_send_wr wr{}, *bad = nullptr;
  wr.opcode = IBV_WR_SEND;
  wr.qp_type.xrc.remote_srqn = 5;
  ASSERT_EQ(post_send(&qp.qp.qp_base, &wr, &bad), 0);
  EXPECT_EQ(posted_number, 1005u) << "as resolve_remote_srq says";
  EXPECT_EQ(qp.send.slot(0).wr.qp_type.xrc.remote_srqn, 5u);
  ASSERT_EQ(repost_sends(qp, 0), 0);
  EXPECT_EQ(posted_number, 1005u);
}

// The exchange does not say where a request leads: it is refused by name, and what is before it goes down.
TEST_P(PostTest, ARequestThatLeadsNobodyKnowsWhereIsRefused) {
  ibv_ah real{};
  ShadowAh ah;
  ah.real = &real;
  for (bool datagrams : {true, false}) {
    ShadowQp other;
    other.context = context.get();
    other.real_post_send = take<ibv_send_wr>;
    other.qp.qp_base.qp_type = datagrams ? IBV_QPT_UD : IBV_QPT_RC;
    other.turn_sends();
    ASSERT_TRUE(other.send.create(4, 1, 16, false));
    other.turn_sends();
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory), 8, 1};
    for (int count : {1, 2}) {
      ibv_send_wr wr[2] = {}, *bad = nullptr;
      for (int i = 0; i < count; ++i) {
        wr[i].next = i + 1 < count ? &wr[i + 1] : nullptr;
        wr[i].sg_list = &sge;
        wr[i].num_sge = 1;
        wr[i].opcode = IBV_WR_SEND;
        if (datagrams) wr[i].wr.ud = {&ah.ah, 5, 6};
      }
      if (!datagrams) wr[count - 1].opcode = IBV_WR_RDMA_WRITE;
      if (datagrams && count == 2) wr[0].wr.ud.ah = nullptr;  // the backend's to refuse: no question
      const std::uint64_t before = other.send.head;
      g_calls = 0;
      g_unanswered = 1;
      EXPECT_EQ(post_send(&other.qp.qp_base, wr, &bad), EIO);
      EXPECT_EQ(g_unanswered, 0);
      EXPECT_EQ(bad, &wr[count - 1]);
      EXPECT_EQ(g_calls, count - 1);
      EXPECT_EQ(other.send.head, before + static_cast<unsigned>(count) - 1);
      EXPECT_TRUE(other.send.slot(other.send.head).done());
      EXPECT_EQ(post_send(&other.qp.qp_base, bad, &bad), 0) << "when the exchange answers again";
    }
    EXPECT_EQ(other.send.messages, datagrams ? 3u : 1u);
  }
}

// The backend sees real keys, whether it takes the request or not, and the log keeps the program's.
TEST_P(PostTest, KeysAreTurnedOnTheirWayAlone) {
  if (!is_translated()) return;  // keys are as they are
  static std::vector<std::uint32_t> seen;
  static int answer;
  context->keys.insert({1}, {1001});
  qp.remote_keys = std::make_shared<RemoteKeys>();
  qp.remote_keys->keys.insert({2}, {1002});
  qp.real_post_send = [](ibv_qp*, ibv_send_wr* wr, ibv_send_wr** bad) {
    seen = {wr->sg_list[0].lkey, wr->wr.rdma.rkey};
    *bad = wr;
    return answer;
  };
  qp.real_post_recv = [](ibv_qp*, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    seen = {wr->sg_list[0].lkey};
    *bad = wr;
    return answer;
  };
  ibv_sge sge{reinterpret_cast<std::uint64_t>(memory), 8, 1};
  for (ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                               IBV_WR_RDMA_READ, IBV_WR_SEND_WITH_INV, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    for (int rc : {ENOMEM, 0}) {
      answer = rc;
      ibv_send_wr wr{}, *bad = nullptr;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.opcode = opcode;
      wr.send_flags = IBV_SEND_SIGNALED;
      const bool names = consumes_receive(opcode) ? opcode == IBV_WR_RDMA_WRITE_WITH_IMM : opcode != IBV_WR_SEND;
      wr.wr.rdma.rkey = names ? 2 : 0;
      if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) wr.wr.atomic.rkey = 2;
      const std::uint64_t at = qp.send.head;
      EXPECT_EQ(post_send(&qp.qp.qp_base, &wr, &bad), rc) << opcode;
      EXPECT_EQ(seen[0], 1001u) << opcode;
      if (names && opcode != IBV_WR_ATOMIC_FETCH_AND_ADD) {
        EXPECT_EQ(seen[1], 1002u) << opcode;
      }
      EXPECT_EQ(qp.send.head, at + (rc == 0 ? 1 : 0)) << opcode;
      EXPECT_EQ(qp.send.slot(at).done(), rc != 0) << opcode;
      EXPECT_EQ(qp.send.slot(at).list()[0].lkey, 1u) << opcode;
      if (names) {
        EXPECT_EQ(qp.send.slot(at).wr.wr.rdma.rkey, wr.wr.rdma.rkey) << opcode;
      }
      EXPECT_EQ(qp.send.slot(at).status.load(), rc == 0 ? SlotHeader::kApart : 0) << opcode;
      qp.send.slot(at).release();
    }
  }
  for (int rc : {ENOMEM, 0}) {
    answer = rc;
    ibv_recv_wr wr{1, nullptr, &sge, 1}, *bad = nullptr;
    EXPECT_EQ(post_recv(&qp.qp.qp_base, &wr, &bad), rc);
    EXPECT_EQ(seen[0], 1001u);
    EXPECT_EQ(qp.receive.slot(0).list()[0].lkey, 1u);
    EXPECT_EQ(qp.receive.head, rc == 0 ? 1u : 0u);
    EXPECT_EQ(qp.receive.slot(0).status.load(), rc == 0 ? SlotHeader::kApart : 0);
  }
}

ibv_send_wr g_taken;
ibv_sge g_taken_element;

// The ways copy what an opcode needs, each in its own pieces; a slot has other requests' before.
TEST_P(PostTest, EachRequestGoesDownWhole) {
  qp.real_post_send = [](ibv_qp*, ibv_send_wr* wr, ibv_send_wr**) {
    g_taken = *wr;
    g_taken_element = *wr->sg_list;
    return 0;
  };
  qp.remote_keys = std::make_shared<RemoteKeys>();
  for (auto post : {&PostTest::post_send, &post_send_unforced}) {
    if (post == &post_send_unforced && GetParam() != Way::kIdentity) continue;
    for (std::uint32_t n = 1; n <= 3 * 7; ++n) {
      const ibv_wr_opcode opcodes[] = {IBV_WR_SEND,         IBV_WR_SEND_WITH_IMM,       IBV_WR_RDMA_WRITE,
                                       IBV_WR_RDMA_READ,    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_ATOMIC_CMP_AND_SWP,
                                       IBV_WR_SEND_WITH_INV};
      ibv_sge sge{reinterpret_cast<std::uint64_t>(memory) + n, 8 + n, n};
      ibv_send_wr wr{}, *bad = nullptr;
      wr.wr_id = n;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.opcode = opcodes[n % 7];
      wr.send_flags = IBV_SEND_SIGNALED | (n % 2 != 0 ? IBV_SEND_FENCE : IBV_SEND_SOLICITED);
      wr.imm_data = n + 100;
      const bool is_atomic = wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
      if (is_atomic)
        wr.wr.atomic = {(1ull << 40) + n, (2ull << 40) + n, (3ull << 40) + n, n + 200};
      else
        wr.wr.rdma = {(4ull << 40) + n, n + 300};
      ASSERT_EQ(post(&qp.qp.qp_base, &wr, &bad), 0) << wr.opcode;
      EXPECT_EQ(g_taken.opcode, wr.opcode);
      EXPECT_EQ(g_taken.num_sge, 1) << wr.opcode;
      EXPECT_EQ(g_taken.send_flags, wr.send_flags) << wr.opcode;
      EXPECT_EQ(g_taken.imm_data, wr.imm_data) << wr.opcode;
      EXPECT_EQ(g_taken.next, nullptr) << wr.opcode;
      const bool names_memory = is_atomic || wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_READ ||
                                wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
      if (names_memory) {
        EXPECT_EQ(g_taken.wr.rdma.remote_addr, wr.wr.rdma.remote_addr) << wr.opcode;
      }
      if (names_memory && !is_atomic) {
        EXPECT_EQ(g_taken.wr.rdma.rkey, wr.wr.rdma.rkey) << wr.opcode;
      }
      if (is_atomic) {
        EXPECT_EQ(g_taken.wr.atomic.compare_add, wr.wr.atomic.compare_add);
        EXPECT_EQ(g_taken.wr.atomic.swap, wr.wr.atomic.swap);
        EXPECT_EQ(g_taken.wr.atomic.rkey, wr.wr.atomic.rkey);
      }
      EXPECT_EQ(g_taken_element.addr, sge.addr) << wr.opcode;
      EXPECT_EQ(g_taken_element.length, sge.length) << wr.opcode;
      EXPECT_EQ(g_taken_element.lkey, sge.lkey) << wr.opcode;
      auto* slot = reinterpret_cast<SlotHeader*>(g_taken.wr_id);
      ASSERT_EQ(slot, &qp.send.slot(qp.send.head - 1)) << wr.opcode;
      EXPECT_EQ(slot->user_wr_id, n) << wr.opcode;
      slot->complete(IBV_WC_SUCCESS);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Generations, PostTest, testing::Values(Way::kIdentity, Way::kTranslated, Way::kTurning),
                         [](const auto& info) {
                           return info.param == Way::kIdentity     ? "Identity"
                                  : info.param == Way::kTranslated ? "Translated"
                                                                   : "Turning";
                         });

}  // namespace
}  // namespace shadowib
