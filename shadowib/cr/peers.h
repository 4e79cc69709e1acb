// Ids of other members: who holds a virtual LID or GID, what its queue pairs and keys really are now.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

#include "shadowib/base/status.h"
#include "shadowib/objects/address_handle.h"
#include "shadowib/objects/queue_pair.h"

namespace shadowib {

// Fills qp.remote from the virtual address in attr (IBV_QP_AV, IBV_QP_DEST_QPN as in mask) and, at generations above
// 0, turns attr into real ids. An address nobody holds becomes kNobodyLid: sends to it end in RETRY_EXC_ERR, and
// never reach a process whose real address happens to equal the virtual one. kIo: the exchange does not answer, or,
// in a process of a cluster, cannot be told that the address is another cluster's.
inline constexpr std::uint16_t kNobodyLid = 0xbfff;
inline constexpr std::uint32_t kNobodyQpNum = 0xffffff;
inline constexpr std::uint32_t kNobodySrqNum = 0xffffff;
inline constexpr std::uint32_t kNobodyKey = 0;
Status turn_address(ShadowQp& qp, ibv_qp_attr* attr, int mask);
// Likewise for an address handle, from ah.attr.
Status turn_address(ShadowAh& ah, ibv_ah_attr* attr);
inline constexpr std::uint16_t kFirstMulticastLid = 0xc000;

// The members that have the adapter open which has this virtual address: one of them has the queue pair in question.
// Asks the exchange. kIo: it does not answer, which says nothing about who is there.
Status members_at(const RemoteEnd& remote, std::vector<std::uint32_t>* members);
// Numbers of other members at a context's addresses are theirs: what is made from now on takes others. After all have
// published their directories. kIo: the exchange does not answer.
Status reserve_neighbours_numbers(const ShadowContext& context);
// Forgets cached members (a restart's epoch has its own).
void forget_peers();

}  // namespace shadowib
