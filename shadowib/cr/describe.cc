// What `shadowib status` shows of a member's objects.
#include <cstdio>

#include "shadowib/base/json_writer.h"
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
  JsonWriter writer(json);
  writer.begin_object().member("backend", backend_loaded() ? g_backend.name : "none");
  writer.member("contexts", r.contexts.size()).member("protection_domains", r.pds.size());
  writer.member("memory_regions", r.mrs.size()).member("memory_windows", r.mws.size());
  writer.member("completion_queues", r.cqs.size()).member("shared_receive_queues", r.srqs.size());
  writer.member("address_handles", r.ahs.size()).member("xrc_domains", r.xrcds.size());
  writer.member("multicast_groups", groups).key("queue_pairs").begin_array();
  for (ShadowQp& qp : r.qps) {
    const QueueCounts sends = sends_of(qp), receives = receives_of(qp);
    writer.begin_object().member("qp_num", qp.qp_num.value).member("type", type_name(qp.qp.qp_base.qp_type));
    writer.member("state", state_name(qp.state())).member("remote_qp_num", qp.remote.qp_num.value);
    writer.member("remote_lid", qp.remote.lid.value).member("sends_posted", sends.posted);
    writer.member("sends_retired", sends.retired).member("receives_posted", receives.posted);
    writer.member("receives_completed", receives.retired).end_object();
  }
  writer.end_array();
  char text[4096];
  if (g_backend.describe != nullptr)
    if (std::size_t n = g_backend.describe(text, sizeof(text)); n > 0 && n <= sizeof(text))
      writer.key("backend_figures").raw(std::string_view(text, n));
  writer.end_object();
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
