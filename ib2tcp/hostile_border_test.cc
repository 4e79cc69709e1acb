// Liars at the border between clusters: each lie is told of by name, and harms the liar alone.
#include <functional>
#include <random>

#include "ib2tcp/testing/member.h"
#include "ib2tcp/tests/liar.h"

namespace shadowib::ib2tcp::testing {
namespace {

constexpr std::uint32_t kPolicyVector = 1;
constexpr std::uint32_t kVectorBytes = kMaxBackendClusters * sizeof(std::uint32_t);

// Two processes of cluster 1 that work for each other, and liars of cluster 0, whose CLC 1 may be delivered.
class HostileBorder : public ::testing::Test {
 protected:
  HostileBorder() : exchange_(std::make_shared<FakeExchange>()) {
    ClusterState state = state_of(1, 1);
    state.depends[0] = 1;
    victim_ = std::make_unique<Member>(exchange_, "tcp", state);
    fellow_ = std::make_unique<Member>(exchange_, "tcp", state);
    x_ = std::make_unique<Endpoint>(*fellow_->device);
    y_ = std::make_unique<Endpoint>(*victim_->device);
    connect(*x_, *y_);
    expect_unharmed();
  }
  void expect_unharmed() {
    ASSERT_EQ(y_->post_recv(1, {y_->sge(0, 100)}), 0);
    ASSERT_EQ(x_->post_send(2, {x_->sge(0, 100)}), 0);
    EXPECT_WC(y_->wait(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(x_->wait(), 2, IBV_WC_SUCCESS);
  }
  bool is_told(const std::string& what) {
    return eventually([&] { return victim_->process.log().find(what) != std::string::npos; }, 5000);
  }
  Liar liar(const Claims& claims) { return {*exchange_, *victim_->device, 7, random_uuid(), 0x7777, claims}; }

  std::shared_ptr<FakeExchange> exchange_;
  std::unique_ptr<Member> victim_, fellow_;
  std::unique_ptr<Endpoint> x_, y_;
};

constexpr Claims kOfClusterZero{1, 1, 0, 0};

// A queue pair of the victim's that is connected to a liar.
struct Deceived {
  Endpoint z;
  FrameHeader header{};
  Deceived(Device& device, std::uint16_t lid) : z(device) {
    EXPECT_EQ(z.to_init(z.qp), 0);
    Device peer = device;
    peer.port.lid = lid;
    EXPECT_EQ(z.to_rtr(z.qp, peer, 0x42), 0);
    EXPECT_EQ(z.to_rts(z.qp), 0);
    header.version = kWireVersion;
    header.opcode = Opcode::kWrite;
    header.dest_qpn = z.qp->qp_num;
    header.src_qpn = 0x42;
    header.seq = z.options.psn;
    header.rkey = z.mr->rkey;
    header.raddr = z.address(0);
    header.length = 4;
    header.sn = 1;
  }
};

TEST_F(HostileBorder, GreetingsThatContradictWhatIsKnownAreRefused) {
  struct Lie {
    Claims claims;
    const char* told;
  };
  for (const Lie& lie : {Lie{{1, 33, 0, 0}, "a cluster that there cannot be"},
                         Lie{{1, 0xffff, 0, 0}, "there cannot be"}, Lie{{33, 2, 0, 0}, "not one of this version"},
                         Lie{{1, 3, 0, 0}, "names another cluster"}, Lie{{0, 0, 0, 0}, "in no cluster"}}) {
    SCOPED_TRACE(lie.told);
    const Liar refused = liar(lie.claims);
    EXPECT_FALSE(refused.answered);
    EXPECT_TRUE(is_told(lie.told)) << victim_->process.log();
    expect_unharmed();
  }
}

TEST_F(HostileBorder, DeadIncarnationsAreToldSo) {
  for (const Claims& claims : {Claims{1, 1, 3, 0}, Claims{1, 1, 0, 3}, Claims{2, 2, 1, 0}}) {
    const Liar dead = liar(claims);
    ASSERT_TRUE(dead.answered);
    EXPECT_EQ(dead.verdict, Verdict::kDead);
    EXPECT_TRUE(closed(dead.fd));
    expect_unharmed();
  }
  EXPECT_TRUE(is_told("is over"));
}

TEST_F(HostileBorder, ANumberWithinOneClusterEndsTheConnection) {
  const Liar own = liar({2, 2, 0, 0});
  ASSERT_EQ(own.verdict, Verdict::kAccepted);
  Deceived d(*victim_->device, own.lid);
  own.send(&d.header, sizeof(d.header));
  EXPECT_TRUE(closed(own.fd));
  EXPECT_TRUE(is_told("a number, within one cluster")) << victim_->process.log();
  EXPECT_EQ(d.z.state(), IBV_QPS_RTS);
  expect_unharmed();
}

TEST_F(HostileBorder, FramesOfBordersAloneEndOtherConnections) {
  for (Opcode opcode : {Opcode::kResume, Opcode::kVector, static_cast<Opcode>(34)}) {
    const Liar own = liar({2, 2, 0, 0});
    ASSERT_EQ(own.verdict, Verdict::kAccepted);
    Deceived d(*victim_->device, own.lid);
    d.header.opcode = opcode;
    own.send(&d.header, sizeof(d.header));
    EXPECT_TRUE(closed(own.fd)) << static_cast<int>(opcode);
    EXPECT_EQ(d.z.state(), IBV_QPS_RTS);
    expect_unharmed();
  }
}

TEST_F(HostileBorder, MessagesWithoutANumberEndTheConnection) {
  for (Opcode opcode : {Opcode::kWrite, Opcode::kReadResponse, Opcode::kDatagram}) {
    const Liar other = liar(kOfClusterZero);
    ASSERT_EQ(other.verdict, Verdict::kAccepted);
    Deceived d(*victim_->device, other.lid);
    d.header.opcode = opcode;
    d.header.sn = 0;
    other.send(&d.header, sizeof(d.header));
    EXPECT_TRUE(closed(other.fd)) << static_cast<int>(opcode);
    EXPECT_EQ(d.z.state(), IBV_QPS_RTS);
    expect_unharmed();
  }
  EXPECT_TRUE(is_told("not of a living cluster's checkpoint"));
}

TEST_F(HostileBorder, VectorsOfAWrongLengthEndTheConnection) {
  const std::function<void(FrameHeader&)> lies[] = {
      [](FrameHeader& h) { h.length = 3; },
      [](FrameHeader& h) { h.length = kVectorBytes + 4; },
      [](FrameHeader& h) { h.length = 0x7ffffffc; },
      [](FrameHeader& h) { h.sn = 0; },
  };
  for (const auto& lie : lies) {
    const Liar other = liar(kOfClusterZero);
    ASSERT_EQ(other.verdict, Verdict::kAccepted);
    FrameHeader vector{};
    vector.version = kWireVersion;
    vector.opcode = Opcode::kVector;
    vector.length = kVectorBytes;
    vector.sn = 1;
    lie(vector);
    other.send(&vector, sizeof(vector));
    EXPECT_TRUE(closed(other.fd));
    expect_unharmed();
  }
}

TEST_F(HostileBorder, UnderPolicyVectorAMessageNeedsOne) {
  victim_->state.policy = kPolicyVector;
  victim_->tell();
  for (std::uint32_t told : {0u, 2u}) {
    const Liar other = liar(kOfClusterZero);
    ASSERT_EQ(other.verdict, Verdict::kAccepted);
    Deceived d(*victim_->device, other.lid);
    if (told != 0) {
      FrameHeader vector{};
      vector.version = kWireVersion;
      vector.opcode = Opcode::kVector;
      vector.sn = told;  // of another number
      other.send(&vector, sizeof(vector));
    }
    other.send(&d.header, sizeof(d.header));
    EXPECT_TRUE(closed(other.fd));
    EXPECT_TRUE(is_told("dependencies not told"));
    expect_unharmed();
  }
}

// A message that no CLC ever lets in stops the liar's own link.
TEST_F(HostileBorder, ANumberFarAheadHoldsTheLiarAlone) {
  const Liar other = liar(kOfClusterZero);
  ASSERT_EQ(other.verdict, Verdict::kAccepted);
  Deceived d(*victim_->device, other.lid);
  d.header.sn = 0xffffffff;
  other.send(&d.header, sizeof(d.header));
  other.send("held", 4);
  ASSERT_TRUE(eventually([&] { return victim_->held().size() == 1; }));
  EXPECT_EQ(victim_->held()[0].sn, 0xffffffffu);
  expect_unharmed();
  EXPECT_NE(std::string(d.z.at(0), 4), "held");
}

TEST_F(HostileBorder, ImpossibleResumesAreIgnored) {
  const Liar other = liar(kOfClusterZero);
  ASSERT_EQ(other.verdict, Verdict::kAccepted);
  Deceived d(*victim_->device, other.lid);
  FrameHeader resume = d.header;
  resume.opcode = Opcode::kResume;
  resume.length = 0;
  resume.sn = 0;
  for (std::uint32_t ahead : {1u, 0x80000000u, 0xffffffffu}) {
    resume.seq = d.z.options.psn + ahead;
    other.send(&resume, sizeof(resume));
  }
  resume.dest_qpn = 1;
  other.send(&resume, sizeof(resume));
  other.send(&d.header, sizeof(d.header));
  other.send("done", 4);
  EXPECT_TRUE(eventually([&] { return *static_cast<volatile char*>(d.z.at(3)) == 'e'; }));
  EXPECT_EQ(d.z.state(), IBV_QPS_RTS);
  expect_unharmed();
}

TEST_F(HostileBorder, RandomFramesDoNoHarm) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20; ++round) {
    const Liar other = liar(kOfClusterZero);
    if (!other.answered) continue;
    Deceived d(*victim_->device, other.lid);
    for (int i = 0; i < 100; ++i) {
      FrameHeader h = d.header;
      constexpr std::uint8_t kOpcodes[] = {1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 33, 34, 35};
      h.opcode = static_cast<Opcode>(kOpcodes[random() % 15]);
      h.operand1 = random() % 3;
      h.flags = static_cast<std::uint8_t>(random() % 4);
      h.syndrome = static_cast<Syndrome>(random() % 8);
      h.seq += static_cast<std::uint32_t>(random() % 3);
      h.ack = h.seq;
      h.length = static_cast<std::uint32_t>(random() % 33) * 4;
      if (is_atomic(h.opcode)) h.length = 8;
      h.sn = random() % 50 == 0 ? 2 : 1;
      const char payload[kVectorBytes] = {};
      other.send(&h, sizeof(h));
      other.send(payload, payload_bytes(h));
    }
    expect_unharmed();
  }
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
