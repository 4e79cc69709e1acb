// Clusters that go back to a checkpoint: every byte, number and addition arrives once, whoever goes back.
#include "ib2tcp/testing/going_back.h"

#include <cstring>
#include <random>

namespace shadowib::ib2tcp::testing {
namespace {

constexpr std::size_t kNumbers = 0, kReceived = 64 << 10, kCounter = 128 << 10, kResults = 129 << 10,
                      kBlock = 256 << 10, kBlockBytes = 64 << 10;

// A of cluster 0 sends to B of cluster 1, which has receives for as much as it likes.
class GoingBack : public ::testing::TestWithParam<std::string> {
 protected:
  GoingBack() : GoingBack(std::size_t{1} << 30, 7) {}
  GoingBack(std::size_t log_limit, std::uint8_t rnr_retry, bool b_sends = true, int completions = 1024)
      : exchange_(std::make_shared<FakeExchange>()) {
    for (unsigned i : {0, 1}) {
      ClusterState state = state_of(i, 1);
      state.depends[1 - i] = 1000;  // nothing is held: that is another test's
      sides_[i] = std::make_unique<Side>(exchange_, GetParam(), state, log_limit, completions);
      sides_[i]->rnr_retry = rnr_retry;
      sides_[i]->sends = i == 0 || b_sends;
    }
    a().connect_to(b().lid(), b().qp_num());
    b().connect_to(a().lid(), a().qp_num());
  }
  Side& a() { return *sides_[0]; }
  Side& b() { return *sides_[1]; }

  // The number `next_number_` to the place of that number.
  void send() {
    const std::uint64_t number = next_number_++;
    std::memcpy(a().at(kNumbers + 8 * (number % 1024)), &number, 8);
    a().post_send(number, IBV_WR_SEND, kNumbers + 8 * (number % 1024), 8);
  }
  void post_receive(std::uint64_t number) { b().post_receive(number, kReceived + 8 * (number % 1024), 8); }
  void expect_received(std::uint64_t number) {
    const ibv_wc wc = b().wait();
    ASSERT_EQ(describe(wc), describe(number, IBV_WC_SUCCESS));
    ASSERT_EQ(b().number_at(kReceived + 8 * (number % 1024)), number);
  }
  void expect_sent(std::uint64_t number) { ASSERT_EQ(describe(a().wait()), describe(number, IBV_WC_SUCCESS)); }

  // Cluster `index` goes back alone, if `other_lives`; the other one hears of it.
  void go_back(unsigned index, const Image& image, bool other_lives = true) {
    sides_[index]->end();
    ++incarnations_[index];
    if (other_lives) {
      Side& other = *sides_[1 - index];
      EXPECT_EQ(other.ops().cluster_gone(index, incarnations_[index] - 1), 0);
    }
    sides_[index]->restart(image, incarnations_);
    if (!other_lives) return;
    Side& other = *sides_[1 - index];
    std::copy(std::begin(incarnations_), std::end(incarnations_), other.member().state.incarnations);
    other.member().tell();
  }

  std::shared_ptr<FakeExchange> exchange_;
  std::unique_ptr<Side> sides_[2];
  std::uint32_t incarnations_[kMaxBackendClusters] = {};
  std::uint64_t next_number_ = 0, received_ = 0;
};

class FewRetries : public GoingBack {
 protected:
  FewRetries() : GoingBack(std::size_t{1} << 30, 1) {}
};

// What the program has a completion of uses up no retries.
TEST_P(FewRetries, TheReceiverGetsWhatItHasForgotten) {
  for (std::uint64_t i = 0; i < 20; ++i) post_receive(i);
  for (int i = 0; i < 20; ++i) send();
  for (std::uint64_t i = 0; i < 20; ++i) expect_received(i), expect_sent(i);
  const Image image = b().checkpoint();
  for (std::uint64_t i = 20; i < 50; ++i) post_receive(i);
  for (int i = 0; i < 30; ++i) send();
  for (std::uint64_t i = 20; i < 50; ++i) expect_received(i), expect_sent(i);
  // The sender may write over what has been sent.
  std::memset(a().at(kNumbers), 'x', 8 * 1024);
  go_back(1, image);
  for (int i = 0; i < 10; ++i) send();
  for (std::uint64_t i = 20; i < 60; ++i) {
    if (i < 49 && i % 3 == 0) ::usleep(2000);  // without a receive for a while
    if (i < 49) post_receive(i);
    if (i == 48)
      for (std::uint64_t more = 49; more < 60; ++more) post_receive(more);
    expect_received(i);
  }
  for (std::uint64_t i = 50; i < 60; ++i) expect_sent(i);
  ibv_wc wc;
  EXPECT_FALSE(a().poll(&wc)) << "a completion came twice";
  EXPECT_FALSE(b().poll(&wc));
  EXPECT_EQ(a().state(), IBV_QPS_RTS);
}

class OnlyReceives : public GoingBack {
 protected:
  OnlyReceives() : GoingBack(std::size_t{1} << 30, 7, false) {}
};

// B's queue pair is in RTR, and neither side has anything new to send.
TEST_P(OnlyReceives, TheReceiverGetsWhatItHasForgotten) {
  for (std::uint64_t i = 0; i < 20; ++i) post_receive(i);
  send();
  expect_received(0), expect_sent(0);
  const Image image = b().checkpoint();
  for (int i = 1; i < 20; ++i) send();
  for (std::uint64_t i = 1; i < 20; ++i) expect_received(i), expect_sent(i);
  go_back(1, image);
  for (std::uint64_t i = 1; i < 20; ++i) expect_received(i);
}

TEST_P(GoingBack, QueuePairsWaitForAsLongAsTheReceiverIsAway) {
  post_receive(0);
  send();
  expect_received(0);
  expect_sent(0);
  const Image image = b().checkpoint();
  b().end();
  ASSERT_EQ(a().ops().cluster_gone(1, 0), 0);
  send();
  ::usleep(1'500'000);  // longer than retries last
  ibv_wc wc;
  EXPECT_FALSE(a().poll(&wc));
  go_back(1, image);
  post_receive(1);
  expect_received(1);
  expect_sent(1);
}

// The word of a recovery comes later than retries last.
TEST_P(GoingBack, QueuePairsWaitBeforeAnybodyKnowsThatTheReceiverGoesBack) {
  post_receive(0);
  send();
  expect_received(0);
  expect_sent(0);
  const Image image = b().checkpoint();
  a().member().process.others_fail_ = true;
  b().end();
  send();
  const auto asked = [&] {
    std::lock_guard<std::mutex> guard(a().member().process.mutex_);
    return a().member().process.lost_clusters_[1];
  };
  ASSERT_TRUE(eventually([&] { return asked() >= 2; }, 20000));
  ibv_wc wc;
  EXPECT_FALSE(a().poll(&wc));
  EXPECT_EQ(a().state(), IBV_QPS_RTS);
  go_back(1, image);
  post_receive(1);
  expect_received(1);
  expect_sent(1);
}

// What is known of the process before says nothing of the one that has come back, which takes its time.
TEST_P(GoingBack, QueuePairsWaitWhileTheReceiverIsBeingRestored) {
  post_receive(0);
  send();
  expect_received(0);
  expect_sent(0);
  const Image image = b().checkpoint();
  Process& process = a().member().process;
  process.others_fail_ = true;
  b().end();
  send();
  ASSERT_TRUE(eventually([&] {
    std::lock_guard<std::mutex> guard(process.mutex_);
    return process.lost_clusters_[1] != 0;
  }));
  ASSERT_EQ(a().ops().cluster_gone(1, 0), 0);
  process.others_fail_ = false;  // its processes live again
  incarnations_[1] = 1;
  std::copy(std::begin(incarnations_), std::end(incarnations_), a().member().state.incarnations);
  a().member().tell();
  b().before_opening = [this] {
    b().member().process.stop_helper();
    ::usleep(1'500'000);  // longer than retries last
    b().member().process.start_helper();
  };
  b().restart(image, incarnations_);
  post_receive(1);
  expect_received(1);
  expect_sent(1);
}

// It fails as anywhere if nobody of the peer's cluster has died.
TEST_P(GoingBack, APeerThatHasEndedIsAnError) {
  post_receive(0);
  send();
  expect_received(0);
  expect_sent(0);
  b().end();
  send();
  EXPECT_EQ(describe(a().wait()), describe(1, IBV_WC_RETRY_EXC_ERR));
  std::lock_guard<std::mutex> guard(a().member().process.mutex_);
  EXPECT_EQ(a().member().process.lost_clusters_[1], 1);
}

TEST_P(GoingBack, LargeWritesComeAgainWithTheBytesOfThen) {
  const auto write = [&](char fill, std::uint64_t id) {
    std::memset(a().at(kBlock), fill, kBlockBytes);
    a().post_send(id, IBV_WR_RDMA_WRITE, kBlock, kBlockBytes, reinterpret_cast<std::uint64_t>(b().at(kBlock)),
                  b().key());
    expect_sent(id);
  };
  write('a', 1);
  const Image image = b().checkpoint();
  write('b', 2);
  write('c', 3);
  std::memset(a().at(kBlock), 'x', kBlockBytes);
  go_back(1, image);
  const auto all_are = [&](char fill) {
    for (std::size_t i = 0; i < kBlockBytes; ++i)
      if (*static_cast<volatile char*>(b().at(kBlock + i)) != fill) return false;
    return true;
  };
  EXPECT_TRUE(eventually([&] { return all_are('c'); }, 20000));
}

// A goes back to a moment at which it did not know what B had run, and B stays.
TEST_P(GoingBack, TheSenderHearsWhatHasRun) {
  for (std::uint64_t i = 0; i < 40; ++i) post_receive(i);
  for (int i = 0; i < 10; ++i) send();
  for (std::uint64_t i = 0; i < 10; ++i) expect_received(i), expect_sent(i);
  for (int i = 0; i < 10; ++i) send();
  const Image image = a().checkpoint();
  for (std::uint64_t i = 10; i < 20; ++i) expect_received(i), expect_sent(i);
  go_back(0, image);
  for (std::uint64_t i = 10; i < 20; ++i) expect_sent(i);
  send();
  expect_received(20);
  expect_sent(20);
  ibv_wc wc;
  EXPECT_FALSE(a().poll(&wc));
  EXPECT_FALSE(b().poll(&wc));
}

// Requests without numbers lie between those that B has run: places in the queue and numbers differ. Two in a row,
// one behind a READ whose answer is to be asked for again, and one at the end.
TEST_P(GoingBack, TheSenderHearsWhatHasRunBetweenBindsOfWindows) {
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
TEST_P(GoingBack, TheSenderGoesOnBehindABindOfAWindow) {
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
class Window : public FewRetries {
 protected:
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

// More than the last 16.
TEST_P(GoingBack, AtomicsRunOnceAndHaveTheResultOfThen) {
  constexpr std::uint64_t kAtomics = 40;
  const auto add = [&](std::uint64_t id) {
    a().post_send(id, IBV_WR_ATOMIC_FETCH_AND_ADD, kResults + 8 * id, 8,
                  reinterpret_cast<std::uint64_t>(b().at(kCounter)), b().key());
  };
  a().member().freeze(true);  // so that none leaves before the checkpoint
  for (std::uint64_t id = 0; id < kAtomics; ++id) add(id);
  const Image image = a().checkpoint();
  for (std::uint64_t id = 0; id < kAtomics; ++id) expect_sent(id);
  ASSERT_EQ(b().number_at(kCounter), kAtomics);
  // B's own additions meanwhile: an atomic that ran again would tell.
  *reinterpret_cast<std::uint64_t*>(b().at(kCounter)) += 1000;
  go_back(0, image);
  for (std::uint64_t id = 0; id < kAtomics; ++id) {
    expect_sent(id);
    EXPECT_EQ(a().number_at(kResults + 8 * id), id);
  }
  EXPECT_EQ(b().number_at(kCounter), 1000 + kAtomics);
  add(kAtomics);
  expect_sent(kAtomics);
  EXPECT_EQ(a().number_at(kResults + 8 * kAtomics), 1000 + kAtomics);
}

// A peer that may ask for a result that was dropped cannot go back to before: its logs count from then.
TEST_P(GoingBack, AResultThatIsDroppedIsTold) {
  const auto add = [&](std::uint64_t id) {
    a().post_send(id, IBV_WR_ATOMIC_FETCH_AND_ADD, kResults, 8, reinterpret_cast<std::uint64_t>(b().at(kCounter)),
                  b().key());
    expect_sent(id);
  };
  add(0);
  const std::uint64_t since = b().ops().logged_since(0);
  for (std::uint64_t id = 1; id < 4096; ++id) add(id);
  EXPECT_EQ(b().ops().logged_since(0), since);
  add(4096);
  EXPECT_GT(b().ops().logged_since(0), since);
}

// What is sent again is not lost by a request behind it that cannot be sent.
TEST_P(GoingBack, ARequestThatFailsWaitsForWhatIsSentAgain) {
  const Image image = b().checkpoint();
  for (std::uint64_t i = 0; i < 10; ++i) post_receive(i);
  for (int i = 0; i < 10; ++i) send();
  for (std::uint64_t i = 0; i < 10; ++i) expect_received(i), expect_sent(i);
  go_back(1, image);
  a().post_send(10, IBV_WR_SEND, kNumbers, 8, 0, 0, 0xbad00);
  ::usleep(20000);  // in which it could fail
  for (std::uint64_t i = 0; i < 10; ++i) post_receive(i);
  for (std::uint64_t i = 0; i < 10; ++i) expect_received(i);
  EXPECT_EQ(describe(a().wait()), describe(10, IBV_WC_LOC_PROT_ERR));
}

TEST_P(GoingBack, ReadsAreAskedAgain) {
  std::memset(b().at(kBlock), 'r', kBlockBytes);
  a().member().freeze(true);
  a().post_send(1, IBV_WR_RDMA_READ, kBlock, kBlockBytes, reinterpret_cast<std::uint64_t>(b().at(kBlock)), b().key());
  const Image image = a().checkpoint();
  expect_sent(1);
  std::memset(b().at(kBlock), 's', kBlockBytes);
  go_back(0, image);
  expect_sent(1);
  EXPECT_EQ(*a().at(kBlock), 's');
  EXPECT_EQ(*a().at(kBlock + kBlockBytes - 1), 's');
}

// Each from a checkpoint of its own: the receiver's is the older one, and the sender's log has what lies between.
TEST_P(GoingBack, TheWholeJobFromALine) {
  for (std::uint64_t i = 0; i < 10; ++i) post_receive(i);
  for (int i = 0; i < 10; ++i) send();
  for (std::uint64_t i = 0; i < 10; ++i) expect_received(i), expect_sent(i);
  const Image older = b().checkpoint();
  for (std::uint64_t i = 10; i < 30; ++i) post_receive(i);
  for (int i = 0; i < 10; ++i) send();
  for (std::uint64_t i = 10; i < 20; ++i) expect_received(i), expect_sent(i);
  for (int i = 0; i < 5; ++i) send();  // in A's image without completions
  const Image younger = a().checkpoint();
  for (std::uint64_t i = 20; i < 25; ++i) expect_received(i), expect_sent(i);
  a().end();
  go_back(1, older, false);
  next_number_ = 25;
  go_back(0, younger, false);
  std::copy(std::begin(incarnations_), std::end(incarnations_), b().member().state.incarnations);
  b().member().tell();
  for (int i = 0; i < 5; ++i) send();
  for (std::uint64_t i = 10; i < 30; ++i) {
    post_receive(i);
    expect_received(i);
  }
  for (std::uint64_t i = 20; i < 30; ++i) expect_sent(i);
  ibv_wc wc;
  EXPECT_FALSE(a().poll(&wc));
  EXPECT_FALSE(b().poll(&wc));
}

// Both ways, at moments of chance, again and again: one side's messages at a time, as the rule has it.
TEST_P(GoingBack, AtAnyMoment) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::uint64_t posted = 0, received = 0, sent = 0;
  const auto step = [&](std::uint64_t until) {
    while (received < until) {
      while (next_number_ < until && next_number_ - sent < 64) send();
      while (posted < until && posted - received < 16) post_receive(posted++);
      ibv_wc wc;
      while (a().poll(&wc)) ASSERT_EQ(describe(wc), describe(sent++, IBV_WC_SUCCESS));
      while (b().poll(&wc)) {
        ASSERT_EQ(describe(wc), describe(received, IBV_WC_SUCCESS));
        ASSERT_EQ(b().number_at(kReceived + 8 * (received % 1024)), received);
        ++received;
      }
    }
  };
  for (int round = 0; round < 12; ++round) {
    step(received + random() % 100);
    const Image image = b().checkpoint();
    // The image has its receives; those completions that nobody has polled are in it, too.
    const std::uint64_t at_received = received, at_posted = posted;
    step(received + random() % 200);
    for (std::uint64_t i = random() % 30; i > 0 && next_number_ - sent < 64; --i) send();
    if (random() % 2 == 0) ::usleep(random() % 2000);
    go_back(1, image);
    received = at_received;
    posted = at_posted;
  }
  step(next_number_ + 100);
  while (sent < next_number_) expect_sent(sent), ++sent;
  EXPECT_EQ(a().state(), IBV_QPS_RTS);
  EXPECT_EQ(b().state(), IBV_QPS_RTS);
}

// B has run what A's checkpoint does not know to have posted: no line has both.
TEST_P(GoingBack, CheckpointsThatContradictEachOtherAreAnError) {
  const Image image = a().checkpoint();
  post_receive(0);
  send();
  expect_received(0);
  expect_sent(0);
  go_back(0, image);
  EXPECT_TRUE(eventually([&] { return a().state() == IBV_QPS_ERR; }));
  EXPECT_NE(a().member().process.log().find("do not belong together"), std::string::npos);
  EXPECT_EQ(b().state(), IBV_QPS_RTS);
}

// A second restart from an image of a process that has gone back itself; and a message that was replayed is in it.
TEST_P(GoingBack, AgainAndAgain) {
  Image image = b().checkpoint();
  for (std::uint64_t round = 0; round < 4; ++round) {
    send();
    go_back(1, image);
    if (round % 2 == 1) continue;
    for (; received_ < next_number_; ++received_) {
      post_receive(received_);
      expect_received(received_);
    }
    image = b().checkpoint();
  }
  for (; received_ < next_number_; ++received_) {
    post_receive(received_);
    expect_received(received_);
  }
  for (std::uint64_t i = 0; i < next_number_; ++i) expect_sent(i);
}

// The word on the log takes the acknowledgement with it that was owed. It comes right behind the execution, many
// times.
TEST_P(GoingBack, AnAcknowledgementBesideAWordOnTheLogIsHeard) {
  b().checkpoint();
  for (int round = 0; round < 30 && !HasFailure(); ++round, ++received_) {
    post_receive(received_);
    send();
    expect_received(received_);
    b().ops().clc_collected(b().member().state.sn);
    expect_sent(received_);
  }
}

// A recovery may go to before a CLC of the other cluster unless something was trimmed for it.
TEST_P(GoingBack, ALogThatIsTrimmedSaysForWhichCheckpoint) {
  b().checkpoint();
  b().ops().clc_collected(b().member().state.sn);
  post_receive(0), send(), expect_received(0), expect_sent(0);
  EXPECT_EQ(a().member().facts().trimmed[1], 0u) << "there was nothing to trim";
  b().checkpoint();
  const std::uint32_t sn = b().member().state.sn;
  b().ops().clc_collected(sn);
  EXPECT_TRUE(eventually([&] { return a().member().facts().trimmed[1] == sn; }));
  EXPECT_EQ(b().member().facts().trimmed[0], 0u);
}

// No more than a few are under way at a time, so that a short queue is enough for their completions.
class ShortQueue : public GoingBack {
 protected:
  ShortQueue() : GoingBack(std::size_t{1} << 30, 7, true, 16) {}
};

TEST_P(ShortQueue, HasRoomForAllThatComesAgain) {
  for (std::uint64_t i = 0; i < 60; ++i) post_receive(i);
  const Image image = b().checkpoint();
  for (std::uint64_t i = 0; i < 60; ++i) send(), expect_received(i), expect_sent(i);
  go_back(1, image);
  ASSERT_TRUE(
      eventually([&] { return a().ops().gate_earliest(1) == kGateNothing || b().state() == IBV_QPS_ERR; }, 20000));
  EXPECT_EQ(b().state(), IBV_QPS_RTS);
  for (std::uint64_t i = 0; i < 60; ++i) expect_received(i);
  post_receive(60);
  send(), expect_received(60), expect_sent(60);
}

// What the program itself overruns later is an error, as in any process.
TEST_P(ShortQueue, IsOverrunOnceNothingComesAgain) {
  for (std::uint64_t i = 0; i < 20; ++i) post_receive(i);
  const Image image = b().checkpoint();
  for (std::uint64_t i = 0; i < 20; ++i) send(), expect_received(i), expect_sent(i);
  go_back(1, image);
  for (std::uint64_t i = 0; i < 20; ++i) expect_received(i);
  std::uint64_t next = 20;
  for (; next < 120; ++next) post_receive(next), send(), expect_received(next), expect_sent(next);
  EXPECT_EQ(b().member().process.log().find("is overrun"), std::string::npos);
  ibv_wc wc;
  for (int i = 0; i < 100 && b().state() == IBV_QPS_RTS; ++i, ++next) {  // the program of B looks at none of them
    post_receive(next), send();
    ASSERT_TRUE(eventually([&] { return a().poll(&wc) || b().state() == IBV_QPS_ERR; }));
  }
  EXPECT_EQ(b().state(), IBV_QPS_ERR);
  EXPECT_NE(b().member().process.log().find("is overrun"), std::string::npos);
}

// An overrun would end the queue pair, with all that it has still to send again.
TEST_P(ShortQueue, HasRoomWhileSomethingIsSentAgain) {
  const Image image = b().checkpoint();
  for (std::uint64_t i = 0; i < 5; ++i) post_receive(i), send(), expect_received(i), expect_sent(i);
  for (std::uint64_t i = 0; i < 20; ++i) a().post_receive(100 + i, kReceived, 8);
  go_back(1, image);
  for (std::uint64_t i = 0; i < 20; ++i) {
    b().post_send(i, IBV_WR_SEND, kNumbers, 8);
    ASSERT_EQ(describe(b().wait()), describe(i, IBV_WC_SUCCESS));
  }
  for (std::uint64_t i = 0; i < 5; ++i) post_receive(i), expect_received(i);
  EXPECT_EQ(a().state(), IBV_QPS_RTS);
  for (std::uint64_t i = 0; i < 20; ++i) ASSERT_EQ(describe(a().wait()), describe(100 + i, IBV_WC_SUCCESS));
}

class FullLog : public GoingBack {
 protected:
  FullLog() : GoingBack(3 * (sizeof(BorderLogEntry) + kBlockBytes), 7) {}
  void write(std::uint64_t id) {
    a().post_send(id, IBV_WR_RDMA_WRITE, kBlock, kBlockBytes, reinterpret_cast<std::uint64_t>(b().at(kBlock)),
                  b().key());
  }
};

// What the peer has run when the log is begun anew, nobody needs after the peer's next CLC.
TEST_P(FullLog, IsBegunAnewWhereNobodyTrims) {
  for (std::uint64_t id = 0; id < 5; ++id) write(id);
  for (std::uint64_t id = 0; id < 5; ++id) expect_sent(id);
  EXPECT_NE(a().member().process.log().find("is begun anew"), std::string::npos);
  EXPECT_EQ(a().checkpoint().border.unlogged, 0u);
  const std::uint64_t since = a().ops().logged_since(1);
  EXPECT_GT(since, 0u);
  EXPECT_LT(since, kGateNothing);
  const Image image = b().checkpoint();
  std::memset(a().at(kBlock), 'n', kBlockBytes);
  write(5);
  expect_sent(5);
  EXPECT_EQ(a().ops().logged_since(1), since);
  go_back(1, image);
  std::memset(a().at(kBlock), 'x', kBlockBytes);  // the bytes of then come, or none
  EXPECT_TRUE(eventually([&] { return *b().at(kBlock + kBlockBytes - 1) == 'n'; }));
  EXPECT_EQ(a().state(), IBV_QPS_RTS);
}

// Five small requests leave, which B holds back for as long as it is told to. The log has room for three.
class HeldBack : public GoingBack {
 protected:
  HeldBack() : GoingBack(3 * (sizeof(BorderLogEntry) + 8), 7) {}
  void hold(bool holds) {
    b().member().state.depends[0] = holds ? 0 : 1000;
    b().member().tell();
  }
  void send_all() {
    hold(true);
    for (int i = 0; i < 5; ++i) send();
    EXPECT_TRUE(eventually([&] { return a().ops().logged_since(1) == kGateNothing; }));
  }
  void take_all() {
    hold(false);
    for (std::uint64_t i = 0; i < 5; ++i) {
      post_receive(i);
      expect_received(i);
      expect_sent(i);
    }
  }
};

TEST_P(HeldBack, TheLogIsNotWholeBeforeThePeerHasRunWhatWasDropped) {
  send_all();
  EXPECT_EQ(a().ops().logged_since(1), kGateNothing);
  take_all();
  EXPECT_LT(a().ops().logged_since(1), kGateNothing);
}

// In the image some requests are in the log, and those before are not.
TEST_P(HeldBack, ARestartGoesOnFromWhereTheLogWasBegunAnew) {
  send_all();
  Image sender = a().checkpoint(), receiver = b().checkpoint();
  EXPECT_EQ(sender.border.unlogged, 1u);
  sender.log.limit = 1 << 20;
  for (int round = 0; round < 2; ++round) {
    a().end();
    go_back(1, receiver, false);
    go_back(0, sender, false);
    std::copy(std::begin(incarnations_), std::end(incarnations_), b().member().state.incarnations);
    hold(true);
    EXPECT_TRUE(eventually([&] { return b().ops().held_stamps(nullptr, 0) > 0; }));  // they have left again
    sender = a().checkpoint();
  }
  take_all();
  EXPECT_LT(a().ops().logged_since(1), kGateNothing);
}

// Never wrong: what cannot be sent again is an error.
TEST_P(FullLog, ALogThatWasGivenUpIsAnErrorWhenItIsNeeded) {
  const Image image = b().checkpoint();
  for (std::uint64_t id = 0; id < 5; ++id) write(id);
  for (std::uint64_t id = 0; id < 5; ++id) expect_sent(id);
  go_back(1, image);
  EXPECT_TRUE(eventually([&] { return a().state() == IBV_QPS_ERR; }));
  EXPECT_NE(a().member().process.log().find("do not belong together"), std::string::npos);
}

// The log is full to the last request, and another one follows while those before it are still refused. It waits.
TEST_P(FullLog, IsNotGivenUpBeforeAllIsSentAgain) {
  const auto send_block = [&](std::uint64_t id) {
    std::memset(a().at(kBlock), static_cast<int>('a' + id), kBlockBytes);
    a().post_send(id, IBV_WR_SEND, kBlock, kBlockBytes);
  };
  const auto take_block = [&](std::uint64_t id) {
    b().post_receive(id, kBlock, kBlockBytes);
    EXPECT_EQ(describe(b().wait()), describe(id, IBV_WC_SUCCESS));
    EXPECT_EQ(*b().at(kBlock + kBlockBytes - 1), static_cast<char>('a' + id));
  };
  const Image image = b().checkpoint();
  for (std::uint64_t id = 0; id < 3; ++id) {
    send_block(id);
    take_block(id);
    expect_sent(id);
  }
  go_back(1, image);
  send_block(3);
  ::usleep(200'000);  // in which all that is sent again is refused
  EXPECT_EQ(a().member().process.log().find("is begun anew"), std::string::npos);
  for (std::uint64_t id = 0; id < 4; ++id) take_block(id);
  expect_sent(3);
}

TEST_P(GoingBack, WhatMakesNoSenseIsRefused) {
  const Image image = b().checkpoint();
  const BackendOps& ops = b().ops();
  EXPECT_EQ(ops.restore_identity(image.identity.data(), image.identity.size()), EBUSY);
  EXPECT_EQ(ops.restore_identity(image.identity.data(), 3), EINVAL);
  EXPECT_EQ(ops.want_number(kNumberOfQueuePair, image.qp_num), EINVAL);
  Member newcomer(exchange_, GetParam(), state_of(0, 1));
  std::string other = image.identity;
  // Another cluster's process has that LID.
  Process thief(exchange_, ProcessOptions{.transport = GetParam()});
  ClusterState state = state_of(0, 1);
  ASSERT_EQ(thief.ops().set_cluster(&state), 0);
  ASSERT_EQ(thief.ops().restore_identity(other.data(), other.size()), 0);
  int count = 0;
  ibv_device** list = thief.ops().get_device_list(&count);
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(thief.ops().open_device(list[0]), nullptr);
  EXPECT_EQ(thief.last_errno(), EADDRINUSE);
  EXPECT_EQ(thief.ops().want_number(kNumberOfQueuePair, 0), EINVAL);
  EXPECT_EQ(thief.ops().want_number(kNumberOfQueuePair, 0xffffff), EINVAL);
}

// What B has logged for A, if A goes back with it; else what B sent behind its image is in no log.
TEST_P(GoingBack, TheLogIsAsWholeAsItWasForWhoGoesBackToo) {
  const Image image = b().checkpoint();
  const std::uint64_t since = b().ops().logged_since(0);
  ASSERT_NE(since, 0u);
  b().end();
  const auto logged_since = [&](bool too, std::size_t bytes, std::uint32_t version) {
    std::string identity = image.identity;
    std::memcpy(identity.data() + 4, &version, sizeof(version));
    Process process(exchange_, ProcessOptions{.transport = GetParam()});
    ClusterState state = state_of(1, 1);
    state.incarnations[0] = state.incarnations[1] = 2;
    EXPECT_EQ(process.ops().set_cluster(&state), 0);
    EXPECT_EQ(too ? process.ops().cluster_gone(0, 1) : 0, 0);
    EXPECT_EQ(process.ops().restore_identity(identity.data(), bytes), 0);
    return process.ops().logged_since(0);
  };
  const std::size_t all = image.identity.size(), first = all - 8 * kMaxBackendClusters;
  EXPECT_EQ(logged_since(true, all, 2), since);
  EXPECT_GT(logged_since(false, all, 2), since);
  EXPECT_GT(logged_since(true, first, 1), since) << "an image that does not tell";
}

// B comes back while it sends again to A, and what it sends may be in no log: nobody goes back to that time. When A
// goes back later, B sends again from its log, and A may go back to the same CLC another time.
TEST_P(GoingBack, TheLogOfWhoCameBackIsWholeWhenTheOtherGoesBackLater) {
  const Image image = b().checkpoint();
  b().end();
  Process process(exchange_, ProcessOptions{.transport = GetParam()});
  ClusterState state = state_of(1, 1);
  state.incarnations[1] = 2;
  const GateState unknown{0, 0, 0, 0}, some{100, 0, 0, 0}, none{kGateNothing, 0, 0, 0};
  const auto since = [&] { return process.ops().logged_since(0); };
  EXPECT_EQ(process.ops().set_cluster(&state), 0);
  EXPECT_EQ(process.ops().set_gate(0, &unknown), 0);
  EXPECT_EQ(process.ops().restore_identity(image.identity.data(), image.identity.size()), 0);
  const std::uint64_t came_back = since();
  EXPECT_EQ(process.ops().set_gate(0, &some), 0);
  EXPECT_EQ(process.ops().set_gate(0, &none), 0);
  const std::uint64_t whole = since();
  EXPECT_GT(whole, came_back);
  EXPECT_EQ(process.ops().set_gate(0, &unknown), 0);
  EXPECT_EQ(process.ops().cluster_gone(0, 1), 0);
  EXPECT_EQ(process.ops().set_gate(0, &some), 0);
  EXPECT_EQ(process.ops().set_gate(0, &none), 0);
  EXPECT_EQ(since(), whole);
}

INSTANTIATE_TEST_SUITE_P(Transports, GoingBack, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, FewRetries, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, Window, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, OnlyReceives, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, ShortQueue, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, FullLog, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, HeldBack, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });

}  // namespace
}  // namespace shadowib::ib2tcp::testing
