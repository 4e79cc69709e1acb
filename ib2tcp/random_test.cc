// Random operations on several queue pairs at once, checked against a ledger of what must be in memory at the end.
// IB2TCP_SEED=N repeats a run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <random>
#include <thread>

#include "ib2tcp/testing/endpoint.h"
#include "ib2tcp/testing/process.h"

namespace shadowib::ib2tcp::testing {
namespace {

constexpr std::size_t kSlot = 96 << 10;  // one message's place
constexpr int kSlots = 40;

// One direction of one queue pair. Message n is filled with a pattern of n; the receiver checks it where it lies.
struct Flow {
  Endpoint& from;
  Endpoint& to;
  std::deque<std::pair<std::uint64_t, std::uint32_t>> sent;  // number, bytes: not yet seen by the receiver
  std::deque<std::uint64_t> posted;                          // wr_ids of all requests, in order
  std::uint64_t next = 0, sends = 0, received = 0, receives = 0, added = 0;
};

char pattern(std::uint64_t n, std::size_t i) { return static_cast<char>(n * 31 + i * 7 + (i >> 8)); }

class RandomOperations : public ::testing::TestWithParam<std::string> {
 protected:
  void post_one(Flow& flow, std::mt19937& random) {
    Endpoint& x = flow.from;
    std::uint64_t n = flow.next;
    std::size_t slot = (flow.sends % 16) * kSlot;
    auto bytes = static_cast<std::uint32_t>(random() % 3 == 0 ? random() % kSlot : random() % 2000);
    unsigned flags = random() % 8 == 0 ? IBV_SEND_FENCE : 0;
    int rc = 0;
    switch (random() % 5) {
      case 0:
      case 1: {
        if (flow.sent.size() >= 15) return;
        for (std::size_t i = 0; i < bytes; ++i) x.at(slot)[i] = pattern(n, i);
        std::uint32_t cut = bytes == 0 ? 0 : static_cast<std::uint32_t>(random() % bytes);
        rc = x.post_send(n, {x.sge(slot, cut), x.sge(slot + cut, bytes - cut)}, flags);
        if (rc == 0) flow.sent.emplace_back(n, bytes);
        if (rc == 0) ++flow.sends;
        break;
      }
      case 2:
        // Into a place nobody reads before the end: the last write must win.
        std::memcpy(x.at(17 * kSlot + 8 * (n % 64)), &n, 8);
        rc = x.post_rdma(n, IBV_WR_RDMA_WRITE, {x.sge(17 * kSlot + 8 * (n % 64), 8)}, flow.to.address(34 * kSlot),
                         flow.to.mr->rkey, flags);
        if (rc == 0) last_write_[&flow] = n;
        break;
      case 3:
        rc = x.post_rdma(n, IBV_WR_RDMA_READ, {x.sge(18 * kSlot, bytes)}, flow.to.address(36 * kSlot),
                         flow.to.mr->rkey, flags);
        break;
      default: {
        rc = x.post_atomic(n, IBV_WR_ATOMIC_FETCH_AND_ADD, {x.sge(20 * kSlot, 8)}, counter(flow.to), flow.to.mr->rkey,
                           n + 1, 0);
        if (rc == 0) flow.added += n + 1;
      }
    }
    if (rc == ENOMEM) return;
    ASSERT_EQ(rc, 0);
    flow.posted.push_back(n);
    ++flow.next;
  }
  static std::uint64_t counter(Endpoint& e) { return (e.address(35 * kSlot) + 63) & ~63ull; }

  void post_receive(Flow& flow) {
    std::uint64_t n = flow.receives;
    if (n - flow.received >= 12) return;
    std::size_t slot = (22 + n % 12) * kSlot;
    if (flow.to.post_recv(n, {flow.to.sge(slot, 1000), flow.to.sge(slot + 1000, kSlot - 1000)}) == 0) ++flow.receives;
  }

  void poll(Endpoint& e, Flow& out, Flow& in) {
    ibv_wc wc;
    while (e.ops.poll_cq(e.cq, 1, &wc) == 1) {
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
      if (wc.opcode != IBV_WC_RECV) {
        ASSERT_FALSE(out.posted.empty());
        ASSERT_EQ(wc.wr_id, out.posted.front()) << "completions come in posting order";
        out.posted.pop_front();
        continue;
      }
      ASSERT_FALSE(in.sent.empty()) << "a message that nobody sent";
      auto [n, bytes] = in.sent.front();
      in.sent.pop_front();
      ASSERT_EQ(wc.wr_id, in.received) << "receives are used in posting order";
      ASSERT_EQ(wc.byte_len, bytes);
      const char* at = e.at((22 + in.received % 12) * kSlot);
      for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(at[i], pattern(n, i)) << "message " << n << " byte " << i;
      ++in.received;
    }
  }
  std::map<Flow*, std::uint64_t> last_write_;
};

TEST_P(RandomOperations, AgreeWithTheLedger) {
  const char* given = std::getenv("IB2TCP_SEED");
  unsigned seed = given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
  SCOPED_TRACE("repeat with IB2TCP_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  auto exchange = std::make_shared<FakeExchange>();
  bool self = GetParam() == "self";
  ProcessOptions options;
  options.transport = self ? "auto" : GetParam();
  options.helper = random() % 2 == 0;
  Process first(exchange, options);
  std::unique_ptr<Process> second = self ? nullptr : std::make_unique<Process>(exchange, options);
  Device a(first), b(self ? first : *second);
  constexpr int kPairs = 4;
  std::vector<std::unique_ptr<Endpoint>> ends;
  std::vector<std::unique_ptr<Flow>> flows;
  QpOptions qp;
  qp.send_wr = 32;
  qp.rd_atomic = qp.dest_rd_atomic = static_cast<std::uint8_t>(1 + random() % 16);
  for (int i = 0; i < kPairs; ++i) {
    ends.push_back(std::make_unique<Endpoint>(a, qp, kSlots * kSlot));
    ends.push_back(std::make_unique<Endpoint>(b, qp, kSlots * kSlot));
    connect(*ends[2 * i], *ends[2 * i + 1]);
    flows.push_back(std::make_unique<Flow>(Flow{*ends[2 * i], *ends[2 * i + 1], {}, {}}));
    flows.push_back(std::make_unique<Flow>(Flow{*ends[2 * i + 1], *ends[2 * i], {}, {}}));
  }
  for (int step = 0; step < 6000 && !HasFatalFailure(); ++step) {
    std::size_t f = random() % flows.size();
    switch (random() % 4) {
      case 0:
      case 1:
        post_one(*flows[f], random);
        break;
      case 2:
        post_receive(*flows[f]);
        break;
      default:
        poll(*ends[f], *flows[f], *flows[f ^ 1]);
    }
  }
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(200);
  bool done = false;
  while (!done && !HasFatalFailure() && std::chrono::steady_clock::now() < end) {
    done = true;
    for (std::size_t f = 0; f < flows.size(); ++f) {
      post_receive(*flows[f]);
      poll(*ends[f], *flows[f], *flows[f ^ 1]);
      done &= flows[f]->sent.empty() && flows[f]->posted.empty();
    }
  }
  ASSERT_TRUE(done) << "messages are lost";
  for (auto& flow : flows) {
    EXPECT_EQ(*reinterpret_cast<std::uint64_t*>(counter(flow->to)), flow->added) << "each atomic once";
    EXPECT_EQ(flow->from.ops.sq_executed(flow->from.qp), flow->next);
    if (last_write_.count(flow.get()) != 0) {
      std::uint64_t value;
      std::memcpy(&value, flow->to.at(34 * kSlot), 8);
      EXPECT_EQ(value, last_write_[flow.get()]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Self, RandomOperations, ::testing::Values("self"),
                         [](const auto&) { return std::string("self"); });
INSTANTIATE_TEST_SUITE_P(Transports, RandomOperations, ::testing::ValuesIn(kTransports),
                         [](const auto& info) { return name_in_test(info.param); });

}  // namespace
}  // namespace shadowib::ib2tcp::testing
