// The one exported symbol.
#include <errno.h>

#include <algorithm>
#include <cstdio>

#include "ib2tcp/address_handle.h"
#include "ib2tcp/border.h"
#include "ib2tcp/completion.h"
#include "ib2tcp/device.h"
#include "ib2tcp/engine.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/memory.h"
#include "ib2tcp/memory_window.h"
#include "ib2tcp/multicast.h"
#include "ib2tcp/pinned.h"
#include "ib2tcp/queue_pair.h"
#include "ib2tcp/rendezvous.h"
#include "ib2tcp/shared_receive_queue.h"
#include "ib2tcp/transport.h"
#include "ib2tcp/xrc.h"
#include "shadowib/base/arena.h"

namespace shadowib::ib2tcp {
namespace {

std::size_t describe(char* buffer, std::size_t capacity) {
  EngineGuard guard;
  const Statistics& s = g_engine->statistics;
  std::size_t up = 0;
  for (Link* link : g_engine->links()) up += link->up();
  int n = std::snprintf(
      buffer, capacity,
      "{\"objects\": %d, \"links\": %zu, \"links_up\": %zu, \"links_lost\": %lu, \"links_held\": %lu, "
      "\"queue_pairs\": %u, "
      "\"memory_regions\": %u, \"memory_windows\": %u, "
      "\"frames_sent\": %lu, \"frames_received\": %lu, \"acks_sent\": %lu, \"rnr_naks\": %lu, "
      "\"frames_refused\": %lu, \"handshakes_refused\": %lu, \"helper_turns\": %lu, \"arena_bytes\": %zu}",
      g_engine->objects.load(), g_engine->links().size(), up, s.links_lost.load(), s.links_held.load(),
      g_engine->qps.live(), g_engine->mrs.live(), g_engine->mws.live(), s.frames_sent.load(),
      s.frames_received.load(), s.acks_sent.load(), s.rnr_naks.load(), s.frames_refused.load(),
      s.handshakes_refused.load(), s.helper_turns.load(), arena_mapped_bytes());
  if (n > 0 && g_engine->rendezvous != nullptr && static_cast<std::size_t>(n) < capacity) {
    // In place of the closing brace.
    const std::size_t at = static_cast<std::size_t>(n) - 1;
    n = std::snprintf(buffer + at, capacity - at, ", ") + static_cast<int>(at);
    n += g_engine->rendezvous->describe(buffer + n, capacity - static_cast<std::size_t>(n));
    if (static_cast<std::size_t>(n) < capacity)
      n += std::snprintf(buffer + n, capacity - static_cast<std::size_t>(n), "}");
  }
  return n < 0 ? 0 : std::min(static_cast<std::size_t>(n), capacity == 0 ? 0 : capacity - 1);
}

constexpr BackendOps kOps = {
    .abi_version = kBackendAbiVersion,
    .name = "ib2tcp",
    .get_device_list = get_device_list,
    .free_device_list = free_device_list,
    .get_device_name = get_device_name,
    .get_device_guid = get_device_guid,
    .get_device_index = get_device_index,
    .open_device = open_device,
    .close_device = close_device,
    .query_device = query_device,
    .query_port = query_port,
    .query_gid = query_gid,
    .query_gid_type = query_gid_type,
    .query_pkey = query_pkey,
    .get_async_event = get_async_event,
    .ack_async_event = ack_async_event,
    .alloc_pd = alloc_pd,
    .dealloc_pd = dealloc_pd,
    .reg_mr = reg_mr,
    .dereg_mr = dereg_mr,
    .rereg_mr = rereg_mr,
    .alloc_mw = alloc_mw,
    .dealloc_mw = dealloc_mw,
    .create_comp_channel = create_comp_channel,
    .destroy_comp_channel = destroy_comp_channel,
    .create_cq = create_cq,
    .destroy_cq = destroy_cq,
    .resize_cq = resize_cq,
    .poll_cq = poll_cq,
    .req_notify_cq = req_notify_cq,
    .get_cq_event = get_cq_event,
    .ack_cq_events = ack_cq_events,
    .create_qp = create_qp,
    .modify_qp = modify_qp,
    .query_qp = query_qp,
    .destroy_qp = destroy_qp,
    .post_send = post_send,
    .post_recv = post_recv,
    .create_ah = create_ah,
    .destroy_ah = destroy_ah,
    .attach_mcast = attach_mcast,
    .detach_mcast = detach_mcast,
    .purges_completions = true,
    .create_srq = create_srq,
    .modify_srq = modify_srq,
    .query_srq = query_srq,
    .destroy_srq = destroy_srq,
    .post_srq_recv = post_srq_recv,
    .open_xrcd = open_xrcd,
    .close_xrcd = close_xrcd,
    .create_xrc_srq = create_xrc_srq,
    .get_srq_num = get_srq_num,
    .create_xrc_target = create_xrc_target,
    .sq_executed = sq_executed,
    .progress = [](int timeout_ms) { return g_engine->progress(timeout_ms); },
    .wake = [] { g_engine->wake(); },
    .set_paused = [](int paused) { g_engine->pause.set(paused != 0); },
    .memory_changes = memory_changes,
    .set_cluster = set_cluster,
    .freeze_border = freeze_border,
    .held_stamps = held_stamps,
    .border_facts = border_facts,
    .cluster_gone = cluster_gone,
    .border_state = border_state,
    .restore_border = restore_border,
    .gate_earliest = gate_earliest,
    .set_gate = set_gate,
    .logged_since = logged_since,
    .judge_cluster = judge_cluster,
    .clc_collected = clc_collected,
    .identity = identity,
    .restore_identity = restore_identity,
    .want_number = want_number,
    .describe = describe,
};

}  // namespace
}  // namespace shadowib::ib2tcp

extern "C" __attribute__((visibility("default"))) int shadowib_backend_entry(const shadowib::HostServices* host,
                                                                             shadowib::BackendOps* ops) {
  using namespace shadowib;
  // First of all: from here on every allocation is memory that belongs to no image.
  arena_exclude_from_image(host->map, host->unmap);
  ib2tcp::g_host = host;
  if (host->abi_version != kBackendAbiVersion) {
    ib2tcp::log_message(LogLevel::kError, "this library speaks backend interface %u, the shim %u; reinstall both",
                        kBackendAbiVersion, host->abi_version);
    return EPROTO;
  }
  if (const char* provider = ib2tcp::ofi_provider(host->config("SHADOWIB_IB2TCP_TRANSPORT")))
    if (int rc = ib2tcp::load_ofi(provider); rc != 0) return rc;
  ib2tcp::g_engine = new ib2tcp::Engine;
  if (int rc = ib2tcp::g_engine->open(); rc != 0) {
    ib2tcp::log_message(LogLevel::kError, "cannot create epoll descriptors: raise the limit of open files");
    return rc;
  }
  *ops = ib2tcp::kOps;
  return 0;
}
