// Addresses of ids: binding, and resolution of where a peer is.
#pragma once

#include "shadowib/cm/connection_id.h"

namespace shadowib::cm {

sockaddr_in6 any_address();

// 0 or an errno. An event tells the result, as from the kernel, though nothing takes long.
int bind(ConnectionId& id, const sockaddr_in6& address);
int resolve_address(ConnectionId& id, const sockaddr_in6& source, const sockaddr_in6& destination);
int resolve_route(ConnectionId& id);

}  // namespace shadowib::cm
