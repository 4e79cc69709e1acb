#include "shadowib/cm/address.h"

#include <errno.h>

#include "shadowib/cm/courier.h"
#include "shadowib/cm/listeners.h"

namespace shadowib::cm {
namespace {

constexpr std::uint16_t kFirstFreePort = 32768, kFreePorts = 28232;  // the kernel's default range

bool is_ip(const sockaddr_in6& address) { return address.sin6_family == AF_INET || address.sin6_family == AF_INET6; }

// Whether another id of this process stands in the way of that address and port, and if not, whether one holds the
// port already.
enum class Neighbours { kNone, kShare, kConflict };
Neighbours neighbours(const ConnectionId& id, const sockaddr_in6& address) {
  Neighbours found = Neighbours::kNone;
  for (auto& [number, other] : manager().ids) {
    if (!other->has_claim || other->port_space != id.port_space || port_of(other->source) != port_of(address))
      continue;
    const bool apart = other->source.sin6_family == address.sin6_family && !same_ip(other->source, address) &&
                       !is_wildcard(other->source) && !is_wildcard(address);
    if (!apart && !(id.reuse_address && other->reuse_address)) return Neighbours::kConflict;
    found = Neighbours::kShare;
  }
  return found;
}

int take_port(ConnectionId& id, sockaddr_in6* address) {
  if (port_of(*address) != 0) {
    switch (neighbours(id, *address)) {
      case Neighbours::kConflict:
        return EADDRINUSE;
      case Neighbours::kShare:
        return 0;
      case Neighbours::kNone:
        break;
    }
    if (int rc = claim_port(id.port_space, port_of(*address)); rc != 0) return rc;
    id.has_claim = true;
    return 0;
  }
  const std::uint32_t start = random_bits() % kFreePorts;
  for (std::uint32_t i = 0; i < kFreePorts; ++i) {
    set_port(address, static_cast<std::uint16_t>(kFirstFreePort + (start + i) % kFreePorts));
    if (neighbours(id, *address) != Neighbours::kNone) continue;
    int rc = claim_port(id.port_space, port_of(*address));
    if (rc == EADDRINUSE) continue;
    id.has_claim = rc == 0;
    return rc;
  }
  return EADDRNOTAVAIL;
}

}  // namespace

sockaddr_in6 any_address() {
  sockaddr_in6 any{};
  any.sin6_family = AF_INET;
  return any;
}

int bind(ConnectionId& id, const sockaddr_in6& address) {
  if (id.state != State::kIdle) return EINVAL;
  if (!is_ip(address)) return EAFNOSUPPORT;
  if (!is_wildcard(address) && !is_local(address)) return EADDRNOTAVAIL;
  sockaddr_in6 bound = address;
  if (int rc = take_port(id, &bound); rc != 0) return rc;
  id.source = bound;
  id.has_device = !is_wildcard(bound);
  id.state = State::kBound;
  return 0;
}

int resolve_address(ConnectionId& id, const sockaddr_in6& source, const sockaddr_in6& destination) {
  if (!is_ip(destination)) return EAFNOSUPPORT;
  if (id.state == State::kIdle) {
    if (int rc = bind(id, is_ip(source) ? source : wildcard_like(destination)); rc != 0) return rc;
  }
  if (id.state != State::kBound) return EINVAL;
  sockaddr_in6 from;
  const int error = route_to(destination, &from);
  if (error != 0 && !is_multicast(destination)) return error;
  if (is_wildcard(id.source) && error == 0) {
    const std::uint16_t port = port_of(id.source);
    id.source = from;
    set_port(&id.source, port);
  }
  id.destination = destination;
  id.has_device = true;
  id.state = State::kAddressResolved;
  Address peer;
  if (!is_multicast(destination) && find_listener(id.port_space, destination, &peer)) {
    id.remote.lid = peer.lid;
    id.remote.gid = peer.gid;
  }
  report(id, event_of(id, EventType::kAddressResolved, 0));
  return 0;
}

int resolve_route(ConnectionId& id) {
  if (id.state != State::kAddressResolved) return EINVAL;
  Address peer;
  if (find_listener(id.port_space, id.destination, &peer)) {
    id.remote.lid = peer.lid;
    id.remote.gid = peer.gid;
  }
  id.has_path = true;
  id.state = State::kRouteResolved;
  report(id, event_of(id, EventType::kRouteResolved, 0));
  return 0;
}

}  // namespace shadowib::cm
