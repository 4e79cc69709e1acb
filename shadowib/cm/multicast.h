// Multicast groups of ids. librdmacm attaches the queue pair itself when the event tells it the group's address.
#pragma once

#include "shadowib/cm/connection_id.h"

namespace shadowib::cm {

// The group of an IP address, as IP over InfiniBand has it (RFC 4391), with the connection manager's mark.
ibv_gid group_of(const sockaddr_in6& address);
std::uint16_t group_lid(const ibv_gid& group);

// 0 or an errno.
int join_multicast(ConnectionId& id, const sockaddr_in6& address, std::uint64_t uid, std::uint32_t* membership);
int leave_multicast(std::uint32_t membership, std::uint32_t* events_reported);

}  // namespace shadowib::cm
