// The IP addresses of this host, and the choice among them that an operator makes (SHADOWIB_IB2TCP_NETWORK).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib {

// IPv6, or IPv4 as ::ffff:a.b.c.d; network byte order.
using IpAddress = std::array<std::uint8_t, 16>;

bool is_ipv4(const IpAddress& address);
// "10.0.0.1" or "fd00::1".
std::string text_of(const IpAddress& address);
// Whether the first `bits` of 128 are the same.
bool same_network(const IpAddress& a, const IpAddress& b, unsigned bits);
inline constexpr IpAddress kLoopback4{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
inline constexpr IpAddress kLoopback6{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};

struct HostAddress {
  char interface[16];
  IpAddress address;
  unsigned bits;  // of the network, out of 128
  bool loopback;
};

// Addresses of interfaces that are up, in the kernel's order. Without link-local ones: they mean nothing on another
// host. Opens and closes a descriptor; empty if the kernel tells nothing.
std::vector<HostAddress> host_addresses();

// Interfaces and subnets: "eth0", "10.1.0.0/16,fd00:1::/64", an address alone. "", "any": every address.
class NetworkChoice {
 public:
  // kUsage with the word that is neither.
  static Status parse(const std::string& text, NetworkChoice* choice);

  bool any() const { return words_.empty(); }
  bool takes(const HostAddress& address) const;

 private:
  struct Word {
    std::string interface;  // empty: a subnet
    IpAddress network;
    unsigned bits;
  };
  std::vector<Word> words_;
};

// Parses a choice and looks for its addresses among this host's. kUsage with the interfaces that there are.
Status choose_addresses(const std::string& text, std::vector<HostAddress>* chosen);

}  // namespace shadowib
