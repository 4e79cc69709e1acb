// Settling beside an exchange that fails.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hooks/threads/stop.h"
#include "shadowib/cr/judge.h"
#include "shadowib/cr/participant.h"
#include "shadowib/cr/peers.h"
#include "shadowib/objects/registry.h"

namespace shadowib {

namespace {
bool g_stopped = true;
int g_looks_after = 0;    // at queue pairs, after the stop has ended
Status g_members_status;  // with which the exchange answers who is at an address:
std::vector<std::uint32_t> g_peers;
}  // namespace

// Beside what is tested.
void begin_anew_what_ran_out() {}
bool stop_lasts() { return g_stopped; }
Status members_at(const RemoteEnd&, std::vector<std::uint32_t>* members) {
  *members = g_peers;
  return g_members_status;
}

namespace {

class MapExchange final : public Exchange {
 public:
  std::string ends_stop;  // an operation that hangs until the program's threads go on
  const std::string& uri() const override { return uri_; }

 private:
  void hang(const char* operation) const {
    if (ends_stop == operation) g_stopped = false;
  }
  Status do_publish(std::string_view key, std::string_view value) override {
    hang("publish");
    values_[std::string(key)] = value;
    return {};
  }
  Status do_lookup(const std::vector<std::string>& keys, std::vector<std::string>* values,
                   std::vector<bool>* found) override {
    hang("lookup");
    for (std::size_t i = 0; i < keys.size(); ++i)
      if (const auto it = values_.find(keys[i]); it != values_.end()) {
        (*found)[i] = true;
        (*values)[i] = it->second;
      }
    return {};
  }
  Status do_claim(std::string_view, std::string_view) override { return {}; }
  Status do_remove(std::string_view) override { return {}; }
  Status do_list(std::string_view, std::vector<std::string>*) override { return {}; }
  Status do_barrier(std::string_view, std::string_view, int, int, std::string_view) override { return {}; }
  Status do_entered(std::string_view, std::vector<std::string>*) override { return {}; }
  Status do_watch(std::string_view, std::uint64_t*, int, int) override { return {}; }
  std::map<std::string, std::string> values_;
  std::string uri_ = "map:";
};

// A member with a connection, on which a request has not run.
class SettleTest : public testing::Test {
 protected:
  void SetUp() override {
    g_members_status = {};
    g_stopped = true;
    g_looks_after = 0;
    g_peers.clear();
    g_backend = {};
    g_backend.query_qp = [](ibv_qp*, ibv_qp_attr* attr, int, ibv_qp_init_attr*) {
      attr->qp_state = IBV_QPS_RTS;
      return 0;
    };
    g_backend.sq_executed = [](ibv_qp*) -> decltype(g_backend.sq_executed(nullptr)) {
      g_looks_after += !g_stopped;
      return 0;
    };
    std::strcpy(job_.epoch, "g0-test");
    qp_.qp.qp_base.qp_type = IBV_QPT_RC;
    qp_.qp.qp_base.state = IBV_QPS_RTS;
    qp_.real = &real_;
    context_->device = &device_;
    qp_.context = context_.get();
    qp_.qp_num = {77};
    qp_.remote.qp_num = {78};
    qp_.remote.lid = {9};
    ASSERT_TRUE(qp_.send.create(4, 1, 16, false));
    ASSERT_TRUE(qp_.receive.create(4, 1, 0, true));
    qp_.send.slot(0).wr.opcode = IBV_WR_SEND;
    qp_.send.slot(0).pend(SlotHeader::kPlain);
    qp_.send.head = 1;
    qp_.send.messages = 1;
    registry().qps.push_back(qp_);
  }
  void TearDown() override { registry().qps.erase(registry().qps.iterator_to(qp_)); }
  Status settle() {
    static const std::uint32_t members[] = {0, 1};
    SettleContext context{};
    context.job = &job_;
    context.exchange = &exchange_;
    context.prefix = "g0-test/ckpt/1";
    context.abort_key = "g0-test/abort";
    context.members = members;
    context.member_count = 2;
    context.again_key = "g0-test/again";
    context.deadline_ns = INT64_MAX;
    return settle_queues(context);
  }
  JobInfo job_{};
  MapExchange exchange_;
  std::unique_ptr<ShadowContext> context_ = std::make_unique<ShadowContext>();
  ShadowDevice device_{};
  ibv_qp real_{};
  ShadowQp qp_;
};

TEST_F(SettleTest, APeerThatIsNowhereIsGone) {
  const Status status = settle();
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_TRUE(qp_.doomed);
}

// It may be there all the same: its connection would be buried in the image.
TEST_F(SettleTest, APeerThatTheExchangeDoesNotTellOfIsNotGone) {
  g_members_status = Status(Code::kIo, ECONNRESET, "the exchange is gone");
  EXPECT_EQ(settle().code(), Code::kIo);
  EXPECT_FALSE(qp_.doomed);
}

// Parked threads go on by themselves when a stop takes too long. Then queue pairs come and go.
TEST_F(SettleTest, QueuePairsAreLeftAloneOnceTheStopHasEnded) {
  for (const char* operation : {"publish", "lookup"}) {
    g_stopped = true;
    g_peers = {1};
    exchange_.ends_stop = operation;
    EXPECT_EQ(settle().code(), Code::kRefused) << operation;
    EXPECT_EQ(g_looks_after, 0) << operation;
  }
}

// Of two members with two adapters each. Queue pair 77 of the first adapter is connected to 78 of the peer's first,
// and those of the second adapters have the same numbers.
class TwoAdapters : public SettleTest {
 protected:
  void SetUp() override {
    SettleTest::SetUp();
    for (int i = 0; i < 2; ++i) {
      devices_[i].ordinal = i;
      contexts_[i]->device = &devices_[i];
      contexts_[i]->ports.resize(1);
      contexts_[i]->ports[0].lid = {kLid + static_cast<std::uint32_t>(i)};
      registry().contexts.push_back(*contexts_[i]);
    }
    g_backend.get_async_event = [](ibv_context*, ibv_async_event*) { return -1; };
    qp_.context = contexts_[0].get();
    g_peers = {1};
  }
  void TearDown() override {
    for (const auto& context : contexts_) registry().contexts.erase(registry().contexts.iterator_to(*context));
    SettleTest::TearDown();
  }
  // The peer's queue pair 78 on that adapter.
  static QpCounts row(std::uint32_t adapter, std::uint32_t state) {
    return {.qp_num = 78, .remote_qp_num = 77, .state = state, .adapter = adapter, .remote_lid = kLid + adapter};
  }
  void publish(const std::vector<QpCounts>& rows) {
    const std::string_view text(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(QpCounts));
    ASSERT_TRUE(exchange_.publish("g0-test/ckpt/1/counts/1", text).ok());
  }
  static constexpr std::uint32_t kLid = 21;
  ShadowDevice devices_[2] = {};
  std::unique_ptr<ShadowContext> contexts_[2] = {std::make_unique<ShadowContext>(),
                                                 std::make_unique<ShadowContext>()};
};

TEST_F(TwoAdapters, APeerIsTheOneAtTheOtherEnd) {
  for (const bool first_comes_first : {false, true}) {
    std::vector<QpCounts> rows = {row(0, IBV_QPS_RTS), row(1, IBV_QPS_ERR)};
    if (!first_comes_first) std::swap(rows[0], rows[1]);
    publish(rows);
    const Status status = settle();
    EXPECT_TRUE(status.ok()) << status.text();
    EXPECT_FALSE(qp_.doomed) << first_comes_first;
  }
}

TEST_F(TwoAdapters, OneThatIsConnectedToTheOtherAdapterIsNoPeer) {
  publish({row(1, IBV_QPS_RTS)});
  EXPECT_TRUE(settle().ok());
  EXPECT_TRUE(qp_.doomed);
}

}  // namespace
}  // namespace shadowib
