#include "shadowib/cm/attributes.h"

#include <arpa/inet.h>
#include <errno.h>

#include <cstring>

#include "shadowib/base/json_writer.h"
#include "shadowib/cm/courier.h"

namespace shadowib::cm {
namespace {

constexpr std::uint16_t kDefaultPkey = 0xffff;
constexpr std::uint8_t kDefaultAckTimeout = 18, kMinRnrTimer = 0, kRate = 3;  // 1 s; 655 ms, as the kernel; 10 Gb/s
constexpr std::uint8_t kExactly = 2;                                          // selector of a path record

bool is_xrc_initiator(const ConnectionId& id) { return id.qp_type == IBV_QPT_XRC_SEND; }
bool is_xrc_target(const ConnectionId& id) { return id.qp_type == IBV_QPT_XRC_RECV; }

const char* port_space_name(std::uint16_t port_space) {
  switch (port_space) {
    case RDMA_PS_TCP:
      return "tcp";
    case RDMA_PS_UDP:
      return "udp";
    case RDMA_PS_IPOIB:
      return "ipoib";
    default:
      return "ib";
  }
}

const char* state_name(State state) {
  static const char* const kNames[] = {"idle",      "bound",     "address resolved", "route resolved",
                                       "listening", "requested", "answered",         "asked",
                                       "accepted",  "connected", "disconnecting",    "ended"};
  return kNames[static_cast<int>(state)];
}

// IP address and port; empty if not set.
std::string text_of(const sockaddr_in6& address) {
  if (address.sin6_family == 0) return "";
  const bool v4 = address.sin6_family == AF_INET;
  const void* ip =
      v4 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr) : &address.sin6_addr;
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(address.sin6_family, ip, text, sizeof(text));
  return (v4 ? text : "[" + std::string(text) + "]") + ":" + std::to_string(ntohs(address.sin6_port));
}

void to_init(const ConnectionId& id, ib_uverbs_qp_attr* attr) {
  attr->port_num = courier_port().number;
  attr->qp_attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (id.qp_type == IBV_QPT_UD) {
    attr->qkey = kDatagramQkey;
    attr->qp_attr_mask |= IBV_QP_QKEY;
  } else {
    attr->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (id.responder_resources != 0) attr->qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    attr->qp_attr_mask |= IBV_QP_ACCESS_FLAGS;
  }
}

void to_rtr(const ConnectionId& id, ib_uverbs_qp_attr* attr) {
  attr->ah_attr = handle_attributes(id.remote.lid, id.remote.gid);
  attr->path_mtu = courier_port().attr.active_mtu;
  attr->dest_qp_num = id.remote.qp_num;
  attr->rq_psn = id.remote.psn;
  attr->qp_attr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (is_xrc_initiator(id)) return;
  attr->max_dest_rd_atomic = id.responder_resources;
  attr->min_rnr_timer = kMinRnrTimer;
  attr->qp_attr_mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
}

void to_rts(const ConnectionId& id, ib_uverbs_qp_attr* attr) {
  attr->sq_psn = id.psn;
  attr->timeout = id.ack_timeout != 0 ? id.ack_timeout : kDefaultAckTimeout;
  attr->qp_attr_mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT;
  if (is_xrc_target(id)) return;
  // How often the peer wants to be tried again; of the time-outs the active side's word counts.
  attr->retry_cnt = id.retry_count != 0 ? id.retry_count : id.remote.retry_count;
  attr->rnr_retry = id.remote.rnr_retry_count;
  attr->max_rd_atomic = id.initiator_depth;
  attr->qp_attr_mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
}

}  // namespace

ib_uverbs_ah_attr handle_attributes(std::uint32_t lid, const ibv_gid& gid) {
  ib_uverbs_ah_attr attr{};
  attr.dlid = static_cast<std::uint16_t>(lid);
  attr.port_num = courier_port().number;
  if (lid != 0) return attr;
  attr.is_global = 1;
  std::memcpy(attr.grh.dgid, gid.raw, sizeof(attr.grh.dgid));
  attr.grh.sgid_index = courier_port().gid_index;
  attr.grh.hop_limit = 64;
  return attr;
}

rdma_ucm_query_route_resp route_of(const ConnectionId& id) {
  rdma_ucm_query_route_resp route{};
  route.src_addr = id.source;
  route.dst_addr = id.destination;
  route.ibdev_index = ~0u;
  if (!id.has_device) return route;
  const Port& port = courier_port();
  route.node_guid = port.node_guid;
  route.ibdev_index = static_cast<std::uint32_t>(port.device_index);
  route.port_num = port.number;
  ib_user_path_rec& path = route.ib_route[0];
  std::memcpy(path.sgid, port.gid.raw, sizeof(path.sgid));
  std::memcpy(path.dgid, id.remote.gid.raw, sizeof(path.dgid));
  path.pkey = htons(kDefaultPkey);
  if (!id.has_path) return route;
  route.num_paths = 1;
  path.slid = htons(port.attr.lid);
  path.dlid = htons(static_cast<std::uint16_t>(id.remote.lid));
  path.reversible = 1;
  path.numb_path = 1;
  path.hop_limit = 64;
  path.mtu = port.attr.active_mtu;
  path.rate = kRate;
  path.packet_life_time = kDefaultAckTimeout - 1;
  path.mtu_selector = path.rate_selector = path.packet_life_time_selector = kExactly;
  return route;
}

void describe_ids(std::string* json) {
  ManagerGuard guard;
  JsonWriter writer(json);
  writer.key("rdma_cm").begin_object().member("event_channels", manager().channels.size()).key("ids").begin_array();
  for (auto& [number, id] : manager().ids) {
    writer.begin_object().member("id", number).member("port_space", port_space_name(id->port_space));
    writer.member("state", state_name(id->state)).member("source", text_of(id->source));
    writer.member("destination", text_of(id->destination)).end_object();
  }
  writer.end_array().end_object();
}

int queue_pair_attributes(const ConnectionId& id, std::uint32_t state, ib_uverbs_qp_attr* attr) {
  *attr = {};
  attr->qp_state = state;
  if (!id.has_device) return EINVAL;
  switch (state) {
    case IBV_QPS_INIT:
      to_init(id, attr);
      return 0;
    case IBV_QPS_RTR:
      if (id.state != State::kAsked && id.state != State::kAnswered) return EINVAL;
      to_rtr(id, attr);
      return 0;
    case IBV_QPS_RTS:
      if (id.state != State::kAsked && id.state != State::kAnswered) return EINVAL;
      to_rts(id, attr);
      return 0;
    default:
      return EINVAL;
  }
}

}  // namespace shadowib::cm
