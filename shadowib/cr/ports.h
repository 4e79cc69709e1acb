// What the addresses of the program's ports are on the adapter that it has now.
//
// The program goes on to name GIDs by the indices it was told, LIDs where it had LIDs and none where it had none. The
// adapter may have its GIDs in other places, others of them, or a link layer that needs a global route with every
// address (RoCE).
#pragma once

#include "shadowib/abi/backend.h"
#include "shadowib/base/status.h"
#include "shadowib/cr/directory.h"
#include "shadowib/objects/context.h"

namespace shadowib {

// Asks the adapter about the ports of a context just opened: what the program is told of them and what they are.
Status record_ports(ShadowContext& context);
// Asks the adapter of a new generation, and finds what stands for each GID the program knows.
Status rebuild_ports(ShadowContext& context);

// The entry of `real` that stands best for `known`, the program's at `index`: the same GID, one of its kind, any.
// -1: there is none.
int find_substitute(const std::vector<RecordedGid>& real, const RecordedGid& known, int index);
// Of the port's real entries one that leads to `dgid`: the program's choice if it does, else one of the same family.
int source_index(const ShadowPort& port, int program_index, const ibv_gid& dgid);

// Fills in a route on this generation's adapter. `peer`: the port it leads to, or nullptr: to nobody.
void set_route(const ShadowContext& context, const DirectoryPort* peer, ibv_ah_attr* attr);
// The same of a multicast group, whose GID is the same everywhere.
void set_multicast_route(const ShadowContext& context, ibv_ah_attr* attr);
// The path MTU of a route from that port to `peer`: `asked`, or what both can do. Both ends work out the same.
ibv_mtu possible_mtu(const ShadowContext& context, std::uint8_t port_num, const DirectoryPort* peer, ibv_mtu asked);

}  // namespace shadowib
