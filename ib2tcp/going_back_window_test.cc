// Clusters that go back to a checkpoint: binds of memory windows, which have no numbers, among what is sent again.
#include <cstring>
#include <utility>
#include <vector>

#include "ib2tcp/testing/two_clusters.h"

namespace shadowib::ib2tcp::testing {
namespace {

class BindsOfWindows : public TwoClusters {};

// Requests without numbers lie between those that B has run: places in the queue and numbers differ. Two in a row,
// one behind a READ whose answer is to be asked for again, and one at the end.
TEST_P(BindsOfWindows, TheSenderHearsWhatHasRunBetweenBindsOfWindows) {
  std::vector<std::uint64_t> order;
  const auto note = [&] { order.push_back(next_number_++); };
  for (std::uint64_t i = 0; i < 40; ++i) post_receive(i);
  a().member().freeze(true);  // so that none leaves before the checkpoint
  const auto bind = [&] { a().post_bind(next_number_, kBlock, 4096), note(); };
  const auto invalidate = [&] { a().post_invalidate(next_number_), note(); };
  const auto read = [&] {
    a().post_send(next_number_, IBV_WR_RDMA_READ, kResults, 8, reinterpret_cast<std::uint64_t>(b().at(kCounter)),
                  b().key()),
        note();
  };
  const auto message = [&] {
    std::memcpy(a().at(kNumbers + 8 * next_number_), &next_number_, 8);
    a().post_send(next_number_, IBV_WR_SEND, kNumbers + 8 * next_number_, 8), note();
  };
  message(), message(), bind(), invalidate(), message(), bind(), message(), read(), message(), invalidate();
  message(), bind();
  const Image image = a().checkpoint();
  const auto expect_all = [&](const char* when) {
    SCOPED_TRACE(when);
    for (const std::uint64_t number : order) expect_sent(number);
  };
  expect_all("before");
  for (const std::uint64_t number : {0, 1, 4, 6, 8, 10}) {
    const ibv_wc wc = b().wait();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(b().number_at(kReceived + 8 * wc.wr_id), number);
  }
  go_back(0, image);
  expect_all("again");
  ibv_wc wc;
  EXPECT_FALSE(a().poll(&wc)) << "a completion came twice";
  EXPECT_FALSE(b().poll(&wc)) << "a message came twice";
  // The last bind holds, and what follows has the right number.
  b().post_send(100, IBV_WR_RDMA_WRITE, kBlock, 8, reinterpret_cast<std::uint64_t>(a().at(kBlock)), a().window_key());
  EXPECT_EQ(describe(b().wait()), describe(100, IBV_WC_SUCCESS));
  message();
  EXPECT_EQ(b().wait().status, IBV_WC_SUCCESS);
  expect_sent(order.back());
}

// B has run two of them. The rest leaves once.
TEST_P(BindsOfWindows, TheSenderGoesOnBehindABindOfAWindow) {
  for (std::uint64_t i = 0; i < 2; ++i) post_receive(i);
  a().member().freeze(true);
  send();
  a().post_bind(100, kBlock, 4096);
  send();
  a().post_invalidate(101);
  send();
  a().post_bind(102, kBlock, 4096);
  const Image image = a().checkpoint();
  for (const std::uint64_t id : {0, 100, 1, 101}) expect_sent(id);
  for (std::uint64_t i = 0; i < 2; ++i) expect_received(i);
  go_back(0, image);
  for (const std::uint64_t id : {0, 100, 1, 101}) expect_sent(id);
  post_receive(2);
  expect_received(2);
  for (const std::uint64_t id : {2, 102}) expect_sent(id);
  ibv_wc wc;
  EXPECT_FALSE(a().poll(&wc));
  EXPECT_FALSE(b().poll(&wc));
}

// B binds a window behind a message to another process, which is not ready to receive. A knows the window, since B
// had bound it before B went back. What A sends there waits, and uses up no retries.
class Window : public TwoClusters {
 protected:
  Window() : TwoClusters(std::size_t{1} << 30, 1) {}
  void SetUp() override {
    b().replace_window(IBV_MW_TYPE_1);
    post_receive(0), send(), expect_received(0), expect_sent(0);
    image_ = b().checkpoint();
    b().post_bind(100, kBlock, 4096);
    EXPECT_EQ(b().wait().status, IBV_WC_SUCCESS);
    b().before_opening = [this] { bind_behind_a_message(); };
  }
  std::uint64_t place() { return reinterpret_cast<std::uint64_t>(b().at(kBlock)); }
  void write(std::uint64_t id) {
    std::memcpy(a().at(kBlock), "from A", 7);
    a().post_send(id, IBV_WR_RDMA_WRITE, kBlock, 8, place(), b().window_key());
  }
  // It is of B's cluster, so that B's border has nothing to do with it.
  void bind_behind_a_message() {
    ClusterState state = state_of(1, 1);
    std::copy(std::begin(incarnations_), std::end(incarnations_), state.incarnations);
    other_ = std::make_unique<Member>(exchange_, GetParam(), state);
    to_ = std::make_unique<Endpoint>(*other_->device);
    from_ = std::make_unique<Endpoint>(*b().member().device);
    ASSERT_EQ(from_->ops.destroy_qp(from_->qp), 0);
    ibv_pd* const own = std::exchange(from_->pd, b().pd());  // the window's
    from_->qp = from_->make_qp();
    from_->pd = own;
    connect(*from_, *to_);
    ASSERT_EQ(from_->post_send(1, {}), 0);
    b().bind_by(from_->qp, 2, kBlock, 4096);
  }
  void await_refusals() {
    EXPECT_TRUE(eventually([&] { return b().member().figure("rnr_naks") > 5; }));
    EXPECT_EQ(a().state(), IBV_QPS_RTS);
    EXPECT_EQ(b().state(), IBV_QPS_RTS);
  }
  void let_bind() {
    ASSERT_EQ(to_->post_recv(1, {}), 0);
    EXPECT_WC(from_->wait(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(from_->wait(), 2, IBV_WC_SUCCESS);
  }
  void TearDown() override {
    from_.reset();  // before B ends
    to_.reset();
  }

  Image image_;
  std::unique_ptr<Member> other_;
  std::unique_ptr<Endpoint> to_, from_;
};

TEST_P(Window, WhatIsSentAgainWaits) {
  write(1), expect_sent(1);
  EXPECT_STREQ(b().at(kBlock), "from A");
  send();  // behind it
  go_back(1, image_);
  post_receive(1);
  await_refusals();
  EXPECT_STREQ(b().at(kBlock), "") << "nothing is bound";
  let_bind();
  expect_sent(1), expect_received(1);
  EXPECT_STREQ(b().at(kBlock), "from A");
  EXPECT_TRUE(eventually([&] { return a().ops().gate_earliest(1) == kGateNothing; }));
}

TEST_P(Window, WhatHadNotRunUsesUpNoRetries) {
  go_back(1, image_);
  write(1);
  a().post_send(2, IBV_WR_RDMA_READ, kResults, 8, place(), b().window_key());
  a().post_send(3, IBV_WR_ATOMIC_FETCH_AND_ADD, kResults + 8, 8, place() + 64, b().window_key());
  await_refusals();
  let_bind();
  for (const std::uint64_t id : {1, 2, 3}) expect_sent(id);
  EXPECT_STREQ(a().at(kResults), "from A");
  EXPECT_EQ(a().number_at(kResults + 8), 0u);
  EXPECT_EQ(b().number_at(kBlock + 64), 1u);
}

// No bind of that key is under way.
TEST_P(Window, AnotherKeyIsAnError) {
  go_back(1, image_);
  a().post_send(1, IBV_WR_RDMA_WRITE, kBlock, 8, place(), b().window_key() + 1);
  EXPECT_EQ(describe(a().wait()), describe(1, IBV_WC_REM_ACCESS_ERR));
}

INSTANTIATE_TEST_SUITE_P(Transports, BindsOfWindows, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, Window, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });

}  // namespace
}  // namespace shadowib::ib2tcp::testing
