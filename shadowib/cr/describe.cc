// What `shadowib status` shows of a member's objects.
#include <cstdio>

#include "shadowib/cr/participant.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

const char* type_name(ibv_qp_type type) {
  switch (type) {
    case IBV_QPT_UC:
      return "UC";
    case IBV_QPT_UD:
      return "UD";
    case IBV_QPT_XRC_SEND:
      return "XRC_SEND";
    case IBV_QPT_XRC_RECV:
      return "XRC_RECV";
    default:
      return "RC";
  }
}

const char* state_name(ibv_qp_state state) {
  static constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR", "UNKNOWN"};
  return kNames[state <= IBV_QPS_ERR ? state : IBV_QPS_UNKNOWN];
}

// How many requests a queue has taken, and how many are known to be done. The program goes on meanwhile.
struct QueueCounts {
  unsigned long long posted, retired;
};
QueueCounts sends_of(ShadowQp& qp) {
  SpinGuard guard(qp.send.lock);
  return {qp.send.head, executed_frontier(qp)};
}
QueueCounts receives_of(ShadowQp& qp) {
  SpinGuard guard(qp.receive.lock);
  return {qp.receive.head, qp.receive.retired()};
}

template <typename... Args>
void append(std::string* out, const char* format, Args... args) {
  char text[512];
  std::snprintf(text, sizeof(text), format, args...);
  *out += text;
}

}  // namespace

void describe_objects(std::string* json) {
  Registry& r = registry();
  SpinGuard guard(r.lock);
  std::size_t groups = 0;
  for (const ShadowQp& qp : r.qps) groups += qp.groups.size();
  append(
      json,
      "{\"backend\":\"%s\",\"contexts\":%zu,\"protection_domains\":%zu,\"memory_regions\":%zu,\"memory_windows\":%zu,"
      "\"completion_queues\":%zu,\"shared_receive_queues\":%zu,\"address_handles\":%zu,\"xrc_domains\":%zu,"
      "\"multicast_groups\":%zu,\"queue_pairs\":[",
      backend_loaded() ? g_backend.name : "none", r.contexts.size(), r.pds.size(), r.mrs.size(), r.mws.size(),
      r.cqs.size(), r.srqs.size(), r.ahs.size(), r.xrcds.size(), groups);
  bool first = true;
  for (ShadowQp& qp : r.qps) {
    const QueueCounts sends = sends_of(qp), receives = receives_of(qp);
    append(json,
           "%s{\"qp_num\":%u,\"type\":\"%s\",\"state\":\"%s\",\"remote_qp_num\":%u,\"remote_lid\":%u,"
           "\"sends_posted\":%llu,\"sends_retired\":%llu,\"receives_posted\":%llu,\"receives_completed\":%llu}",
           first ? "" : ",", qp.qp_num.value, type_name(qp.qp.qp_base.qp_type), state_name(qp.state()),
           qp.remote.qp_num.value, qp.remote.lid.value, sends.posted, sends.retired, receives.posted,
           receives.retired);
    first = false;
  }
  *json += "]";
  char text[4096];
  if (g_backend.describe != nullptr)
    if (std::size_t n = g_backend.describe(text, sizeof(text)); n > 0 && n <= sizeof(text)) {
      *json += ",\"backend_figures\":";
      json->append(text, n);
    }
  *json += "}";
}

// Threads are stopped, and none is inside of a change to the lists: the lock may not be waited for.
void count_objects(std::string* text) {
  Registry& r = registry();
  unsigned long long bytes = 0, connected = 0;
  for (const ShadowMr& mr : r.mrs) bytes += mr.mr.length;
  for (ShadowQp& qp : r.qps) connected += qp.state() == IBV_QPS_RTR || qp.state() == IBV_QPS_RTS;
  append(text,
         "contexts=%zu protection_domains=%zu memory_regions=%zu registered_bytes=%llu memory_windows=%zu "
         "completion_queues=%zu shared_receive_queues=%zu address_handles=%zu xrc_domains=%zu queue_pairs=%zu "
         "connected_queue_pairs=%llu",
         r.contexts.size(), r.pds.size(), r.mrs.size(), bytes, r.mws.size(), r.cqs.size(), r.srqs.size(),
         r.ahs.size(), r.xrcds.size(), r.qps.size(), connected);
}

}  // namespace shadowib
