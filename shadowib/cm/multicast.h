// Multicast groups of ids. librdmacm attaches the queue pair itself when the event tells it the group's address.
#pragma once

#include "shadowib/cm/connection_id.h"

namespace shadowib::cm {

// 0 or an errno.
int join_multicast(ConnectionId& id, const sockaddr_in6& address, std::uint64_t uid, std::uint32_t* membership);
int leave_multicast(std::uint32_t membership, std::uint32_t* events_reported);

}  // namespace shadowib::cm
