// Memory windows: what a bind opens, to whom and for how long.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "ib2tcp/conformance/fixture.h"

namespace shadowib::ib2tcp::testing {
namespace {

constexpr int kRemote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// X writes through a window that Y, which has the memory, binds.
struct Windows {
  Endpoint x, y;
  ibv_mr* mr;
  ibv_mw* mw;

  Windows(Device& a, Device& b, ibv_mw_type type, const QpOptions& options = {})
      : x(a, options),
        y(b, options),
        mr(y.ops.reg_mr(y.pd, y.at(0), 65536, y.address(0), kAllAccess | IBV_ACCESS_MW_BIND)),
        mw(y.ops.alloc_mw(y.pd, type)) {
    EXPECT_NE(mw, nullptr);
    connect(x, y);
  }
  ~Windows() {
    if (mw != nullptr) {
      EXPECT_EQ(y.ops.dealloc_mw(mw), 0);
    }
    EXPECT_EQ(y.ops.dereg_mr(mr), 0);
    ibv_async_event event;
    while (y.ops.get_async_event(y.device.context, &event) == 0) y.ops.ack_async_event(&event);
  }

  std::uint32_t key(std::uint32_t tag) const { return (mw->rkey & ~0xffu) | tag; }
  ibv_send_wr bind_wr(std::uint64_t wr_id, std::uint32_t tag, std::uint64_t offset, std::uint64_t length,
                      unsigned access = kRemote) const {
    ibv_send_wr wr{};
    wr.wr_id = wr_id;
    wr.opcode = IBV_WR_BIND_MW;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = key(tag);
    wr.bind_mw.bind_info = {mr, y.address(offset), length, access};
    return wr;
  }
  int bind(std::uint64_t wr_id, std::uint32_t tag, std::uint64_t offset, std::uint64_t length,
           unsigned access = kRemote) {
    return y.post(bind_wr(wr_id, tag, offset, length, access));
  }
  int invalidate(Endpoint& by, std::uint64_t wr_id, std::uint32_t rkey, ibv_wr_opcode opcode = IBV_WR_LOCAL_INV) {
    ibv_send_wr wr{};
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.invalidate_rkey = rkey;
    return by.post(wr);
  }
  void expect_write(std::uint64_t raddr, std::uint32_t rkey, ibv_wc_status status, std::uint32_t bytes = 8) {
    ASSERT_EQ(x.post_rdma(7, IBV_WR_RDMA_WRITE, {x.sge(0, bytes)}, raddr, rkey), 0);
    EXPECT_WC(x.wait(), 7, status);
  }
};

TEST_P(Conformance, AWindowIsWhatTheDeviceSaysItHas) {
  Endpoint x(a());
  ibv_device_attr attr{};
  ASSERT_EQ(x.ops.query_device(x.device.context, &attr), 0);
  EXPECT_GT(attr.max_mw, 0);
  const unsigned wanted = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS;
  EXPECT_EQ(attr.device_cap_flags & wanted, wanted);
  EXPECT_EQ(x.ops.alloc_mw(x.pd, static_cast<ibv_mw_type>(3)), nullptr);
  EXPECT_EQ(x.process.last_errno(), EINVAL);
  ibv_mw* mw = x.ops.alloc_mw(x.pd, IBV_MW_TYPE_1);
  ASSERT_NE(mw, nullptr);
  EXPECT_EQ(mw->type, IBV_MW_TYPE_1);
  EXPECT_EQ(mw->pd, x.pd);
  EXPECT_EQ(x.ops.dealloc_pd(x.pd), EBUSY);
  EXPECT_EQ(x.ops.dealloc_mw(mw), 0);
}

TEST_P(Conformance, AWindowOpensAPartOfARegion) {
  for (ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
    Windows w(a(), b(), type);
    ASSERT_EQ(w.bind(1, 5, 4096, 4096), 0);
    const ibv_wc wc = w.y.wait();
    EXPECT_WC(wc, 1, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_BIND_MW);
    std::memcpy(w.x.at(0), "through!", 8);
    w.expect_write(w.y.address(4096), w.key(5), IBV_WC_SUCCESS);
    w.expect_write(w.y.address(8192 - 8), w.key(5), IBV_WC_SUCCESS);
    ASSERT_EQ(w.x.post_rdma(2, IBV_WR_RDMA_READ, {w.x.sge(100, 8)}, w.y.address(4096), w.key(5)), 0);
    EXPECT_WC(w.x.wait(), 2, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(w.x.at(100), "through!", 8), 0);
    const std::uint64_t aligned = (w.y.address(4096) + 7) & ~7ull;
    ASSERT_EQ(w.x.post_atomic(3, IBV_WR_ATOMIC_FETCH_AND_ADD, {w.x.sge(200, 8)}, aligned, w.key(5), 1, 0), 0);
    EXPECT_WC(w.x.wait(), 3, IBV_WC_SUCCESS);
    w.expect_write(w.y.address(8192 - 7), w.key(5), IBV_WC_REM_ACCESS_ERR);
  }
}

TEST_P(Conformance, AWindowHasRightsOfItsOwn) {
  for (unsigned access : {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC}) {
    for (ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
      Windows w(a(), b(), IBV_MW_TYPE_2);
      ASSERT_EQ(w.bind(1, 5, 0, 4096, access), 0);
      EXPECT_WC(w.y.wait(), 1, IBV_WC_SUCCESS);
      const std::uint64_t aligned = (w.y.address(0) + 7) & ~7ull;
      if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        ASSERT_EQ(w.x.post_atomic(2, opcode, {w.x.sge(0, 8)}, aligned, w.key(5), 1, 0), 0);
      else
        ASSERT_EQ(w.x.post_rdma(2, opcode, {w.x.sge(0, 8)}, aligned, w.key(5)), 0);
      const bool may = opcode == IBV_WR_RDMA_WRITE  ? access == IBV_ACCESS_REMOTE_WRITE
                       : opcode == IBV_WR_RDMA_READ ? access == IBV_ACCESS_REMOTE_READ
                                                    : access == IBV_ACCESS_REMOTE_ATOMIC;
      EXPECT_WC(w.x.wait(), 2, may ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
    }
  }
}

TEST_P(Conformance, EachBindHasAKeyOfItsOwn) {
  for (std::uint64_t length : {1024u, 0u}) {
    Windows w(a(), b(), IBV_MW_TYPE_1);
    ASSERT_EQ(w.bind(1, 1, 0, 4096), 0);
    EXPECT_WC(w.y.wait(), 1, IBV_WC_SUCCESS);
    w.expect_write(w.y.address(0), w.key(1), IBV_WC_SUCCESS);
    ASSERT_EQ(w.bind(2, 2, 4096, length), 0);  // elsewhere, or nowhere
    EXPECT_WC(w.y.wait(), 2, IBV_WC_SUCCESS);
    if (length != 0) w.expect_write(w.y.address(4096), w.key(2), IBV_WC_SUCCESS);
    w.expect_write(w.y.address(length != 0 ? 4096 : 0), w.key(1), IBV_WC_REM_ACCESS_ERR);
  }
  Windows w(a(), b(), IBV_MW_TYPE_1);
  ibv_send_wr nowhere = w.bind_wr(3, 3, 0, 0);
  nowhere.bind_mw.bind_info = {};
  ASSERT_EQ(w.y.post(nowhere), 0);
  EXPECT_WC(w.y.wait(), 3, IBV_WC_SUCCESS);
  w.expect_write(w.y.address(0), w.key(3), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(Conformance, AWindowOfTypeTwoIsBoundOnceUntilItIsInvalidated) {
  Windows w(a(), b(), IBV_MW_TYPE_2);
  for (std::uint32_t tag = 10; tag < 14; ++tag) {
    ASSERT_EQ(w.bind(1, tag, 0, 4096), 0);
    EXPECT_WC(w.y.wait(), 1, IBV_WC_SUCCESS);
    w.expect_write(w.y.address(0), w.key(tag), IBV_WC_SUCCESS);
    ASSERT_EQ(w.invalidate(w.y, 2, w.key(tag)), 0);
    const ibv_wc wc = w.y.wait();
    EXPECT_WC(wc, 2, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_LOCAL_INV);
  }
  ASSERT_EQ(w.bind(3, 20, 0, 4096), 0);
  ASSERT_EQ(w.bind(4, 21, 0, 4096), 0);
  ASSERT_EQ(w.y.post_send(5, {}), 0);
  EXPECT_WC(w.y.wait(), 3, IBV_WC_SUCCESS);
  EXPECT_WC(w.y.wait(), 4, IBV_WC_MW_BIND_ERR);
  EXPECT_WC(w.y.wait(), 5, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(w.y.state(), IBV_QPS_ERR);
}

TEST_P(Conformance, WhatAWindowNoLongerOpens) {
  enum Case { kLocally, kByPeer, kDeallocated, kCases };
  for (int c = 0; c < kCases; ++c) {
    SCOPED_TRACE(c);
    Windows w(a(), b(), IBV_MW_TYPE_2);
    ASSERT_EQ(w.bind(1, 5, 0, 4096), 0);
    EXPECT_WC(w.y.wait(), 1, IBV_WC_SUCCESS);
    if (c == kLocally) {
      ASSERT_EQ(w.invalidate(w.y, 2, w.key(5)), 0);
      EXPECT_WC(w.y.wait(), 2, IBV_WC_SUCCESS);
    } else if (c == kByPeer) {
      ASSERT_EQ(w.y.post_recv(3, {w.y.sge(60000, 64)}), 0);
      std::memcpy(w.x.at(0), "invalid", 8);
      std::vector<ibv_sge> list{w.x.sge(0, 8)};
      ibv_send_wr wr = w.x.send_wr(4, IBV_WR_SEND_WITH_INV, list);
      wr.invalidate_rkey = w.key(5);
      ASSERT_EQ(w.x.post(wr), 0);
      ibv_wc wc = w.y.wait();
      EXPECT_WC(wc, 3, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_WITH_INV));
      EXPECT_EQ(wc.invalidated_rkey, w.key(5));
      EXPECT_EQ(wc.opcode, IBV_WC_RECV);
      EXPECT_EQ(wc.byte_len, 8u);
      EXPECT_STREQ(w.y.at(60000), "invalid");
      wc = w.x.wait();
      EXPECT_WC(wc, 4, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.opcode, IBV_WC_SEND);
    } else {
      EXPECT_EQ(w.y.ops.dealloc_mw(w.mw), 0);
    }
    const std::uint32_t key = w.key(5);
    if (c == kDeallocated) w.mw = nullptr;
    w.expect_write(w.y.address(0), key, IBV_WC_REM_ACCESS_ERR);
  }
}

TEST_P(Conformance, InvalidatingWhatIsNotBound) {
  for (bool by_peer : {false, true}) {
    for (int wrong = 0; wrong < 4; ++wrong) {
      SCOPED_TRACE(std::to_string(wrong) + (by_peer ? ", by its peer" : ", by itself"));
      Windows w(a(), b(), wrong == 3 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
      if (wrong != 0) {
        ASSERT_EQ(w.bind(1, 5, 0, 4096), 0);
        EXPECT_WC(w.y.wait(), 1, IBV_WC_SUCCESS);
      }
      const std::uint32_t key = wrong == 1 ? w.key(4) : wrong == 2 ? w.mr->rkey : w.key(5);
      if (!by_peer) {
        ASSERT_EQ(w.invalidate(w.y, 2, key), 0);
        EXPECT_WC(w.y.wait(), 2, IBV_WC_LOC_QP_OP_ERR);
        continue;
      }
      ASSERT_EQ(w.y.post_recv(3, {}), 0);
      ASSERT_EQ(w.invalidate(w.x, 4, key, IBV_WR_SEND_WITH_INV), 0);
      EXPECT_WC(w.y.wait(), 3, IBV_WC_REM_INV_REQ_ERR);
      EXPECT_WC(w.x.wait(), 4, IBV_WC_REM_ACCESS_ERR);
    }
  }
}

// A window of type 1 belongs to a protection domain, one of type 2 to a queue pair.
TEST_P(Conformance, WhoMayUseAWindow) {
  for (ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
    Windows w(a(), b(), type);
    Endpoint other(a());
    ibv_qp_init_attr init = w.y.init_attr();
    ibv_qp* second = w.y.ops.create_qp(w.y.pd, &init);
    ASSERT_EQ(w.y.to_init(second), 0);
    ASSERT_EQ(w.y.to_rtr(second, other.device, other.qp->qp_num), 0);
    ASSERT_EQ(w.y.to_rts(second), 0);
    ASSERT_EQ(other.to_init(other.qp), 0);
    ASSERT_EQ(other.to_rtr(other.qp, w.y.device, second->qp_num), 0);
    ASSERT_EQ(other.to_rts(other.qp), 0);
    ASSERT_EQ(w.bind(1, 5, 0, 4096), 0);
    EXPECT_WC(w.y.wait(), 1, IBV_WC_SUCCESS);
    ASSERT_EQ(other.post_rdma(2, IBV_WR_RDMA_WRITE, {other.sge(0, 8)}, w.y.address(0), w.key(5)), 0);
    EXPECT_WC(other.wait(), 2, type == IBV_MW_TYPE_1 ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
    w.expect_write(w.y.address(0), w.key(5), IBV_WC_SUCCESS);
    EXPECT_EQ(w.y.ops.destroy_qp(second), 0);
  }
}

TEST_P(Conformance, BindsThatMustNotBe) {
  enum Case {
    kNoRight,
    kReadOnly,
    kBefore,
    kBehind,
    kOtherDomain,
    kZeroBasedRegion,
    kEmptyTypeTwo,
    kDeregistered,
    kCases
  };
  for (int c = 0; c < kCases; ++c) {
    SCOPED_TRACE(c);
    Windows w(a(), b(), IBV_MW_TYPE_2);
    Endpoint& y = w.y;
    ibv_pd* other = y.ops.alloc_pd(y.device.context);
    const int access = c == kNoRight    ? kAllAccess
                       : c == kReadOnly ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND
                                        : kAllAccess | IBV_ACCESS_MW_BIND;
    ibv_mr* mr =
        y.ops.reg_mr(c == kOtherDomain ? other : y.pd, y.at(4096), 4096, c == kZeroBasedRegion ? 0 : y.address(4096),
                     c == kZeroBasedRegion ? access | IBV_ACCESS_ZERO_BASED : access);
    ASSERT_NE(mr, nullptr);
    ibv_send_wr wr = w.bind_wr(1, 5, 4096, 4096);
    ibv_mw_bind_info& info = wr.bind_mw.bind_info;
    info.mr = mr;
    if (c == kBefore) --info.addr;
    if (c == kBehind) ++info.length;
    if (c == kZeroBasedRegion) info.addr = 0;
    if (c == kEmptyTypeTwo) info.length = 0;
    if (c == kDeregistered) {  // when its turn comes
      ASSERT_EQ(y.post_send(0, {}), 0);
      ASSERT_EQ(y.post(wr), 0);
      EXPECT_EQ(y.ops.dereg_mr(mr), 0);
      ASSERT_EQ(w.x.post_recv(9, {}), 0);
      EXPECT_WC(y.wait(), 0, IBV_WC_SUCCESS);
      EXPECT_WC(w.x.wait(), 9, IBV_WC_SUCCESS);
    } else {
      ASSERT_EQ(y.post(wr), 0);
    }
    EXPECT_WC(y.wait(), 1, IBV_WC_MW_BIND_ERR);
    EXPECT_EQ(y.state(), IBV_QPS_ERR);
    if (c != kDeregistered) {
      EXPECT_EQ(y.ops.dereg_mr(mr), 0);
    }
    EXPECT_EQ(y.ops.dealloc_pd(other), 0);
  }
  // Refused at once.
  Windows w(a(), b(), IBV_MW_TYPE_1);
  EXPECT_EQ(w.bind(1, 5, 0, 4096, kRemote | IBV_ACCESS_ZERO_BASED), EINVAL);
  EXPECT_EQ(w.bind(1, 5, 0, 4096, 1u << 12), EINVAL);
  ibv_send_wr wr = w.bind_wr(1, 5, 0, 4096);
  wr.bind_mw.rkey += 0x100;
  EXPECT_EQ(w.y.post(wr), EINVAL);
  wr = w.bind_wr(1, 5, 0, 4096);
  wr.bind_mw.bind_info.mr = nullptr;
  EXPECT_EQ(w.y.post(wr), EINVAL);
  wr.bind_mw.mw = nullptr;
  EXPECT_EQ(w.y.post(wr), EINVAL);
}

TEST_P(Conformance, AWindowMayBeginAtZero) {
  Windows w(a(), b(), IBV_MW_TYPE_2);
  ASSERT_EQ(w.bind(1, 5, 4096, 100, kRemote | IBV_ACCESS_ZERO_BASED), 0);
  EXPECT_WC(w.y.wait(), 1, IBV_WC_SUCCESS);
  std::memcpy(w.x.at(0), "at zero", 8);
  w.expect_write(0, w.key(5), IBV_WC_SUCCESS);
  EXPECT_STREQ(w.y.at(4096), "at zero");
  w.expect_write(92, w.key(5), IBV_WC_SUCCESS);
  w.expect_write(93, w.key(5), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(Conformance, ARegionWithABoundWindowStays) {
  Windows w(a(), b(), IBV_MW_TYPE_2);
  ASSERT_EQ(w.bind(1, 5, 0, 4096), 0);
  EXPECT_WC(w.y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_EQ(w.y.ops.dereg_mr(w.mr), EBUSY);
  EXPECT_EQ(w.y.ops.rereg_mr(w.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_LOCAL_WRITE), EBUSY);
  w.expect_write(w.y.address(0), w.key(5), IBV_WC_SUCCESS);
  // A queue pair takes its windows of type 2 along.
  ASSERT_EQ(w.y.to_state(IBV_QPS_RESET), 0);
  ibv_mr* again = w.y.ops.reg_mr(w.y.pd, w.y.at(0), 65536, w.y.address(0), kAllAccess);
  EXPECT_EQ(w.y.ops.dereg_mr(w.mr), 0);
  w.mr = again;
}

// Binds and invalidations have their place between the others, whatever holds those up, and no number on the wire.
TEST_P(Conformance, BindsKeepTheirPlace) {
  QpOptions options;
  options.signal_all = false;
  Windows w(a(), b(), IBV_MW_TYPE_2, options);
  // A send that waits for a receive, and behind it, in one list, a bind and a send that tells of it.
  ibv_send_wr first{}, bind = w.bind_wr(2, 5, 0, 4096), last{}, *bad = nullptr;
  first.opcode = last.opcode = IBV_WR_SEND;
  first.wr_id = 1;
  last.wr_id = 3;
  last.send_flags = IBV_SEND_SIGNALED;
  first.next = &bind;
  bind.next = &last;
  ASSERT_EQ(w.y.ops.post_send(w.y.qp, &first, &bad), 0);
  while (refusals(w.x) == 0) w.y.ops.progress(0), w.x.ops.progress(0);
  EXPECT_EQ(w.y.ops.sq_executed(w.y.qp), 0u);
  EXPECT_EQ(w.y.ops.dereg_mr(w.mr), 0) << "not bound yet";
  w.mr = w.y.ops.reg_mr(w.y.pd, w.y.at(0), 65536, w.y.address(0), kAllAccess | IBV_ACCESS_MW_BIND);
  ASSERT_EQ(w.x.post_recv(10, {}), 0);
  ASSERT_EQ(w.x.post_recv(11, {}), 0);
  EXPECT_WC(w.x.wait(), 10, IBV_WC_SUCCESS);
  EXPECT_WC(w.y.wait(), 2, IBV_WC_MW_BIND_ERR) << "its region is another now";
}

TEST_P(Conformance, ManyBindsBetweenOtherRequests) {
  QpOptions options;
  options.signal_all = false;
  Windows w(a(), b(), IBV_MW_TYPE_2, options);
  std::uint64_t requests = 0;
  for (std::uint32_t round = 0; round < 200; ++round) {
    const std::uint32_t key = w.key(round % 256), at = round % 8;
    for (std::uint64_t id : {1, 2}) ASSERT_EQ(w.x.post_recv(id, {}), 0);
    ASSERT_EQ(w.y.post_recv(3, {}), 0);
    ASSERT_EQ(w.bind(10, round % 256, 4096 * at, 4096), 0);
    ASSERT_EQ(w.y.post_send(11, {}), 0);
    EXPECT_WC(w.x.wait(), 1, IBV_WC_SUCCESS);
    *w.x.at(0) = static_cast<char>(round);
    ASSERT_EQ(w.x.post_rdma(20, IBV_WR_RDMA_WRITE, {w.x.sge(0, 1)}, w.y.address(4096 * at), key), 0);
    if (round % 2 == 0) {
      ASSERT_EQ(w.invalidate(w.x, 21, key, IBV_WR_SEND_WITH_INV), 0);
      EXPECT_WC(w.y.wait(), 3, IBV_WC_SUCCESS);
    } else {
      ASSERT_EQ(w.x.post_send(21, {}), 0);
      EXPECT_WC(w.y.wait(), 3, IBV_WC_SUCCESS);
      ASSERT_EQ(w.invalidate(w.y, 12, key), 0);
      ++requests;
    }
    EXPECT_EQ(*w.y.at(4096 * at), static_cast<char>(round));
    ASSERT_EQ(w.y.post_send(13, {}, IBV_SEND_SIGNALED), 0);
    EXPECT_WC(w.x.wait(), 2, IBV_WC_SUCCESS);
    EXPECT_WC(w.y.wait(), 13, IBV_WC_SUCCESS);
    requests += 3;
    EXPECT_EQ(w.y.ops.sq_executed(w.y.qp), requests);
    EXPECT_EQ(w.x.poll(), 0);
  }
}

TEST_P(Conformance, WindowsOfOtherKindsOfQueuePairs) {
  QpOptions options;
  options.type = IBV_QPT_UC;
  Windows w(a(), b(), IBV_MW_TYPE_2, options);
  ASSERT_EQ(w.bind(1, 5, 0, 4096), 0);
  EXPECT_WC(w.y.wait(), 1, IBV_WC_SUCCESS);
  std::memcpy(w.x.at(0), "window", 7);
  w.expect_write(w.y.address(0), w.key(5), IBV_WC_SUCCESS);
  EXPECT_STREQ(w.y.at(0), "window");
  EXPECT_EQ(w.invalidate(w.x, 2, w.key(5), IBV_WR_SEND_WITH_INV), EINVAL);
  ASSERT_EQ(w.invalidate(w.y, 2, w.key(5)), 0);
  EXPECT_WC(w.y.wait(), 2, IBV_WC_SUCCESS);
  std::memcpy(w.x.at(0), "closed", 7);
  w.expect_write(w.y.address(0), w.key(5), IBV_WC_SUCCESS);
  ASSERT_EQ(w.y.post_recv(3, {}), 0);
  ASSERT_EQ(w.x.post_send(4, {}), 0);
  EXPECT_WC(w.x.wait(), 4, IBV_WC_SUCCESS);
  EXPECT_WC(w.y.wait(), 3, IBV_WC_SUCCESS);
  EXPECT_STREQ(w.y.at(0), "window") << "dropped";
  QpOptions datagrams;
  datagrams.type = IBV_QPT_UD;
  Endpoint d(b(), datagrams);
  EXPECT_EQ(d.to_init(d.qp), 0);
  EXPECT_EQ(d.to_rtr(d.qp, d.device, 0), 0);
  EXPECT_EQ(d.to_rts(d.qp), 0);
  EXPECT_EQ(w.invalidate(d, 1, 1), EINVAL);
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
