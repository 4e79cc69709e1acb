// The places of the program's port addresses on its present adapter.
//
// The program goes on to name GIDs by the indices it was told, LIDs where it had LIDs and none where it had none. The
// adapter may have its GIDs in other places, others of them, or a link layer that needs a global route with every
// address (RoCE).
#pragma once

#include "shadowib/abi/backend.h"
#include "shadowib/base/status.h"
#include "shadowib/cr/published_ids.h"
#include "shadowib/objects/context.h"

namespace shadowib {

// Asks the adapter about the ports of a context just opened: what the program is told of them and what they are.
Status record_ports(ShadowContext& context);
// Asks the adapter of a new generation, and finds what stands for each GID the program knows.
Status rebuild_ports(ShadowContext& context);

// The entry of `real` that stands best for `known`, the program's at `index`: the same GID, one of its kind, any.
// -1: there is none.
int find_substitute(const std::vector<RecordedGid>& real, const RecordedGid& known, int index);
// A real entry of the port that leads to `dgid`: the program's choice if it does, else one of the same family.
int source_index(const ShadowPort& port, int program_index, const ibv_gid& dgid);
// Notes where the program sends from, which a route of its own names.
void note_source(ShadowContext& context, const ibv_ah_attr& route);
// The program's GID for what leaves from a real one: the one that it names, if that is this one really or none is.
ibv_gid program_source(const ShadowPort& port, const ibv_gid& real);
// The program's GID that a datagram from `from` (as the program knows it) really came to. Where several are one now,
// it is one of the same family, preferably the one that the program sends from. A group's stays as it is.
RecordedGid program_gid(const ShadowContext& context, const ibv_gid& real, const ibv_gid& from);

// For each index of `known`, the program's P_Keys: the place in `real` with the same partition, as the same kind of
// member if possible; -1: none. An adapter that has one place only knows no partitions, and that stands for all.
std::vector<int> find_partitions(const std::vector<std::uint16_t>& real, const std::vector<std::uint16_t>& known);

// Fills in a route on this generation's adapter. `peer`: the port it leads to, or nullptr: to nobody.
void set_route(const ShadowContext& context, const DirectoryPort* peer, ibv_ah_attr* attr);
// Likewise for a multicast group, whose GID is the same everywhere.
void set_multicast_route(const ShadowContext& context, ibv_ah_attr* attr);
// The path MTU of a route from that port to `peer`: `asked`, or what both can do. Both ends work out the same.
ibv_mtu possible_mtu(const ShadowContext& context, std::uint8_t port_num, const DirectoryPort* peer, ibv_mtu asked);

}  // namespace shadowib
