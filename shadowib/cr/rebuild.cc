// Rebuilding after a restart: new real objects behind the shadows, then what had not run is posted again.
//
// Order: objects → post receives, arm the limits of shared queues → publish ids → barrier →
// connect, bind windows, arm CQs → barrier → post the unexecuted suffixes. Program threads are parked throughout.
#include "shadowib/cr/rebuild.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <algorithm>

#include "hooks/agent/agent.h"
#include "hooks/agent/loader_thread.h"
#include "hooks/job/phase.h"
#include "hooks/job/protocol.h"
#include "hooks/threads/fault.h"
#include "shadowib/base/arena.h"
#include "shadowib/base/guard.h"
#include "shadowib/base/log.h"
#include "shadowib/base/mappings.h"
#include "shadowib/cr/announce.h"
#include "shadowib/cr/border.h"
#include "shadowib/cr/helper.h"
#include "shadowib/cr/identity.h"
#include "shadowib/cr/lifted_protection.h"
#include "shadowib/cr/participant.h"
#include "shadowib/cr/peers.h"
#include "shadowib/cr/ports.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/event_delivery.h"
#include "shadowib/objects/forced_signals.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

constexpr std::int64_t kDrainTimeoutNs = 5'000'000'000;

template <typename... Args>
Status failed(int error, const char* format, Args... args) {
  char what[200];
  ::snprintf(what, sizeof(what), format, args...);
  return Status::of(Code::kRefused, error, "cannot rebuild %s: %s", what, ::strerror(error));
}

Status reload(void* choice) {
  SHADOWIB_TRY(fault_point(Phase::kLoaded));
  return reload_backend(static_cast<const char*>(choice));
}

Status rebuild_context(ShadowContext& context, ibv_device** list, int count) {
  int ordinal = context.device->ordinal;
  if (ordinal >= count)
    return Status::of(Code::kRefused, ENODEV, "the program uses %d RDMA devices, this machine's backend %s offers %d",
                      ordinal + 1, g_backend.name, count);
  context.real = g_backend.open_device(list[ordinal]);
  if (context.real == nullptr) return failed(errno, "the context of device %s", context.device->device.name);
  context.translate = true;
  call_turning(context);
  context.keys.clear();
  context.rkeys.clear();
  context.numbered.clear();
  SHADOWIB_TRY(rebuild_ports(context));
  SHADOWIB_TRY(ask_limits(context));
  note_adapter(context, g_backend.get_device_name(list[ordinal]));
  if (!context.async_events.reattach(context.program().async_fd, context.real->async_fd))
    return failed(errno, "the event descriptor %d of %s", context.program().async_fd, context.device->device.name);
  SpinGuard guard(context.async_events.lock);
  context.async_events.update_signal(!context.pending_async.empty());
  return {};
}

Status rebuild_contexts(Registry& r) {
  if (!backend_loaded() || r.devices.empty()) return {};  // not loaded: in a child that has inherited what it knows
  int count = 0;
  ibv_device** list = g_backend.get_device_list(&count);
  if (list == nullptr && r.contexts.empty()) return {};
  if (list == nullptr) return failed(errno, "the device list of backend %s", g_backend.name);
  Status status;
  for (ShadowContext& context : r.contexts)
    if (status.ok()) status = rebuild_context(context, list, count);
  note_closed_devices(list, count);
  g_backend.free_device_list(list);
  return status;
}

ibv_mr* register_whole(const ShadowMr& mr) {
  return g_backend.reg_mr(ShadowPd::of(mr.mr.pd)->real, mr.mr.addr, mr.mr.length, mr.iova, mr.access);
}

// The program has protected the memory since it registered it. An adapter goes on with the pages that it has pinned,
// and pins none that the process may not use. Null with errno; EFAULT: the memory is not wholly mapped.
Status register_protected(const ShadowMr& mr, ibv_mr** real) {
  constexpr int kWrites =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
  LiftedProtection protection;
  const bool lifted = protection.lift(mr.mr.addr, mr.mr.length, (mr.access & kWrites) != 0);
  errno = EFAULT;
  if (!lifted) return {};
  *real = register_whole(mr);
  const int refused = errno, error = protection.put_back();
  errno = refused;
  return error == 0 ? Status() : failed(error, "the protection of memory region 0x%x", mr.mr.lkey);
}

// A program may unmap memory before it deregisters it. Such a region is empty from now on: its keys exist, the
// program can deregister it, and whoever uses it gets a protection error.
ibv_mr* register_empty(const ShadowMr& mr) {
  ibv_pd* pd = ShadowPd::of(mr.mr.pd)->real;
  log_line(LogLevel::kWarn, "memory region 0x%x at %p, %zu bytes, is not wholly mapped: every use of it will fail",
           mr.mr.lkey, mr.mr.addr, mr.mr.length);
  ibv_mr* real = g_backend.reg_mr(pd, mr.mr.addr, 0, mr.iova, mr.access);
  if (real != nullptr) return real;
  // A device may refuse an empty region. A byte of ours, at its own address and without any right, is as good.
  static char nothing;
  return g_backend.reg_mr(pd, &nothing, 1, reinterpret_cast<std::uint64_t>(&nothing), 0);
}

Status register_again(const ShadowMr& mr, ibv_mr** real) {
  errno = EFAULT;
  *real = mr.unmapped ? nullptr : register_whole(mr);
  if (*real == nullptr && errno == EFAULT && !mr.unmapped) SHADOWIB_TRY(register_protected(mr, real));
  if (*real == nullptr && errno == EFAULT) *real = register_empty(mr);
  if (*real != nullptr) return {};
  return failed(errno, "memory region 0x%x at %p, %zu bytes (is the limit on locked memory too low?)", mr.mr.lkey,
                mr.mr.addr, mr.mr.length);
}

// The program may have protected registered memory before the checkpoint.
void tell_protections() {
  if (g_backend.memory_changes == nullptr) return;
  for_each_mapping([](const Mapping& m) {
    if (!m.readable || !m.writable)
      g_backend.memory_changes(reinterpret_cast<const void*>(m.start), m.end - m.start,
                               m.readable ? MemoryChange::kReadOnly : MemoryChange::kProtected);
    return true;
  });
}

Status rebuild_memory(Registry& r) {
  for (ShadowPd& pd : r.pds) {
    pd.fence = nullptr;
    pd.real = g_backend.alloc_pd(ShadowContext::of(pd.pd.context)->real);
    if (pd.real == nullptr) return failed(errno, "protection domain %u", pd.id);
  }
  for (ShadowMr& mr : r.mrs) {
    SHADOWIB_TRY(want_number_of(mr));
    SHADOWIB_TRY(register_again(mr, &mr.real));
    ShadowContext* context = ShadowContext::of(mr.mr.context);
    context->keys.insert({mr.mr.lkey}, {mr.real->lkey});
    context->rkeys.insert({mr.mr.rkey}, {mr.real->rkey});
    r.reserved_keys.push_back(mr.mr.lkey);
    r.reserved_keys.push_back(mr.mr.rkey);
  }
  tell_protections();
  std::sort(r.reserved_keys.begin(), r.reserved_keys.end());
  r.reserved_keys.erase(std::unique(r.reserved_keys.begin(), r.reserved_keys.end()), r.reserved_keys.end());
  if (r.reserved_keys.empty()) r.reserved_keys.push_back(0);  // new keys are checked from now on
  return {};
}

Status rebuild_completion(Registry& r) {
  for (ShadowChannel& channel : r.channels) {
    channel.real = g_backend.create_comp_channel(ShadowContext::of(channel.channel.context)->real);
    if (channel.real == nullptr) return failed(errno, "the completion channel at descriptor %d", channel.channel.fd);
    if (!channel.events.reattach(channel.channel.fd, guarded(Guard::kReattach) ? channel.real->fd : -1))
      return failed(errno, "the completion channel at descriptor %d", channel.channel.fd);
    SpinGuard guard(channel.events.lock);
    channel.events.update_signal(!channel.pending.empty());
  }
  for (ShadowCq& cq : r.cqs) {
    ibv_comp_channel* channel = cq.cq.channel != nullptr ? ShadowChannel::of(cq.cq.channel)->real : nullptr;
    const auto create = [&] {
      const int entries = cq.cq.cqe + static_cast<int>(cq.reserved);
      return g_backend.create_cq(ShadowContext::of(cq.cq.context)->real, entries, &cq, channel, cq.comp_vector);
    };
    cq.real = create();
    if (cq.real == nullptr && cq.swallows()) {
      give_up_forcing(cq);
      cq.real = create();
    }
    if (cq.real == nullptr) return failed(errno, "a completion queue of %d entries", cq.cq.cqe);
    cq.arming.note_rebuilt();  // from here on once for all; arm_completion_queues asks
  }
  return {};
}

Status arm_completion_queues(Registry& r) {
  for (ShadowCq& cq : r.cqs) {
    if (!cq.arming.is_armed() || !guarded(Guard::kRearm)) continue;
    if (int rc = g_backend.req_notify_cq(cq.real, cq.arming.solicited_only()); rc != 0)
      return failed(rc, "the armed state of a completion queue");
  }
  return {};
}

// Those that were opened by one file are of one domain again, whatever has become of the file.
Status rebuild_xrc_domains(Registry& r) {
  for (ShadowXrcd& xrcd : r.xrcds) xrcd.real = nullptr;
  for (ShadowXrcd& xrcd : r.xrcds) {
    ibv_xrcd* shared = nullptr;
    for (const ShadowXrcd& other : r.xrcds)
      if (other.real != nullptr && other.is_one_with(xrcd)) shared = other.real;
    if (g_backend.open_xrcd != nullptr)
      xrcd.real = g_backend.open_xrcd(ShadowContext::of(xrcd.xrcd.context)->real, -1, O_CREAT, shared);
    if (xrcd.real == nullptr)
      return failed(g_backend.open_xrcd != nullptr ? errno : EOPNOTSUPP, "an XRC domain on backend %s",
                    g_backend.name);
  }
  return {};
}

ibv_srq* create_again(ShadowSrq& srq) {
  ibv_srq_init_attr init = srq.init;
  init.srq_context = &srq;
  ibv_pd* pd = ShadowPd::of(srq.srq.pd)->real;
  errno = EOPNOTSUPP;
  if (srq.xrcd == nullptr) return g_backend.create_srq != nullptr ? g_backend.create_srq(pd, &init) : nullptr;
  ibv_srq* real = g_backend.create_xrc_srq(pd, srq.xrcd->real, srq.cq->real, &init);
  if (real != nullptr) g_backend.get_srq_num(real, &srq.real_number.value);
  return real;
}

// The event is of receives that have become few: it would come at once if there were none yet.
Status arm_limit(ShadowSrq& srq) {
  if (srq.armed_limit == 0) return {};
  ibv_srq_attr attr{};
  attr.srq_limit = srq.armed_limit;
  const int rc = g_backend.modify_srq(srq.real, &attr, IBV_SRQ_LIMIT);
  return rc == 0 ? Status() : failed(rc, "the limit of a shared receive queue");
}

Status rebuild_shared_receive_queues(Registry& r) {
  for (ShadowSrq& srq : r.srqs) {
    SHADOWIB_TRY(want_number_of(srq));
    srq.real = create_again(srq);
    if (srq.real == nullptr) return failed(errno, "a shared receive queue of %u requests", srq.init.attr.max_wr);
    if (srq.xrcd != nullptr) r.reserved_srq_nums.push_back(srq.number.value);
    if (!guarded(Guard::kArmLimitsLast)) SHADOWIB_TRY(arm_limit(srq));
    if (int rc = repost_shared_receives(srq); rc != 0) return failed(rc, "the receives of a shared receive queue");
    if (guarded(Guard::kArmLimitsLast)) SHADOWIB_TRY(arm_limit(srq));
  }
  std::sort(r.reserved_srq_nums.begin(), r.reserved_srq_nums.end());
  return {};
}

// What of a change is made again. An adapter that knows no second path has none to load: the connection goes on by
// its first, and the program sees that in the path migration state.
int replayed_mask(const ShadowQp& qp, const RecordedModify& m) {
  int mask = m.mask;
  if (!qp.drain_event_due) mask &= ~IBV_QP_EN_SQD_ASYNC_NOTIFY;  // the program has it, or will from the shim
  if ((qp.context->real_attr.device_cap_flags & IBV_DEVICE_AUTO_PATH_MIG) != 0) return mask;
  if ((mask & IBV_QP_ALT_PATH) != 0)
    log_line(LogLevel::kWarn,
             "queue pair 0x%x: this adapter knows no alternate paths, and the program's is not loaded",
             qp.qp_num.value);
  mask &= ~IBV_QP_ALT_PATH;
  if (m.attr.path_mig_state != IBV_MIG_MIGRATED) mask &= ~IBV_QP_PATH_MIG_STATE;
  return mask;
}

}  // namespace

Status replay(ShadowQp& qp, ibv_qp_state from, ibv_qp_state to) {
  ibv_qp_state at = IBV_QPS_RESET;
  for (const RecordedModify& m : qp.modifies) {
    if (m.mask & IBV_QP_STATE) at = m.attr.qp_state;
    if (at < from || at >= to) continue;
    ibv_qp_attr attr = m.attr;
    const int mask = replayed_mask(qp, m);
    if (mask == 0) continue;
    SHADOWIB_TRY(turn_address(qp, &attr, mask));
    if (int rc = g_backend.modify_qp(qp.real, &attr, mask); rc != 0)
      return failed(rc, "queue pair 0x%x: its change to state %d", qp.qp_num.value, static_cast<int>(at));
  }
  return {};
}

namespace {

Status rebuild_queue_pair(Registry& r, ShadowQp& qp) {
  ibv_qp_init_attr init = qp.init;
  init.cap = qp.real_cap;
  init.qp_context = &qp;
  if (init.send_cq != nullptr) init.send_cq = ShadowCq::of(init.send_cq)->real;
  if (init.recv_cq != nullptr) init.recv_cq = ShadowCq::of(init.recv_cq)->real;
  if (qp.srq != nullptr) init.srq = qp.srq->real;
  SHADOWIB_TRY(want_number_of(qp));
  qp.real = qp.is_target() ? g_backend.create_xrc_target(qp.xrcd->real, &init)
                           : g_backend.create_qp(ShadowPd::of(qp.qp.qp_base.pd)->real, &init);
  if (qp.real == nullptr)
    return failed(errno, "queue pair 0x%x (type %d, %u and %u requests of %u and %u elements, %u bytes inline)",
                  qp.qp_num.value, static_cast<int>(init.qp_type), qp.real_cap.max_send_wr, qp.real_cap.max_recv_wr,
                  qp.real_cap.max_send_sge, qp.real_cap.max_recv_sge, qp.real_cap.max_inline_data);
  r.number(qp);
  qp.turn_sends();
  qp.turn_receives();
  if (qp.is_datagram()) qp.receive.belongs_to({0});  // senders are turned from now on
  qp.real_post_send = g_backend.post_send;
  qp.real_post_recv = g_backend.post_recv;
  qp.remote_keys.reset();
  qp.remote_srqs.clear();
  for (ShadowQp* handle : qp.handles) {
    handle->real = qp.real;
    handle->real_post_send = g_backend.post_send;
    handle->real_post_recv = g_backend.post_recv;
  }
  qp.send.retire_to(qp.frontier);
  if (guarded(Guard::kCountFromRestart)) qp.executed_base = qp.frontier;
  r.reserved_qp_nums.push_back(qp.qp_num.value);
  SHADOWIB_TRY(replay(qp, IBV_QPS_RESET, IBV_QPS_RTR));
  if (!qp.groups.empty()) SHADOWIB_TRY(note_wired_by_multicast());
  SHADOWIB_TRY(restore_border_of(qp));
  for (const MulticastAttachment& group : qp.groups)
    if (int rc =
            g_backend.attach_mcast != nullptr ? g_backend.attach_mcast(qp.real, &group.gid, group.lid) : EOPNOTSUPP;
        rc != 0)
      return failed(rc, "queue pair 0x%x: its place in the multicast group of LID 0x%x", qp.qp_num.value, group.lid);
  WorkQueue<RecvSlot>& receives = qp.receive;
  receives.retire_to(receives.retired());
  if (qp.settled_state == IBV_QPS_RESET || qp.settled_state == IBV_QPS_ERR || qp.doomed) return {};
  if (int rc = repost_receives(qp, receives.tail()); rc != 0)
    return failed(rc, "the receives of queue pair 0x%x", qp.qp_num.value);
  return {};
}

Status rebuild_queue_pairs(Registry& r) {
  for (ShadowQp& qp : r.qps) SHADOWIB_TRY(rebuild_queue_pair(r, qp));
  std::sort(r.reserved_qp_nums.begin(), r.reserved_qp_nums.end());
  return {};
}

// A completion the backend would have delivered, put where the program will poll it.
void synthesize(ShadowQp& qp, SlotHeader& slot, ibv_cq* cq, ibv_wc_status status) {
  ibv_wc wc{};
  wc.wr_id = slot.user_wr_id;
  wc.status = status;
  wc.qp_num = qp.qp_num.value;
  wc.opcode = slot.is_receive ? IBV_WC_RECV : IBV_WC_SEND;
  slot.complete(status);
  ShadowCq* shadow = ShadowCq::of(cq);
  SpinGuard guard(shadow->refill_lock);
  shadow->refill.push_back({wc, nullptr});
  shadow->note_refill();
}

// Whatever path led to the error, only the state is left of it.
Status fail_again(ShadowQp& qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  int rc = g_backend.modify_qp(qp.real, &attr, IBV_QP_STATE);
  return rc == 0 ? Status() : failed(rc, "the error state of queue pair 0x%x", qp.qp_num.value);
}

// Some of a queue pair's completions were synthesized.
void tell_of_completions(ShadowQp& qp) {
  qp.each_cq([](ShadowCq& cq) {
    if (cq.cq.channel == nullptr || !cq.arming.is_armed()) return;
    ShadowChannel* channel = ShadowChannel::of(cq.cq.channel);
    SpinGuard guard(channel->events.lock);
    cq.arming.note_event();
    channel->pending.push_back(&cq);
    channel->events.update_signal(true);
  });
}

// Datagrams to a guest that is gone, and those behind them, which may have arrived: a network may lose them, but
// repeats none. To the program they have been sent.
void forgo_sends(ShadowQp& qp) {
  bool any = false;
  for (std::uint64_t s = qp.frontier; s < qp.send.head; ++s) {
    SendSlot& slot = qp.send.slot(s);
    if (slot.done()) continue;
    if (slot.signaled() && !slot.forced()) {
      synthesize(qp, slot, qp.init.send_cq, IBV_WC_SUCCESS);
      any = true;
    }
    slot.release();
  }
  qp.send.retire_to(qp.send.head);
  if (any) tell_of_completions(qp);
}

// The peer is gone: what a real adapter would say after its retries (H20). A queue pair to a guest may be idle.
Status bury(ShadowQp& qp) {
  const bool idle = qp.frontier == qp.send.head && qp.receive.tail() == qp.receive.head;
  for (std::uint64_t s = qp.frontier; s < qp.send.head; ++s)
    if (!qp.send.slot(s).done())
      synthesize(qp, qp.send.slot(s), qp.init.send_cq, s == qp.frontier ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR);
  WorkQueue<RecvSlot>& receives = qp.receive;
  for (std::uint64_t s = receives.tail(); s < receives.head; ++s)
    if (!receives.slot(s).done()) synthesize(qp, receives.slot(s), qp.init.recv_cq, IBV_WC_WR_FLUSH_ERR);
  qp.send.retire_to(qp.send.head);
  receives.retire_to(receives.head);
  if (!idle) tell_of_completions(qp);
  qp.settled_state = IBV_QPS_ERR;
  qp.doomed = false;
  return fail_again(qp);
}

Status rebuild_address_handles(Registry& r) {
  for (ShadowAh& ah : r.destroyed_ahs) ah.real = nullptr;
  for (auto* handles : {&r.ahs, &r.destroyed_ahs})
    for (ShadowAh& ah : *handles) ah.forget_destinations();
  r.sweep_address_handles();
  for (auto* handles : {&r.ahs, &r.destroyed_ahs})
    for (ShadowAh& ah : *handles) {
      ibv_ah_attr attr = ah.attr;
      SHADOWIB_TRY(turn_address(ah, &attr));
      ah.real = g_backend.create_ah != nullptr ? g_backend.create_ah(ShadowPd::of(ah.ah.pd)->real, &attr) : nullptr;
      if (ah.real == nullptr) return failed(errno, "an address handle to LID %u", ah.attr.dlid);
    }
  return {};
}

// The program was told of it, or will be.
Status fail_as_before(ShadowQp& qp) {
  SHADOWIB_TRY(fail_again(qp));
  if (!qp.takes_shared()) return {};
  withdraw_newest_event(*qp.context, &qp.qp.qp_base, IBV_EVENT_QP_LAST_WQE_REACHED);
  for (ShadowQp* handle : qp.handles)
    withdraw_newest_event(*qp.context, &handle->qp.qp_base, IBV_EVENT_QP_LAST_WQE_REACHED);
  return {};
}

Status connect_queue_pairs(Registry& r) {
  for (ShadowQp& qp : r.qps) {
    if (qp.doomed && guarded(Guard::kBuryDoomed))
      SHADOWIB_TRY(bury(qp));
    else if (qp.settled_state == IBV_QPS_ERR && guarded(Guard::kFailAgain))
      SHADOWIB_TRY(fail_as_before(qp));
    else
      SHADOWIB_TRY(replay(qp, IBV_QPS_RTR, IBV_QPS_SQD));
  }
  return {};
}

// Held in SQD again, empty. Returns when it has drained, and what the device may tell of that is there.
Status hold_again(ShadowQp& qp) {
  qp.drains_again = !qp.drain_event_due;
  SHADOWIB_TRY(replay(qp, IBV_QPS_SQD, IBV_QPS_SQE));
  const std::int64_t deadline = monotonic_ns() + kDrainTimeoutNs;
  for (;;) {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    const int rc = g_backend.query_qp(qp.real, &attr, IBV_QP_STATE, &init);
    if (rc == 0 && attr.sq_draining == 0) return {};
    if (rc != 0 || monotonic_ns() > deadline)
      return failed(rc != 0 ? rc : ETIMEDOUT, "queue pair 0x%x: an empty send queue does not drain", qp.qp_num.value);
  }
}

// Posts what had not run. A queue that was held in SQD is held again before, so that nothing runs that did not.
Status refill_queue_pairs(Registry& r) {
  for (ShadowQp& qp : r.qps) {
    if (qp.settled_state == IBV_QPS_SQD && guarded(Guard::kHoldAgain)) SHADOWIB_TRY(hold_again(qp));
    if (qp.frontier == qp.send.head || qp.settled_state == IBV_QPS_ERR) continue;
    if (qp.forgoes_sends) {
      forgo_sends(qp);
      continue;
    }
    if (int rc = repost_sends(qp, qp.frontier); rc != 0)
      return failed(rc, "the %llu unexecuted requests of queue pair 0x%x",
                    static_cast<unsigned long long>(qp.send.head - qp.frontier), qp.qp_num.value);
  }
  for (ShadowContext& context : r.contexts) drain_async_events(context);
  return {};
}

Status pass_barrier(const JobInfo& job, Exchange* exchange, const char* name) {
  const std::string prefix = restart_prefix(job.epoch, job.recovery);
  return exchange->barrier(prefix + name, std::to_string(job.member), static_cast<int>(job.member_count),
                           barrier_ms(job), prefix + "abort");
}

// What a restart's time went into, for the log.
class PhaseTimes {
 public:
  void end(const char* phase) {
    const std::int64_t now = monotonic_ns();
    char text[64];
    ::snprintf(text, sizeof(text), "%s%s %.2f", text_.empty() ? "" : ", ", phase,
               static_cast<double>(now - began_ns_) / 1e6);
    text_ += text;
    began_ns_ = now;
  }
  const char* text() const { return text_.c_str(); }

 private:
  std::int64_t began_ns_ = monotonic_ns();
  std::string text_;
};

}  // namespace

Status rebuild_objects(const JobInfo& job, Exchange* exchange) {
  PhaseTimes times;
  const std::size_t requested = arena_requested_bytes();
  forget_peers();
  if (backend_loaded())  // else the program has opened no device, and may do so later
    SHADOWIB_TRY(run_on_loader_thread(reload, const_cast<char*>(job.backend), static_cast<int>(job.step_ms)));
  // The programs are parked until everybody is ready: what they cannot answer meanwhile must use up no retries.
  if (g_backend.set_paused != nullptr && guarded(Guard::kPauseRetries)) g_backend.set_paused(1);
  Registry& r = registry();
  if (!goes_back()) forget_border_logs();
  SHADOWIB_TRY(restore_adapter());
  times.end("load");
  SHADOWIB_TRY(rebuild_contexts(r));
  SHADOWIB_TRY(rebuild_memory(r));
  plan_forced_signals();
  SHADOWIB_TRY(rebuild_completion(r));
  SHADOWIB_TRY(rebuild_xrc_domains(r));
  SHADOWIB_TRY(rebuild_shared_receive_queues(r));
  SHADOWIB_TRY(rebuild_queue_pairs(r));
  // Behind them: a kernel lets what is newest go first at a process's end, and Linux' rxe waits for a minute before
  // it destroys a queue pair that a window is bound by.
  SHADOWIB_TRY(rebuild_windows(r));
  for (ShadowContext& context : r.contexts) SHADOWIB_TRY(claim_lids(context.ports));
  SHADOWIB_TRY(claim_closed_devices());
  SHADOWIB_TRY(fault_point(Phase::kObjects));
  SHADOWIB_TRY(publish_directory());
  SHADOWIB_TRY(publish_identities());
  for (ShadowQp& qp : r.qps) SHADOWIB_TRY(announce_source(qp));
  times.end("objects");
  SHADOWIB_TRY(fault_point(Phase::kPublish));
  SHADOWIB_TRY(pass_barrier(job, exchange, "published"));
  times.end("wait");
  for (const ShadowContext& context : r.contexts) SHADOWIB_TRY(reserve_neighbours_numbers(context));
  SHADOWIB_TRY(rebuild_address_handles(r));
  SHADOWIB_TRY(connect_queue_pairs(r));
  SHADOWIB_TRY(rebind_windows(r));
  SHADOWIB_TRY(arm_completion_queues(r));
  times.end("connect");
  SHADOWIB_TRY(fault_point(Phase::kConnect));
  SHADOWIB_TRY(pass_barrier(job, exchange, "connected"));
  times.end("wait");
  SHADOWIB_TRY(fault_point(Phase::kRefill));
  SHADOWIB_TRY(refill_queue_pairs(r));
  open_restored_border();
  times.end("refill");
  if (!r.contexts.empty()) SHADOWIB_TRY(start_helper());
  log_line(LogLevel::kInfo, "rebuilding took ms: %s; %zu queue pairs, %llu exchange operations, %zu bytes allocated",
           times.text(), r.qps.size(), static_cast<unsigned long long>(exchange->operations()),
           arena_requested_bytes() - requested);
  return {};
}

}  // namespace shadowib
