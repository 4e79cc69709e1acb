// Joins on the loopback interface, which a process of any rights may do.
#include "shadowib/objects/ip_groups.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>

#include <fstream>
#include <string>

#include "shadowib/base/descriptors.h"

namespace shadowib {
namespace {

ibv_gid gid_of(const char* ipv6) {
  ibv_gid gid{};
  EXPECT_EQ(::inet_pton(AF_INET6, ipv6, gid.raw), 1);
  return gid;
}

ibv_gid_entry entry_of(const char* ipv6, ibv_gid_type type, const char* interface) {
  ibv_gid_entry entry{};
  entry.gid = gid_of(ipv6);
  entry.gid_type = type;
  entry.ndev_ifindex = ::if_nametoindex(interface);
  return entry;
}

// Whether this host is a member of 239.1.2.3.
bool is_member() {
  std::ifstream table("/proc/net/igmp");
  for (std::string word; table >> word;)
    if (word == "030201EF") return true;
  return false;
}

const ibv_gid_entry kTable[] = {entry_of("fe80::1", IBV_GID_TYPE_ROCE_V2, "lo"),
                                entry_of("::ffff:127.0.0.1", IBV_GID_TYPE_ROCE_V2, "lo"),
                                entry_of("::ffff:127.0.0.1", IBV_GID_TYPE_ROCE_V2, "lo")};

class IpGroupsTest : public testing::Test {
 protected:
  ~IpGroupsTest() override { forget_owned_descriptors(true); }
  IpGroups groups;
  ibv_qp one{}, other{};
  ibv_gid group = gid_of("::ffff:239.1.2.3");
};

TEST_F(IpGroupsTest, TheHostIsInAGroupAsLongAsOneOfItsQueuePairsIs) {
  groups.join(&one, group, kTable);
  EXPECT_TRUE(is_member());
  groups.join(&one, group, kTable);  // again: once to leave
  groups.join(&other, group, kTable);
  groups.leave(&one, group);
  EXPECT_TRUE(is_member());
  groups.leave(&other, group);
  EXPECT_FALSE(is_member());
  groups.leave(&other, group);
}

TEST_F(IpGroupsTest, OnlyOnInterfacesOfItsFamilyAndOfRoce) {
  const ibv_gid_entry others[] = {entry_of("fe80::1", IBV_GID_TYPE_ROCE_V2, "lo"),
                                  entry_of("::ffff:127.0.0.1", IBV_GID_TYPE_ROCE_V1, "lo"),
                                  entry_of("::ffff:127.0.0.1", IBV_GID_TYPE_IB, "lo")};
  groups.join(&one, group, others);
  EXPECT_FALSE(is_member());
  groups.leave(&one, group);
}

TEST_F(IpGroupsTest, AnInterfaceThatIsGoneIsNoError) {
  ibv_gid_entry gone = kTable[1];
  gone.ndev_ifindex = 123456;
  groups.join(&one, group, {&gone, 1});
  EXPECT_FALSE(is_member());
  groups.join(&one, group, kTable);
  EXPECT_TRUE(is_member());
  groups.leave(&one, group);
}

// The descriptor is nobody's then, and its number may be another's.
TEST_F(IpGroupsTest, NothingIsClosedThatWasForgotten) {
  groups.join(&one, group, kTable);
  groups.forget();
  groups.leave(&one, group);
  EXPECT_TRUE(is_member());
}

TEST(MulticastGid, IsOfInfiniBandOrOfIp) {
  for (const char* group : {"ff12:401b:ffff::1", "ff02::1", "::ffff:224.0.0.1", "::ffff:239.255.255.255"})
    EXPECT_TRUE(is_multicast_gid(gid_of(group))) << group;
  for (const char* host :
       {"fe80::1", "::ffff:192.168.77.1", "::ffff:240.0.0.1", "::ffff:223.1.1.1", "2001:db8::e001"})
    EXPECT_FALSE(is_multicast_gid(gid_of(host))) << host;
}

}  // namespace
}  // namespace shadowib
