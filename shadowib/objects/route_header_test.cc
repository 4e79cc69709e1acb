#include "shadowib/objects/route_header.h"

#include <arpa/inet.h>
#include <endian.h>
#include <gtest/gtest.h>

#include <cstring>

namespace shadowib {
namespace {

ibv_gid gid(const char* text) {
  ibv_gid gid;
  EXPECT_EQ(::inet_pton(AF_INET6, text, gid.raw), 1);
  return gid;
}
std::string text(const ibv_gid& gid) {
  char out[INET6_ADDRSTRLEN];
  return ::inet_ntop(AF_INET6, gid.raw, out, sizeof(out));
}

// As a device leaves it: what is in front means nothing. From 192.168.77.1 to 192.168.77.2, checksum by hand.
RouteHeader over_ipv4(std::uint8_t nothing) {
  const unsigned char ip[20] = {0x45, 0x08, 0,   84,  0,  1, 0x40, 0,   64, 17,
                                0x1f, 0x3c, 192, 168, 77, 1, 192,  168, 77, 2};
  RouteHeader header;
  std::memset(&header, nothing, sizeof(header));
  std::memcpy(reinterpret_cast<char*>(&header) + 20, ip, sizeof(ip));
  return header;
}

RouteHeader global() {
  RouteHeader header{};
  header.bytes.version_tclass_flow = htobe32(6u << 28 | 8u << 20 | 0x12345);
  header.bytes.paylen = htobe16(64);
  header.bytes.next_hdr = 0x1b;
  header.bytes.hop_limit = 9;
  header.bytes.sgid = gid("fe80::1");
  header.bytes.dgid = gid("fe80::2");
  return header;
}

TEST(RouteHeader, OverIpv4WhateverStandsInFront) {
  for (std::uint8_t nothing : {0x00, 0x60, 0xff}) {
    const RouteHeader header = over_ipv4(nothing);
    EXPECT_TRUE(header.has_ipv4()) << int{nothing};
    EXPECT_TRUE(header.has_udp());
    EXPECT_EQ(text(header.source()), "::ffff:192.168.77.1");
    EXPECT_EQ(text(header.destination()), "::ffff:192.168.77.2");
    EXPECT_EQ(header.traffic_class(), 8);
  }
}

TEST(RouteHeader, AGlobalOne) {
  RouteHeader header = global();
  EXPECT_FALSE(header.has_ipv4());
  EXPECT_FALSE(header.has_udp());
  EXPECT_EQ(text(header.source()), "fe80::1");
  EXPECT_EQ(header.flow_label(), 0x12345u);
  EXPECT_EQ(header.traffic_class(), 8);
  // The second half of its source may look like the beginning of IPv4; the checksum does not.
  header.bytes.sgid.raw[12] = 0x45;
  EXPECT_FALSE(header.has_ipv4());
}

TEST(RouteHeader, OtherEndsInTheFormItHad) {
  RouteHeader header = over_ipv4(0x60);
  header.name(gid("::ffff:10.0.0.1"), gid("::ffff:10.0.0.2"), false);
  EXPECT_TRUE(header.has_ipv4());
  EXPECT_EQ(text(header.source()), "::ffff:10.0.0.1");
  EXPECT_EQ(text(header.destination()), "::ffff:10.0.0.2");
  std::memset(&header, 0x60, 20);
  EXPECT_TRUE(header.has_ipv4()) << "its checksum is right";
  RouteHeader other = global();
  other.name(gid("fe80::5"), gid("fe80::6"), false);
  EXPECT_EQ(text(other.source()), "fe80::5");
  EXPECT_EQ(text(other.destination()), "fe80::6");
  EXPECT_EQ(other.flow_label(), 0x12345u);
}

TEST(RouteHeader, EndsThatItsFormHasNoRoomFor) {
  RouteHeader header = over_ipv4(0xff);
  header.name(gid("fe80::5"), gid("::ffff:10.0.0.2"), true);
  EXPECT_FALSE(header.has_ipv4());
  EXPECT_TRUE(header.has_udp());
  EXPECT_EQ(text(header.source()), "fe80::5");
  EXPECT_EQ(text(header.destination()), "::ffff:10.0.0.2");
  EXPECT_EQ(header.traffic_class(), 8);
  EXPECT_EQ(header.bytes.hop_limit, 64);
  EXPECT_EQ(be16toh(header.bytes.paylen), 64);
}

TEST(RouteHeader, TheFormOfIpv4OnlyForWhoKnowsIt) {
  RouteHeader header = global();
  header.name(gid("::ffff:10.0.0.1"), gid("::ffff:10.0.0.2"), false);
  EXPECT_FALSE(header.has_ipv4());
  header.name(gid("::ffff:10.0.0.1"), gid("::ffff:10.0.0.2"), true);
  EXPECT_TRUE(header.has_ipv4());
  EXPECT_EQ(text(header.source()), "::ffff:10.0.0.1");
  EXPECT_EQ(text(header.destination()), "::ffff:10.0.0.2");
  EXPECT_EQ(header.traffic_class(), 8);
}

}  // namespace
}  // namespace shadowib
