// The 40 bytes in front of a datagram: a global route header or, for RoCE v2 over IPv4, twenty meaningless bytes and
// an IPv4 header.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace shadowib {

bool is_ipv4(const ibv_gid& gid);  // ::ffff:a.b.c.d

struct RouteHeader {
  ibv_grh bytes;

  bool has_ipv4() const;
  bool has_udp() const;  // of RoCE v2
  ibv_gid source() const;
  ibv_gid destination() const;
  std::uint32_t flow_label() const;
  std::uint8_t traffic_class() const;

  // Names other ends. `ipv4`: in the form of IPv4, whatever it had, if both are such addresses; else as it was, where
  // that has room for them.
  void name(const ibv_gid& from, const ibv_gid& to, bool ipv4);
};

}  // namespace shadowib
