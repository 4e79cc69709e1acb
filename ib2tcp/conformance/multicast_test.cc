// Multicast groups: who gets a datagram, and what becomes of it elsewhere.
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "ib2tcp/conformance/fixture.h"

namespace shadowib::ib2tcp::testing {
namespace {

constexpr std::uint32_t kGrhBytes = 40, kEverybody = 0xffffff;

QpOptions datagrams() {
  QpOptions options;
  options.type = IBV_QPT_UD;
  return options;
}

// Groups last as long as the two devices: each case has its own.
struct GroupAddress {
  ibv_gid gid{};
  std::uint16_t lid;
  explicit GroupAddress(std::uint16_t number) : lid(static_cast<std::uint16_t>(0xc000 + number)) {
    gid.raw[0] = 0xff;
    gid.raw[1] = 0x12;
    std::memcpy(&gid.raw[14], &number, 2);
  }
  static GroupAddress fresh() {
    static std::uint16_t next = 1;
    return GroupAddress(next++);
  }
};

struct Member : Endpoint {
  explicit Member(Device& device) : Endpoint(device, datagrams()) {
    EXPECT_EQ(to_init(qp), 0);
    EXPECT_EQ(to_rtr(qp, device, 0), 0);
    EXPECT_EQ(to_rts(qp), 0);
  }
  ~Member() {
    for (const GroupAddress& group : in) EXPECT_EQ(ops.detach_mcast(qp, &group.gid, group.lid), 0);
    for (ibv_ah* ah : handles) EXPECT_EQ(ops.destroy_ah(ah), 0);
  }
  void attach(const GroupAddress& group) {
    ASSERT_EQ(ops.attach_mcast(qp, &group.gid, group.lid), 0);
    in.push_back(group);
  }
  void detach(const GroupAddress& group) {
    EXPECT_EQ(ops.detach_mcast(qp, &group.gid, group.lid), 0);
    in.clear();
  }
  ibv_ah* handle(const GroupAddress& group, bool global) {
    ibv_ah_attr attr{};
    attr.port_num = 1;
    attr.dlid = group.lid;
    attr.is_global = global;
    attr.grh.dgid = group.gid;
    handles.push_back(ops.create_ah(pd, &attr));
    EXPECT_NE(handles.back(), nullptr);
    return handles.back();
  }
  void receive(std::uint64_t id) { ASSERT_EQ(post_recv(id, {sge(4096, 2048)}), 0); }
  void send(std::uint64_t id, ibv_ah* ah, std::uint32_t qkey = 0x11111111, std::uint32_t qpn = kEverybody) {
    ASSERT_EQ(post_datagram(id, {sge(0, 1000)}, ah, qpn, qkey), 0);
    EXPECT_WC(wait(), id, IBV_WC_SUCCESS);
  }
  std::vector<GroupAddress> in;
  std::vector<ibv_ah*> handles;
};

TEST_P(Conformance, EverybodyInAGroupButTheSenderGetsADatagram) {
  for (bool global : {false, true}) {
    const GroupAddress group = GroupAddress::fresh();
    Member sender(a()), beside(a()), first(b()), second(b()), stranger(b());
    ibv_ah* ah = sender.handle(group, global);
    sender.send(1, ah);  // to nobody yet
    Member* all[] = {&sender, &beside, &first, &second, &stranger};
    for (Member* member : all) {
      if (member != &stranger) member->attach(group);
      member->receive(10);
    }
    std::memset(sender.at(0), global ? 'g' : 'l', 1000);
    sender.send(2, ah);
    for (Member* member : {&beside, &first, &second}) {
      const ibv_wc wc = member->wait();
      EXPECT_WC(wc, 10, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.byte_len, kGrhBytes + 1000);
      EXPECT_EQ(wc.src_qp, sender.qp->qp_num);
      EXPECT_EQ(wc.slid, sender.device.port.lid);
      EXPECT_EQ(wc.wc_flags, global ? static_cast<unsigned>(IBV_WC_GRH) : 0u);
      EXPECT_EQ(std::memcmp(member->at(4096 + kGrhBytes), sender.at(0), 1000), 0);
      if (!global) continue;
      ibv_grh grh;
      std::memcpy(&grh, member->at(4096), sizeof(grh));
      EXPECT_EQ(std::memcmp(&grh.dgid, &group.gid, 16), 0);
      EXPECT_EQ(std::memcmp(&grh.sgid, &sender.device.gid, 16), 0);
    }
    EXPECT_EQ(sender.poll() + stranger.poll() + beside.poll() + first.poll() + second.poll(), 0);
    first.detach(group);
    first.receive(11);
    second.receive(11);
    sender.send(3, ah);
    EXPECT_WC(second.wait(), 11, IBV_WC_SUCCESS);
    EXPECT_EQ(first.poll(), 0);
    // Its own answer is for the sender, too.
    ibv_ah* back = second.handle(group, global);
    second.send(4, back);
    EXPECT_WC(sender.wait(), 10, IBV_WC_SUCCESS);
  }
}

TEST_P(Conformance, WhatAMemberCannotTakeIsDroppedThere) {
  const GroupAddress group = GroupAddress::fresh();
  Member sender(a()), ready(b()), unready(b());
  ready.attach(group);
  unready.attach(group);
  ready.receive(10);
  ibv_ah* ah = sender.handle(group, true);
  sender.send(1, ah, 0x22222222);          // another key
  sender.send(2, ah, 0x11111111, 0x1234);  // no multicast number
  std::strcpy(sender.at(0), "the third");
  sender.send(3, ah);
  EXPECT_WC(ready.wait(), 10, IBV_WC_SUCCESS);
  EXPECT_STREQ(ready.at(4096 + kGrhBytes), "the third");
  EXPECT_EQ(unready.poll(), 0);
  EXPECT_EQ(sender.ops.sq_executed(sender.qp), 3u);
}

TEST_P(Conformance, AQueuePairIsInSeveralGroups) {
  const GroupAddress one = GroupAddress::fresh(), two = GroupAddress::fresh();
  GroupAddress alias = one;  // the same GID at another LID
  alias.lid = two.lid;
  Member sender(a()), member(b());
  for (const GroupAddress& group : {one, two, alias}) member.attach(group);
  for (std::uint64_t id = 0; id < 4; ++id) member.receive(id);
  std::uint64_t id = 0;
  for (const GroupAddress& group : {one, two})
    for (bool global : {false, true}) {
      sender.send(id, sender.handle(group, global));
      EXPECT_WC(member.wait(), id++, IBV_WC_SUCCESS);
      EXPECT_EQ(member.poll(), 0) << "once";
    }
}

TEST_P(Conformance, GroupsKeepTheirRules) {
  const GroupAddress group = GroupAddress::fresh();
  ibv_device_attr attr{};
  Member member(a());
  ASSERT_EQ(member.ops.query_device(member.device.context, &attr), 0);
  EXPECT_GT(attr.max_mcast_grp, 0);
  EXPECT_GT(attr.max_mcast_qp_attach, 0);
  EXPECT_GT(attr.max_total_mcast_qp_attach, 0);
  Endpoint connected(a());
  EXPECT_EQ(member.ops.attach_mcast(connected.qp, &group.gid, group.lid), EINVAL);
  EXPECT_EQ(member.ops.attach_mcast(member.qp, &member.device.gid, group.lid), EINVAL);
  EXPECT_EQ(member.ops.attach_mcast(member.qp, &group.gid, 17), EINVAL);
  EXPECT_EQ(member.ops.attach_mcast(member.qp, &group.gid, 0xffff), EINVAL);
  EXPECT_EQ(member.ops.detach_mcast(member.qp, &group.gid, group.lid), EINVAL);
  member.attach(group);
  EXPECT_EQ(member.ops.attach_mcast(member.qp, &group.gid, group.lid), 0) << "again";
  EXPECT_EQ(member.ops.destroy_qp(member.qp), EBUSY);
  member.detach(group);
  EXPECT_EQ(member.ops.detach_mcast(member.qp, &group.gid, group.lid), EINVAL);
}

TEST_P(Conformance, ManyDatagramsToAGroupAndToOne) {
  constexpr std::uint64_t kRounds = 300;
  const GroupAddress group = GroupAddress::fresh();
  Member sender(a()), near(a()), far(b());
  near.attach(group);
  far.attach(group);
  ibv_ah* all = sender.handle(group, true);
  ibv_ah* one = sender.make_ah(b());
  std::uint64_t at_near = 0, at_far = 0, sent = 0;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    for (std::uint64_t i = 0; i < 4; ++i) near.receive(at_near + i);
    for (std::uint64_t i = 0; i < 8; ++i) far.receive(at_far + i);
    for (std::uint64_t i = 0; i < 8; ++i) {
      sender.at(0)[0] = static_cast<char>(round);
      const bool to_all = i % 2 == 0;
      ASSERT_EQ(sender.post_datagram(sent + i, {sender.sge(0, 500)}, to_all ? all : one,
                                     to_all ? kEverybody : far.qp->qp_num, 0x11111111),
                0);
    }
    for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(sender.wait().wr_id, sent++);
    for (std::uint64_t i = 0; i < 4; ++i) ASSERT_EQ(near.wait().wr_id, at_near++);
    for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(far.wait().wr_id, at_far++);
    ASSERT_EQ(far.at(4096 + kGrhBytes)[0], static_cast<char>(round));
    ASSERT_EQ(near.poll() + far.poll(), 0);
  }
  EXPECT_EQ(sender.ops.sq_executed(sender.qp), sent);
  EXPECT_EQ(sender.ops.destroy_ah(one), 0);
}

// A member that has ended is in the list for good; it costs a sender little.
TEST_P(Conformance, AGroupOutlivesItsMembers) {
  const GroupAddress group = GroupAddress::fresh();
  Member sender(a()), member(b());
  member.attach(group);
  const std::string key = [&] {
    char text[80] = "ib2tcp/mcast/";
    for (int i = 0; i < 16; ++i) std::snprintf(text + std::strlen(text), 3, "%02x", group.gid.raw[i]);
    return std::string(text) + "/1";
  }();
  const auto gone = static_cast<std::uint16_t>(member.device.port.lid % 0xbffe + 1);
  FakeExchange& exchange = *member.process.exchange_;
  {
    std::lock_guard<std::mutex> guard(exchange.mutex);
    exchange.values[key] = std::string(reinterpret_cast<const char*>(&gone), sizeof(gone));
    exchange.values[key.substr(0, key.size() - 1) + "2"] = "claimed";  // and then its process died
  }
  ibv_ah* ah = sender.handle(group, true);
  for (std::uint64_t id = 0; id < 20; ++id) {
    member.receive(id);
    sender.send(id, ah);
    EXPECT_WC(member.wait(), id, IBV_WC_SUCCESS);
  }
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
