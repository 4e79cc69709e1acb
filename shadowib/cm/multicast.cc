#include "shadowib/cm/multicast.h"

#include <arpa/inet.h>
#include <errno.h>

#include <cstring>

#include "shadowib/cm/attributes.h"
#include "shadowib/cm/courier.h"
#include "shadowib/cm/listeners.h"
#include "shadowib/cr/peers.h"

namespace shadowib::cm {
namespace {

constexpr std::uint32_t kMulticastQpNum = 0xffffff;
constexpr std::uint16_t kMulticastLids = 0x3fff;

// The group of an IP address, as IP over InfiniBand has it (RFC 4391), with the connection manager's mark.
ibv_gid group_of(const sockaddr_in6& address) {
  ibv_gid group{};
  if (address.sin6_family == AF_INET6) {
    std::memcpy(group.raw, address.sin6_addr.s6_addr, sizeof(group.raw));
    return group;
  }
  const std::uint8_t prefix[] = {0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0x00, 0x01};
  std::memcpy(group.raw, prefix, sizeof(prefix));
  const std::uint32_t ip = htonl(ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) & 0x0fffffff);
  std::memcpy(group.raw + 12, &ip, sizeof(ip));
  return group;
}

// The same of RoCE: the address itself, before version 2 that of IPv6 with the one of IPv4 at its end.
ibv_gid roce_group_of(const sockaddr_in6& address, bool is_v2) {
  ibv_gid group{};
  if (address.sin6_family == AF_INET6) {
    std::memcpy(group.raw, address.sin6_addr.s6_addr, sizeof(group.raw));
    return group;
  }
  if (!is_v2) group.raw[0] = 0xff, group.raw[1] = 0x0e;
  group.raw[10] = group.raw[11] = 0xff;
  std::memcpy(group.raw + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  return group;
}

std::uint16_t group_lid(const ibv_gid& group) {
  std::uint32_t sum = 0;
  for (std::uint8_t byte : group.raw) sum = sum * 31 + byte;
  return static_cast<std::uint16_t>(kFirstMulticastLid + sum % kMulticastLids);
}

// How datagrams to the group are addressed; 0 or an errno.
int group_attributes(const ConnectionId& id, const sockaddr_in6& address, ib_uverbs_ah_attr* attr) {
  if (courier_port().attr.link_layer != IBV_LINK_LAYER_ETHERNET) {
    const ibv_gid group = group_of(address);
    *attr = handle_attributes(0, group);
    attr->dlid = group_lid(group);
    return 0;
  }
  sockaddr_in6 source = id.source;
  if (source.sin6_family != address.sin6_family) source = wildcard_like(address);
  const PortGid from = gid_for(source);
  if (from.index < 0) return ENODEV;
  if (from.is_roce_v2 && address.sin6_family == AF_INET6) return EOPNOTSUPP;  // as the kernel's has it
  *attr = handle_attributes(0, roce_group_of(address, from.is_roce_v2));
  attr->grh.sgid_index = static_cast<std::uint8_t>(from.index);
  return 0;
}

}  // namespace

int join_multicast(ConnectionId& id, const sockaddr_in6& address, std::uint64_t uid, std::uint32_t* membership) {
  if (id.qp_type != IBV_QPT_UD || !id.has_device || !is_multicast(address)) return EINVAL;
  ib_uverbs_ah_attr attr;
  if (int rc = group_attributes(id, address, &attr); rc != 0) return rc;
  Membership& made = id.memberships.emplace_back();
  made.number = *membership = manager().next_membership++;
  made.uid = uid;
  Event event = event_of(id, EventType::kMulticastJoin, 0);
  event.report.uid = uid;
  event.report.id = made.number;
  event.membership = &made;
  rdma_ucm_ud_param& ud = event.report.param.ud;
  ud.qp_num = kMulticastQpNum;
  ud.qkey = kDatagramQkey;
  ud.ah_attr = attr;
  report(id, event);
  return 0;
}

int leave_multicast(std::uint32_t membership, std::uint32_t* events_reported) {
  for (auto& [number, id] : manager().ids)
    for (auto it = id->memberships.begin(); it != id->memberships.end(); ++it) {
      if (it->number != membership) continue;
      withdraw_membership(*id, *it);
      *events_reported = it->events_reported;
      id->memberships.erase(it);
      return 0;
    }
  return ENOENT;
}

}  // namespace shadowib::cm
