// The facts that an id tells librdmacm of itself: addresses, paths, the attributes of its queue pair.
#pragma once

#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_cm.h>

#include <string>

#include "shadowib/cm/connection_id.h"

namespace shadowib::cm {

inline constexpr std::uint32_t kDatagramQkey = 0x01234567;  // RDMA_UDP_QKEY

ib_uverbs_ah_attr handle_attributes(std::uint32_t lid, const ibv_gid& gid);

rdma_ucm_query_route_resp route_of(const ConnectionId& id);

// The attributes that take its queue pair to `state` (enum ibv_qp_state); 0 or EINVAL.
int queue_pair_attributes(const ConnectionId& id, std::uint32_t state, ib_uverbs_qp_attr* attr);

// Appends ',"rdma_cm":{...}' for `shadowib status`. Takes the lock.
void describe_ids(std::string* json);

}  // namespace shadowib::cm
