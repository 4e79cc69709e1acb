#include "shadowib/cm/multicast.h"

#include <arpa/inet.h>
#include <errno.h>

#include <cstring>

#include "shadowib/cm/attributes.h"
#include "shadowib/cm/directory.h"
#include "shadowib/cr/peers.h"

namespace shadowib::cm {
namespace {

constexpr std::uint32_t kMulticastQpNum = 0xffffff;
constexpr std::uint16_t kMulticastLids = 0x3fff;

}  // namespace

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

std::uint16_t group_lid(const ibv_gid& group) {
  std::uint32_t sum = 0;
  for (std::uint8_t byte : group.raw) sum = sum * 31 + byte;
  return static_cast<std::uint16_t>(kFirstMulticastLid + sum % kMulticastLids);
}

int join_multicast(ConnectionId& id, const sockaddr_in6& address, std::uint64_t uid, std::uint32_t* membership) {
  if (id.qp_type != IBV_QPT_UD || !id.has_device || !is_multicast(address)) return EINVAL;
  Membership& made = id.memberships.emplace_back();
  made.number = *membership = manager().next_membership++;
  made.uid = uid;
  const ibv_gid group = group_of(address);
  Event event = event_of(id, EventType::kMulticastJoin, 0);
  event.report.uid = uid;
  event.report.id = made.number;
  event.membership = &made;
  rdma_ucm_ud_param& ud = event.report.param.ud;
  ud.qp_num = kMulticastQpNum;
  ud.qkey = kDatagramQkey;
  ud.ah_attr = handle_attributes(0, group);
  ud.ah_attr.dlid = group_lid(group);
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
