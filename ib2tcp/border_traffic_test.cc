// Traffic over a border that is held, frozen and broken meanwhile: everything arrives, once, and whole.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "ib2tcp/testing/member.h"

namespace shadowib::ib2tcp::testing {
namespace {

constexpr std::uint32_t kSmall = 1 << 20, kLarge = 64 << 20;

// The thread sanitizer, which takes a microsecond for each word, does not look on.
__attribute__((no_sanitize("thread"))) void fill(char* to, std::size_t bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = (seed + i) * 0x9e3779b97f4a7c15;
    std::memcpy(to + i, &word, 8);
  }
}
// How many bytes from the first on are `value`.
__attribute__((no_sanitize("thread"))) std::size_t count_of(const char* from, std::size_t bytes, char value) {
  std::size_t i = 0;
  while (i < bytes && from[i] == value) ++i;
  return i;
}
__attribute__((no_sanitize("thread"))) void set_all(char* to, std::size_t bytes, char value) {
  std::memset(to, value, bytes);
}
__attribute__((no_sanitize("thread"))) char peek_at(const volatile char* from) { return *from; }

class Traffic : public ::testing::TestWithParam<std::string> {
 protected:
  Traffic() : exchange_(std::make_shared<FakeExchange>()) {
    for (unsigned i : {0, 1}) {
      ClusterState state = state_of(i, 1);
      state.depends[1 - i] = 1;
      members_[i] = std::make_unique<Member>(exchange_, GetParam(), state);
    }
  }
  Member& a() { return *members_[0]; }
  Member& b() { return *members_[1]; }

  std::shared_ptr<FakeExchange> exchange_;
  std::unique_ptr<Member> members_[2];
};

struct Large {
  Endpoint x, y;
  std::uint32_t bytes;
  Large(Traffic&, Member& a, Member& b, std::uint32_t n)
      : x(*a.device, {}, 2 * n), y(*b.device, {}, 2 * n), bytes(n) {
    connect(x, y);
    fill(x.at(0), bytes, 1);
    fill(y.at(0), bytes, 2);
  }
  // From the first half of one to the second half of the other, both ways.
  void begin(ibv_wr_opcode opcode) {
    for (auto [from, to] : {std::pair{&x, &y}, std::pair{&y, &x}}) {
      const bool read = opcode == IBV_WR_RDMA_READ;
      if (opcode == IBV_WR_SEND) {
        ASSERT_EQ(to->post_recv(2, {to->sge(bytes, bytes)}), 0);
        ASSERT_EQ(from->post_send(1, {from->sge(0, bytes)}), 0);
      } else {
        ASSERT_EQ(from->post_rdma(1, opcode, {from->sge(read ? bytes : 0, bytes)}, to->address(read ? 0 : bytes),
                                  to->mr->rkey),
                  0);
      }
    }
  }
  void expect_done(ibv_wr_opcode opcode) {
    for (Endpoint* side : {&x, &y})
      for (int i = opcode == IBV_WR_SEND ? 2 : 1; i > 0; --i) {
        const ibv_wc wc = side->wait();
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status) << " of " << wc.wr_id;
      }
    EXPECT_EQ(fingerprint(x.at(bytes), bytes), fingerprint(y.at(0), bytes));
    EXPECT_EQ(fingerprint(y.at(bytes), bytes), fingerprint(x.at(0), bytes));
    set_all(x.at(bytes), bytes, 0);
    set_all(y.at(bytes), bytes, 0);
  }
};

constexpr ibv_wr_opcode kOpcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ};

TEST_P(Traffic, LargeMessagesAreHeldAndDelivered) {
  for (std::uint32_t bytes : {kSmall, kLarge}) {
    Large large(*this, a(), b(), bytes);
    for (ibv_wr_opcode opcode : kOpcodes) {
      SCOPED_TRACE(std::to_string(bytes) + " bytes, opcode " + std::to_string(opcode));
      const std::uint32_t sn = a().state.sn + 1;
      a().commit(sn, 1, sn - 1);
      b().commit(sn, 0, sn - 1);
      large.begin(opcode);
      // Of two READs the request of one may be behind the held answer to the other.
      ASSERT_TRUE(
          eventually([&] { return a().held().size() + b().held().size() >= (opcode == IBV_WR_RDMA_READ ? 1 : 2); }));
      a().commit(sn, 1, sn);
      ::usleep(20'000);
      b().commit(sn, 0, sn);
      large.expect_done(opcode);
    }
  }
}

// Neither side's program polls while it is frozen, as in a checkpoint; then only the helper does, or the program.
TEST_P(Traffic, LargeMessagesGoOnAfterAFreeze) {
  std::mt19937 random(20);
  for (std::uint32_t bytes : {kSmall, kLarge}) {
    Large large(*this, a(), b(), bytes);
    for (ibv_wr_opcode opcode : kOpcodes)
      for (int freezes : {1, 5}) {
        SCOPED_TRACE(std::to_string(bytes) + " bytes, opcode " + std::to_string(opcode));
        large.begin(opcode);
        for (int i = 0; i < freezes; ++i) {
          Member& frozen = random() % 2 == 0 ? a() : b();
          ::usleep(random() % 3000);
          frozen.freeze(true);
          const bool commits = random() % 2 == 0;
          ::usleep(random() % 3000);
          if (commits) frozen.commit(frozen.state.sn + 1, 1 - frozen.state.index, frozen.state.sn + 100);
          frozen.freeze(false);
        }
        for (Member* member : {&a(), &b()}) {
          member->state.depends[1 - member->state.index] = 1000;
          member->tell();
        }
        large.expect_done(opcode);
      }
  }
}

TEST_P(Traffic, OnlyTheHelperIsNeededAfterAFreeze) {
  Large large(*this, a(), b(), kLarge);
  large.begin(IBV_WR_RDMA_WRITE);
  ASSERT_TRUE(eventually([&] { return peek_at(large.y.at(kLarge)) != 0; }));
  a().freeze(true);
  b().freeze(true);
  ::usleep(100'000);
  b().freeze(false);
  a().freeze(false);
  EXPECT_TRUE(eventually([&] {
    return std::memcmp(large.y.at(2 * std::size_t{kLarge} - 64), large.x.at(kLarge - 64), 64) == 0 &&
           std::memcmp(large.x.at(2 * std::size_t{kLarge} - 64), large.y.at(kLarge - 64), 64) == 0;
  }));
  large.expect_done(IBV_WR_RDMA_WRITE);
}

// A frame has the number of its making, so its bytes are of then, whatever the program writes after the checkpoint.
TEST_P(Traffic, WhatIsLeftOfAnAnswerIsOfTheTimeBeforeTheFreeze) {
  Large large(*this, a(), b(), kLarge);
  Endpoint &x = large.x, &y = large.y;
  set_all(y.at(0), kLarge, 'o');
  a().process.stop_helper();  // so that the answer cannot all leave
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_READ, {x.sge(kLarge, kLarge)}, y.address(0), y.mr->rkey), 0);
  ASSERT_TRUE(eventually([&] { return x.poll() == 0 && peek_at(x.at(kLarge)) == 'o'; }));
  b().freeze(true);
  a().freeze(true);
  const std::size_t there = count_of(x.at(kLarge), kLarge, 'o');
  ASSERT_LT(there, kLarge);
  set_all(y.at(0), kLarge, 'n');
  b().commit(2, 0, 1);
  b().freeze(false);
  a().freeze(false);
  a().process.start_helper();
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_EQ(count_of(x.at(kLarge), kLarge, 'o'), kLarge) << there << " bytes were there before";
}

TEST_P(Traffic, NothingMovesWhileFrozen) {
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  ASSERT_EQ(y.post_recv(2, {y.sge(0, 100)}), 0);
  b().freeze(true);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 100)}), 0);
  ::usleep(1'200'000);  // longer than retries last
  EXPECT_EQ(y.poll(), 0);
  const long turns = b().figure("helper_turns");
  ::usleep(300'000);
  EXPECT_LT(b().figure("helper_turns") - turns, 40);
  // Posted meanwhile: it leaves afterwards.
  ASSERT_EQ(y.post_send(3, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_recv(3, {x.sge(0, 100)}), 0);
  ::usleep(1'200'000);
  b().freeze(false);
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_WC(y.wait(), 3, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 3, IBV_WC_SUCCESS);
}

// Both begin while one is frozen, before they are connected.
TEST_P(Traffic, AConnectionIsMadeAfterTheFreeze) {
  b().freeze(true);
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_recv(2, {x.sge(0, 100)}), 0);
  ASSERT_EQ(y.post_send(2, {y.sge(0, 100)}), 0);
  ::usleep(1'200'000);
  EXPECT_EQ(x.poll(), 0);
  EXPECT_EQ(y.poll(), 0);
  b().freeze(false);
  EXPECT_EQ(x.wait().status, IBV_WC_SUCCESS);
  EXPECT_EQ(x.wait().status, IBV_WC_SUCCESS);
  EXPECT_EQ(y.wait().status, IBV_WC_SUCCESS);
  EXPECT_EQ(y.wait().status, IBV_WC_SUCCESS);
}

// Ends the connections of a process as a network does that fails; it listens as before.
void break_connections(Process& process) {
  std::lock_guard<std::mutex> guard(process.mutex_);
  for (int fd : process.descriptors_) {
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens == 0) ::shutdown(fd, SHUT_RDWR);
  }
}

// Numbered messages, additions, reads and large writes, over connections that break all the time.
TEST_P(Traffic, ABrokenConnectionLosesAndDoublesNothing) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  QpOptions options;
  options.send_wr = 16;
  Endpoint x(*a().device, options, 8 << 20), y(*b().device, options, 8 << 20);
  connect(x, y);
  constexpr std::uint64_t kRounds = 300;
  constexpr std::size_t kCounter = 0, kNumbers = 4096, kBlock = 2 << 20;
  std::memset(y.at(kCounter), 0, 8);
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(y.post_recv(i, {y.sge(kNumbers + 8 * i, 8)}), 0);
  std::uint64_t received = 0, breaks = 0;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    std::memcpy(x.at(kNumbers + 8 * (round % 8)), &round, 8);
    ASSERT_EQ(x.post_send(1, {x.sge(kNumbers + 8 * (round % 8), 8)}), 0);
    ASSERT_EQ(x.post_atomic(2, IBV_WR_ATOMIC_FETCH_AND_ADD, {x.sge(64, 8)}, y.address(kCounter), y.mr->rkey, 1, 0),
              0);
    ASSERT_EQ(x.post_rdma(3, IBV_WR_RDMA_READ, {x.sge(kBlock, kBlock)}, y.address(kBlock), y.mr->rkey), 0);
    ASSERT_EQ(x.post_rdma(4, IBV_WR_RDMA_WRITE, {x.sge(2 * kBlock, kBlock)}, y.address(2 * kBlock), y.mr->rkey), 0);
    const std::uint64_t break_before = round % 5 == 4 ? 1 + random() % 4 : 0;
    for (std::uint64_t id = 1; id <= 4; ++id) {
      if (id == break_before) {
        break_connections(random() % 2 == 0 ? a().process : b().process);
        ++breaks;
      }
      const ibv_wc wc = x.wait();
      ASSERT_EQ(describe(wc), describe(id, IBV_WC_SUCCESS)) << "round " << round;
    }
    std::uint64_t before = 0;
    std::memcpy(&before, x.at(64), 8);
    ASSERT_EQ(before, round);
    const ibv_wc wc = y.wait();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    std::uint64_t number = 0;
    std::memcpy(&number, y.at(kNumbers + 8 * wc.wr_id), 8);
    ASSERT_EQ(number, received++);
    ASSERT_EQ(y.post_recv(wc.wr_id, {y.sge(kNumbers + 8 * wc.wr_id, 8)}), 0);
  }
  EXPECT_EQ(y.poll(), 0);
  EXPECT_GE(a().figure("links_lost") + b().figure("links_lost"), static_cast<long>(breaks));
}

// Takes what has arrived in sockets and nobody has read, and ends the connections: as a network loses it.
void lose_what_arrived(Process& process) {
  {
    std::lock_guard<std::mutex> guard(process.mutex_);
    char bytes[65536];
    for (int fd : process.descriptors_) {
      int listens = 0;
      socklen_t length = sizeof(listens);
      if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens != 0) continue;
      while (::recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) continue;
    }
  }
  break_connections(process);
}

// By TCP alone: what is in a ring is not lost with the connection.
class LostAnswer : public Traffic {
 protected:
  // A's helper rests, and its program does not poll: so nobody reads the answers.
  void connect_and_rest(Endpoint& x, Endpoint& y) {
    connect(x, y);
    ASSERT_EQ(y.post_recv(1, {y.sge(0, 8)}), 0);
    ASSERT_EQ(x.post_send(1, {x.sge(0, 8)}), 0);
    EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
    a().process.stop_helper();
  }
  void lose_and_go_on() {
    lose_what_arrived(a().process);
    a().process.start_helper();
  }
};

TEST_P(LostAnswer, ARefusalIsToldAgain) {
  Endpoint x(*a().device), y(*b().device);
  connect_and_rest(x, y);
  const long sent = b().figure("frames_sent");
  ASSERT_EQ(x.post_rdma(2, IBV_WR_RDMA_WRITE, {x.sge(0, 8)}, y.address(0), y.mr->rkey + 1), 0);
  ASSERT_TRUE(eventually([&] { return y.state() == IBV_QPS_ERR && b().figure("frames_sent") > sent; }));
  ::usleep(50'000);  // so that the frame is there
  lose_and_go_on();
  EXPECT_WC(x.wait(), 2, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(LostAnswer, AReadThatIsRefusedTheSecondTimeEnds) {
  Endpoint x(*a().device), y(*b().device);
  connect_and_rest(x, y);
  ibv_mr* region = y.ops.reg_mr(y.pd, y.at(4096), 4096, y.address(4096), kAllAccess);
  ASSERT_NE(region, nullptr);
  const long sent = b().figure("frames_sent");
  ASSERT_EQ(x.post_rdma(2, IBV_WR_RDMA_READ, {x.sge(0, 64)}, y.address(4096), region->rkey), 0);
  ASSERT_TRUE(eventually([&] { return b().figure("frames_sent") > sent; }));
  ::usleep(50'000);
  ASSERT_EQ(y.ops.dereg_mr(region), 0);
  lose_and_go_on();
  EXPECT_WC(x.wait(), 2, IBV_WC_REM_ACCESS_ERR);
}

// What lies behind it has run, and its memory may be gone.
TEST_P(LostAnswer, OfRequestsThatHaveRunOnlyReadsAreAskedAgain) {
  Endpoint x(*a().device), y(*b().device);
  connect_and_rest(x, y);
  constexpr int kSends = 30;
  std::memset(y.at(4096), 'r', 64);
  ASSERT_EQ(x.post_rdma(2, IBV_WR_RDMA_READ, {x.sge(0, 64)}, y.address(4096), y.mr->rkey), 0);
  for (int i = 0; i < kSends; ++i) {
    ASSERT_EQ(y.post_recv(3, {y.sge(0, 64)}), 0);
    ASSERT_EQ(x.post_send(3, {x.sge(64, 64)}), 0);
    EXPECT_WC(y.wait(), 3, IBV_WC_SUCCESS);
  }
  ::usleep(50'000);
  const long received = b().figure("frames_received");
  lose_and_go_on();
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
  for (int i = 0; i < kSends; ++i) EXPECT_WC(x.wait(), 3, IBV_WC_SUCCESS);
  EXPECT_EQ(*x.at(63), 'r');
  EXPECT_EQ(y.poll(), 0);
  ASSERT_EQ(y.post_recv(4, {y.sge(0, 64)}), 0);
  ASSERT_EQ(x.post_send(4, {x.sge(64, 64)}), 0);
  EXPECT_WC(y.wait(), 4, IBV_WC_SUCCESS);
  // HELLO, RESUMEs, the READ, the last SEND and acknowledgements; no SEND again.
  EXPECT_LE(b().figure("frames_received") - received, 12);
}

TEST_P(Traffic, AMessageIsDeliveredOnceThoughItsConnectionBreaksWhileItIsHeld) {
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  a().commit(2, 1, 1);
  for (std::uint64_t i : {1, 2}) ASSERT_EQ(y.post_recv(i, {y.sge(0, 1 << 20)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 1 << 20)}), 0);
  ASSERT_TRUE(eventually([&] { return b().held().size() == 1; }));
  break_connections(a().process);
  ASSERT_TRUE(eventually([&] { return a().figure("links_lost") == 1; }));
  ::usleep(1'200'000);  // longer than retries last
  EXPECT_EQ(x.poll(), 0);
  const long turns = b().figure("helper_turns");
  ::usleep(300'000);
  EXPECT_LT(b().figure("helper_turns") - turns, 200);
  b().commit(2, 0, 2);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 100)}), 0);
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
}

TEST_P(Traffic, ThePeersEndIsAnErrorHereToo) {
  Endpoint x(*a().device), y(*b().device);
  y.abandoned = true;
  connect(x, y);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  b().process.kill();
  ASSERT_EQ(x.post_send(2, {x.sge(0, 100)}), 0);
  EXPECT_WC(x.wait(), 2, IBV_WC_RETRY_EXC_ERR);
}

INSTANTIATE_TEST_SUITE_P(Transports, LostAnswer, ::testing::Values("tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, Traffic, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });

}  // namespace
}  // namespace shadowib::ib2tcp::testing
