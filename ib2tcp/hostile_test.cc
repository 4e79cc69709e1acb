// Strangers, liars and the dead: what a peer that is not one of ours gets, what a broken member can do, and what
// happens to the others.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <random>
#include <utility>

#include "ib2tcp/testing/endpoint.h"
#include "ib2tcp/testing/process.h"
#include "ib2tcp/tests/liar.h"
#include "ib2tcp/wire.h"

namespace shadowib::ib2tcp::testing {
namespace {

class Hostile : public ::testing::Test {
 protected:
  Hostile() : exchange_(std::make_shared<FakeExchange>()) {
    ProcessOptions options;
    options.transport = "tcp";
    first_ = std::make_unique<Process>(exchange_, options);
    second_ = std::make_unique<Process>(exchange_, options);
    a_ = std::make_unique<Device>(*first_);
    b_ = std::make_unique<Device>(*second_);
  }
  void expect_works(Endpoint& x, Endpoint& y) {
    ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
    ASSERT_EQ(x.post_send(2, {x.sge(0, 100)}), 0);
    EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
  }
  std::shared_ptr<FakeExchange> exchange_;
  std::unique_ptr<Process> first_, second_;
  std::unique_ptr<Device> a_, b_;
};

TEST_F(Hostile, StrangersGetNothing) {
  Endpoint x(*a_), y(*b_);
  connect(x, y);
  Record to = record_of(*exchange_, *b_);
  for (const char* text : {"GET / HTTP/1.0\r\n\r\n", "", "IB2T"}) {
    int fd = dial(to);
    char padded[200] = {};
    std::memcpy(padded, text, std::strlen(text));
    ::send(fd, padded, *text == '\0' ? 0 : sizeof(padded), MSG_NOSIGNAL);
    if (*text != '\0') {
      EXPECT_TRUE(closed(fd)) << text;
    }
    ::close(fd);
  }
  Liar wrong_key(*exchange_, *b_, 8);
  EXPECT_FALSE(wrong_key.answered);
  EXPECT_TRUE(closed(wrong_key.fd));
  EXPECT_NE(second_->log().find("could not prove"), std::string::npos);
  expect_works(x, y);
}

// A member's record whose process is a socket of this test.
class Listener {
 public:
  Listener(FakeExchange& exchange, const Device& like, std::uint16_t its_lid) : lid(its_lid) {
    Record record = record_of(exchange, like);
    std::memset(record.uuid, lid & 0xff, sizeof(record.uuid));
    record.lid = lid;
    fd_ = listen_on_loopback(&record.tcp_port);
    std::lock_guard<std::mutex> guard(exchange.mutex);
    exchange.values["ib2tcp/ep/" + std::to_string(lid)] =
        std::string(reinterpret_cast<char*>(&record), sizeof(record));
  }
  ~Listener() { ::close(fd_); }
  int accept() const { return ::accept(fd_, nullptr, nullptr); }
  std::uint16_t lid;

 private:
  int fd_;
};

// Somebody has accepted the connection of a queue pair with a request, and has been greeted.
class Greeted {
 public:
  Greeted(FakeExchange& exchange, Device& me, const Device& peer, std::uint16_t its_lid)
      : x(me), listener_(exchange, peer, its_lid), device_(peer) {
    device_.port.lid = its_lid;
  }
  ~Greeted() { close(); }
  void begin() {
    ASSERT_EQ(x.to_init(x.qp), 0);
    ASSERT_EQ(x.to_rtr(x.qp, device_, 1), 0);
    ASSERT_EQ(x.to_rts(x.qp), 0);
    ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
    peer_ = listener_.accept();
    ASSERT_EQ(read_up_to(peer_, sizeof(Greeting)).size(), sizeof(Greeting));
  }
  void answer() {
    Challenge challenge{};
    challenge.magic = kHandshakeMagic;
    challenge.version = kHandshakeVersion;
    ASSERT_EQ(::send(peer_, &challenge, sizeof(challenge), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(challenge)));
    ASSERT_EQ(read_up_to(peer_, sizeof(Proof)).size(), sizeof(Proof));
  }
  // Three times as long as its retries last.
  void expect_to_be_waited_for() {
    const std::int64_t end = monotonic_ns() + 1'600'000'000;
    while (monotonic_ns() < end) ASSERT_EQ(x.poll(), 0);
  }
  void close() {
    if (peer_ >= 0) ::close(std::exchange(peer_, -1));
  }

  Endpoint x;

 private:
  Listener listener_;
  Device device_;
  int peer_ = -1;
};

TEST_F(Hostile, APeerThatAnswersIsWaitedForAndOneThatDoesNotIsGone) {
  for (const bool answers : {true, false}) {
    SCOPED_TRACE(answers ? "answers" : "is silent");
    Greeted greeted(*exchange_, *a_, *b_, answers ? 0x6601 : 0x6602);
    ASSERT_NO_FATAL_FAILURE(greeted.begin());
    if (answers) {
      ASSERT_NO_FATAL_FAILURE(greeted.answer());
      ASSERT_NO_FATAL_FAILURE(greeted.expect_to_be_waited_for());
      greeted.close();  // gone: nobody answers the next attempt
    }
    EXPECT_WC(greeted.x.wait(120000), 1, IBV_WC_RETRY_EXC_ERR);
  }
}

// A process that waits for its turn, or is stopped: its kernel listens for it. An adapter would answer by itself.
TEST_F(Hostile, APeerThatIsLateToAnswerIsWaitedFor) {
  Greeted greeted(*exchange_, *a_, *b_, 0x6603);
  ASSERT_NO_FATAL_FAILURE(greeted.begin());
  ASSERT_NO_FATAL_FAILURE(greeted.expect_to_be_waited_for());
  ASSERT_NO_FATAL_FAILURE(greeted.answer());
  EXPECT_EQ(greeted.x.poll(), 0);
}

TEST_F(Hostile, HalfOpenConnectionsAreBoundedAndDoNotKeepMembersOut) {
  Record to = record_of(*exchange_, *b_);
  std::vector<int> fds;
  for (int i = 0; i < 200; ++i) fds.push_back(dial(to));
  Endpoint x(*a_), y(*b_);
  connect(x, y);
  expect_works(x, y);
  {
    std::lock_guard<std::mutex> guard(second_->mutex_);
    EXPECT_LT(second_->descriptors_.size(), 100u);
  }
  for (int fd : fds) ::close(fd);
}

TEST_F(Hostile, BadFramesEndTheConnectionAndNothingElse) {
  Endpoint x(*a_), y(*b_);
  connect(x, y);
  expect_works(x, y);
  std::vector<std::function<void(FrameHeader&)>> spoil = {
      [](FrameHeader& h) { h.version = kWireVersion - 1; },
      [](FrameHeader& h) { h.version = kWireVersion + 1; },
      [](FrameHeader& h) { h.opcode = static_cast<Opcode>(99); },
      [](FrameHeader& h) { h.opcode = Opcode::kBindWindow; },  // of the sender alone
      [](FrameHeader& h) { h.opcode = Opcode::kHello; },
      [](FrameHeader& h) { h.length = 0x80000001u; },
      [](FrameHeader& h) { h.flags = 0xff; },
      [](FrameHeader& h) { h.opcode = Opcode::kFetchAdd, h.length = 16; },
  };
  for (auto& change : spoil) {
    Liar liar(*exchange_, *b_, 7);
    ASSERT_TRUE(liar.answered);
    FrameHeader header{};
    header.version = kWireVersion;
    header.opcode = Opcode::kSend;
    header.dest_qpn = y.qp->qp_num;
    change(header);
    liar.send(&header, sizeof(header));
    EXPECT_TRUE(closed(liar.fd));
    expect_works(x, y);
  }
  EXPECT_NE(second_->log().find("bad frame"), std::string::npos);
}

TEST_F(Hostile, AMemberReachesOnlyQueuePairsConnectedToIt) {
  Endpoint x(*a_), y(*b_), z(*b_);
  connect(x, y);
  expect_works(x, y);
  Liar liar(*exchange_, *b_, 7);
  ASSERT_TRUE(liar.answered);
  FrameHeader header{};
  header.version = kWireVersion;
  header.opcode = Opcode::kWrite;
  header.src_qpn = x.qp->qp_num;
  header.seq = y.options.psn + 1;
  header.rkey = y.mr->rkey;
  header.raddr = y.address(0);
  // Another's queue pair, one that is not connected, one that does not exist.
  for (std::uint32_t qpn : {y.qp->qp_num, z.qp->qp_num, 0u, 0x123456u, 0xffffffffu}) {
    header.dest_qpn = qpn;
    FrameHeader answer = liar.ask(header);
    EXPECT_EQ(answer.opcode, Opcode::kNak) << qpn;
    EXPECT_EQ(answer.syndrome, Syndrome::kNotReady);
  }
  // Answers nobody asked for are passed over.
  for (Opcode opcode :
       {Opcode::kAck, Opcode::kNak, Opcode::kReadResponse, Opcode::kAtomicResponse, Opcode::kReceivePosted}) {
    header.opcode = opcode;
    header.flags = kFlagAckValid;
    header.ack = 12345;
    header.dest_qpn = y.qp->qp_num;
    liar.send(&header, sizeof(header));
  }
  header.opcode = Opcode::kRead;
  header.length = 100;
  EXPECT_EQ(liar.ask(header).opcode, Opcode::kNak);
  expect_works(x, y);
}

// Connects a liar to a real queue pair.
struct Connected {
  Endpoint z;
  Liar liar;
  FrameHeader header{};
  Connected(FakeExchange& exchange, Device& device, std::size_t bytes = 4 << 20, std::uint64_t uuid = random_uuid())
      : z(device, {}, bytes), liar(exchange, device, 7, uuid) {
    EXPECT_EQ(z.to_init(z.qp), 0);
    Device peer = device;
    peer.port.lid = liar.lid;
    EXPECT_EQ(z.to_rtr(z.qp, peer, 0x42), 0);
    EXPECT_EQ(z.to_rts(z.qp), 0);
    header.version = kWireVersion;
    header.dest_qpn = z.qp->qp_num;
    header.src_qpn = 0x42;
    header.seq = z.options.psn;
  }
};

TEST_F(Hostile, RepeatsAreAnsweredAndNotExecuted) {
  Connected c(*exchange_, *b_);
  auto* target = reinterpret_cast<std::uint64_t*>((c.z.address(0) + 63) & ~63ull);
  *target = 5;
  c.header.opcode = Opcode::kFetchAdd;
  c.header.length = 8;
  c.header.rkey = c.z.mr->rkey;
  c.header.raddr = reinterpret_cast<std::uint64_t>(target);
  c.header.operand1 = 10;
  for (int i = 0; i < 3; ++i) {
    FrameHeader answer = c.liar.ask(c.header);
    EXPECT_EQ(answer.opcode, Opcode::kAtomicResponse);
    EXPECT_EQ(answer.operand1, 5u) << "the cached result";
    EXPECT_EQ(answer.ack, c.z.options.psn + 1);
  }
  EXPECT_EQ(*target, 15u) << "executed once";
  // A gap is refused, to be tried again.
  c.header.seq += 5;
  FrameHeader answer = c.liar.ask(c.header);
  EXPECT_EQ(answer.opcode, Opcode::kNak);
  EXPECT_EQ(answer.syndrome, Syndrome::kNotReady);
  EXPECT_EQ(*target, 15u);
}

TEST_F(Hostile, ImpossibleAcknowledgementsAreIgnored) {
  Connected c(*exchange_, *b_);
  ASSERT_EQ(c.z.post_send(1, {c.z.sge(0, 16)}), 0);
  EXPECT_EQ(read_up_to(c.liar.fd, 64 + 16).size(), 80u);
  c.header.opcode = Opcode::kAck;
  c.header.flags = kFlagAckValid;
  for (std::uint32_t ack : {c.z.options.psn + 2, c.z.options.psn - 1, 0u, 0xffffffffu}) {
    c.header.ack = ack;
    c.liar.send(&c.header, sizeof(c.header));
  }
  for (int i = 0; i < 200; ++i) EXPECT_EQ(c.z.poll(), 0);
  c.header.ack = c.z.options.psn + 1;
  c.liar.send(&c.header, sizeof(c.header));
  EXPECT_WC(c.z.wait(), 1, IBV_WC_SUCCESS);
}

// Programs post a receive again for each that completes: one that waited for a slow sender's second half, while
// others completed, would be in the way of a queue that is a ring.
TEST_F(Hostile, ReceivesOfDatagramsCompleteInTheirOrder) {
  QpOptions options;
  options.type = IBV_QPT_UD;
  Endpoint z(*b_, options);
  ASSERT_EQ(z.to_init(z.qp), 0);
  ASSERT_EQ(z.to_rtr(z.qp, z.device, 0), 0);
  ASSERT_EQ(z.to_rts(z.qp), 0);
  ASSERT_EQ(z.post_recv(1, {z.sge(0, 100)}), 0);
  ASSERT_EQ(z.post_recv(2, {z.sge(200, 100)}), 0);
  Liar slow(*exchange_, *b_, 7), quick(*exchange_, *b_, 7, random_uuid(), 0x7778);
  ASSERT_TRUE(slow.answered && quick.answered);
  FrameHeader header{};
  header.version = kWireVersion;
  header.opcode = Opcode::kDatagram;
  header.dest_qpn = z.qp->qp_num;
  header.src_qpn = 0x42;
  header.rkey = z.options.qkey;
  header.length = 8;
  slow.send(&header, sizeof(header));
  slow.send("slow", 4);
  const auto unread = [&slow] {
    int bytes = 0;
    EXPECT_EQ(::ioctl(slow.fd, SIOCOUTQ, &bytes), 0);
    return bytes;
  };
  while (unread() != 0) EXPECT_EQ(z.poll(), 0);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(z.poll(), 0);
  quick.send(&header, sizeof(header));
  quick.send("quick...", 8);
  EXPECT_WC(z.wait(), 1, IBV_WC_SUCCESS);
  slow.send("....", 4);
  EXPECT_WC(z.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(std::string(z.at(40), 8), "quick...");
  EXPECT_EQ(std::string(z.at(240), 8), "slow....");
}

// The rest of a message whose queue pair is destroyed is kept for its connection, and for no other.
TEST_F(Hostile, WhatIsLeftOfAMessageIsKeptAnewOnEachConnection) {
  constexpr std::uint32_t kBytes = 32 << 20;  // more than a socket holds
  const auto begin_and_destroy = [&](Connected& c) {
    std::memset(c.z.at(0), 'k', kBytes);
    ASSERT_EQ(c.z.post_send(1, {c.z.sge(0, kBytes)}), 0);
    ASSERT_EQ(read_up_to(c.liar.fd, sizeof(FrameHeader)).size(), sizeof(FrameHeader));  // it has begun
    ASSERT_EQ(c.z.ops.destroy_qp(c.z.qp), 0);
    c.z.qp = nullptr;
    std::memset(c.z.at(0), 'x', kBytes);
  };
  const std::uint64_t uuid = random_uuid();
  {
    Connected lost(*exchange_, *b_, kBytes, uuid);
    begin_and_destroy(lost);
  }
  while (second_->log().find("ended") == std::string::npos) ::usleep(1000);
  Connected c(*exchange_, *b_, kBytes, uuid);
  begin_and_destroy(c);
  const std::string got = read_up_to(c.liar.fd, kBytes);
  ASSERT_EQ(got.size(), kBytes);
  EXPECT_EQ(got.find_first_not_of('k'), std::string::npos);
}

TEST_F(Hostile, RandomFramesDoNoHarm) {
  unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Endpoint x(*a_), y(*b_);
  connect(x, y);
  expect_works(x, y);
  for (int round = 0; round < 20; ++round) {
    Connected c(*exchange_, *b_);
    if (!c.liar.answered) continue;
    for (int i = 0; i < 200; ++i) {
      FrameHeader h = c.header;
      constexpr std::uint8_t kOpcodes[] = {1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20};
      h.opcode = static_cast<Opcode>(kOpcodes[random() % 12]);
      h.flags = static_cast<std::uint8_t>(random() % 4);
      h.syndrome = static_cast<Syndrome>(random() % 8);
      h.dest_qpn = random() % 4 == 0 ? static_cast<std::uint32_t>(random()) : h.dest_qpn;
      h.seq += static_cast<std::uint32_t>(random() % 3);
      h.ack = h.seq;
      h.length = static_cast<std::uint32_t>(random() % 200);
      if (is_atomic(h.opcode)) h.length = 8;
      h.rkey = random() % 2 == 0 ? c.z.mr->rkey : static_cast<std::uint32_t>(random());
      h.raddr = random() % 2 == 0 ? c.z.address(random() % 5000000) : random();
      char payload[200] = {};
      c.liar.send(&h, sizeof(h));
      c.liar.send(payload, payload_bytes(h));
    }
    expect_works(x, y);
  }
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
