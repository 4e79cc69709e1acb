#include "shadowib/base/networks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace shadowib {
namespace {

IpAddress ipv4(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d};
}
HostAddress at(const char* interface, const IpAddress& address, bool loopback = false) {
  HostAddress made{};
  std::strcpy(made.interface, interface);
  made.address = address;
  made.bits = 120;
  made.loopback = loopback;
  return made;
}

bool takes(const std::string& text, const HostAddress& address) {
  NetworkChoice choice;
  const Status status = NetworkChoice::parse(text, &choice);
  EXPECT_TRUE(status.ok()) << status.text();
  return choice.takes(address);
}

TEST(Networks, AnInterfaceASubnetAnAddressOrAList) {
  const HostAddress fast = at("ib0", ipv4(10, 1, 2, 3)), slow = at("eth0", ipv4(192, 168, 1, 9));
  EXPECT_TRUE(takes("ib0", fast));
  EXPECT_FALSE(takes("ib0", slow));
  EXPECT_TRUE(takes("10.1.0.0/16", fast));
  EXPECT_FALSE(takes("10.2.0.0/16", fast));
  EXPECT_TRUE(takes("192.168.1.9", slow));
  EXPECT_FALSE(takes("192.168.1.8", slow));
  EXPECT_TRUE(takes("ib0,192.168.0.0/16", slow));
  EXPECT_TRUE(takes("0.0.0.0/0", slow));
}

TEST(Networks, IPv6) {
  const HostAddress there = at("eth0", {0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5});
  EXPECT_TRUE(takes("fd00:1::/32", there));
  EXPECT_FALSE(takes("fd00:2::/32", there));
  EXPECT_FALSE(takes("0.0.0.0/0", there));
  EXPECT_TRUE(takes("::/0", there));
  EXPECT_EQ(text_of(there.address), "fd00:1::5");
}

TEST(Networks, WithoutAChoiceAllButLoopback) {
  EXPECT_TRUE(takes("", at("eth0", ipv4(10, 0, 0, 1))));
  EXPECT_TRUE(takes("any", at("eth0", ipv4(10, 0, 0, 1))));
  EXPECT_FALSE(takes("any", at("lo", kLoopback4, true)));
  EXPECT_TRUE(takes("lo", at("lo", kLoopback4, true)));
}

TEST(Networks, WordsThatAreNeither) {
  NetworkChoice choice;
  for (const char* text :
       {"10.0.0.0/33", "fd00::/129", "10.0.0.0/x", "10.0.0.0/", "a/b", "eth0,", "an-interface-name-too-long"})
    EXPECT_EQ(NetworkChoice::parse(text, &choice).code(), Code::kUsage) << text;
}

TEST(Networks, ThisHost) {
  bool loopback = false;
  for (const HostAddress& address : host_addresses())
    loopback = loopback || (address.loopback && address.address == kLoopback4 && address.bits == 96 + 8 &&
                            std::string(address.interface) == "lo");
  EXPECT_TRUE(loopback);
  std::vector<HostAddress> chosen;
  EXPECT_TRUE(choose_addresses("lo", &chosen).ok());
  EXPECT_FALSE(chosen.empty());
  const Status none = choose_addresses("no-such-one", &chosen);
  EXPECT_EQ(none.code(), Code::kUsage);
  EXPECT_NE(std::string(none.text()).find("lo 127.0.0.1/8"), std::string::npos) << none.text();
}

}  // namespace
}  // namespace shadowib
