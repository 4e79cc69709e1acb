#include "shadowib/datapath/event_delivery.h"

#include <algorithm>
#include <iterator>

#include "shadowib/base/guard.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/backend.h"
#include "shadowib/objects/queue_pair.h"

namespace shadowib {
namespace {

// True if the event was for completions that are ours alone: there is nothing for the program to poll, and the queue
// is armed again as it was.
bool is_for_swallowed(ShadowCq& cq) {
  const auto nothing_kept = [&cq] {
    drain_completions(cq);
    return !cq.kept_since_armed.load(std::memory_order_relaxed);
  };
  if (!cq.has_forced.load(std::memory_order_relaxed) || !guarded(Guard::kHideForcedEvents) || !nothing_kept())
    return false;
  (void)g_backend.req_notify_cq(cq.real, cq.arming.solicited_only());
  if (nothing_kept()) return true;
  cq.arming.note_surplus();  // what came in between may have no event of its own, or one
  return false;
}

ShadowCq* take_from_backend(ShadowChannel& channel) {
  ibv_cq* real = nullptr;
  while (g_backend.get_cq_event(channel.real, &real) == 0) {
    g_backend.ack_cq_events(real, 1);
    auto* cq = static_cast<ShadowCq*>(real->cq_context);
    if (cq->arming.take_surplus() || is_for_swallowed(*cq)) continue;
    cq->arming.note_event();
    return cq;
  }
  return nullptr;
}

bool names_qp(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return true;
    default:
      return false;
  }
}

bool names_srq(ibv_event_type type) { return type == IBV_EVENT_SRQ_LIMIT_REACHED || type == IBV_EVENT_SRQ_ERR; }

// Each handle of an XRC target hears of what befalls it. The first event is the caller's, the others wait.
void tell_handles(ShadowContext& context, const ShadowQp& qp, ibv_async_event* event)
    SHADOWIB_REQUIRES(context.async_events.lock) {
  std::size_t first = 0;
  if (qp.closed) event->element.qp = &qp.handles[first++]->qp.qp_base;
  for (std::size_t i = first; i < qp.handles.size(); ++i) {
    context.pending_async.push_back(*event);
    context.pending_async.back().element.qp = &qp.handles[i]->qp.qp_base;
  }
}

// That a send queue has drained once more since a restart has put it into SQD again: Linux' rxe tells it without
// having been asked to.
bool is_of_restart(const ibv_async_event& real) {
  if (real.event_type != IBV_EVENT_SQ_DRAINED) return false;
  auto* qp = static_cast<ShadowQp*>(real.element.qp->qp_context);
  return !qp->drain_event_due.exchange(false) && qp->drains_again;
}

bool take_async_from_backend(ShadowContext& context, ibv_async_event* event)
    SHADOWIB_REQUIRES(context.async_events.lock) {
  ibv_async_event real{};
  for (;;) {
    if (g_backend.get_async_event(context.real, &real) != 0) return false;
    if (!is_of_restart(real)) break;
    g_backend.ack_async_event(&real);
  }
  *event = real;
  if (names_qp(real.event_type)) {
    auto* qp = static_cast<ShadowQp*>(real.element.qp->qp_context);
    event->element.qp = &qp->qp.qp_base;
    tell_handles(context, *qp, event);
  } else if (real.event_type == IBV_EVENT_CQ_ERR) {
    event->element.cq = &static_cast<ShadowCq*>(real.element.cq->cq_context)->cq;
  } else if (names_srq(real.event_type)) {
    event->element.srq = &static_cast<ShadowSrq*>(real.element.srq->srq_context)->srq;
  }
  g_backend.ack_async_event(&real);
  return true;
}

void drain_locked(ShadowChannel& channel) SHADOWIB_REQUIRES(channel.events.lock) {
  while (ShadowCq* cq = take_from_backend(channel))
    if (guarded(Guard::kKeepEvents)) channel.pending.push_back(cq);
  channel.events.update_signal(!channel.pending.empty());
}

}  // namespace

ShadowCq* next_event(ShadowChannel& channel) {
  SpinGuard guard(channel.events.lock);
  ShadowCq* cq = nullptr;
  if (!channel.pending.empty()) {
    cq = channel.pending.front();
    channel.pending.pop_front();
    channel.events.update_signal(!channel.pending.empty());
  } else {
    cq = take_from_backend(channel);
  }
  // Under the lock: who destroys the queue finds the event here still, or waits until it is acknowledged.
  if (cq != nullptr) cq->events.note_delivered();
  return cq;
}

void drain_events(ShadowChannel& channel) {
  SpinGuard guard(channel.events.lock);
  drain_locked(channel);
}

void withdraw_surplus(ShadowCq& cq) {
  drain_events(*ShadowChannel::of(cq.cq.channel));
  if (cq.arming.forget_surplus()) drain_untold(cq);
}

void drain_untold(ShadowCq& cq) {
  if (!cq.swallows()) drain_completions(cq);
}

void tell_of_drained(ShadowCq& cq) {
  if (cq.cq.channel == nullptr) return;
  ShadowChannel& channel = *ShadowChannel::of(cq.cq.channel);
  SpinGuard guard(channel.events.lock);
  {
    SpinGuard refill(cq.refill_lock);
    if (cq.refill.empty()) return;
  }
  if (!cq.arming.is_armed()) return;  // the backend has told already
  cq.arming.note_event();
  cq.arming.note_surplus();  // the backend still has the request
  channel.pending.push_back(&cq);
  channel.events.update_signal(true);
}

int destroy_real_cq(ShadowCq& cq) {
  ShadowContext& context = *ShadowContext::of(cq.cq.context);
  if (cq.cq.channel == nullptr) return destroy_real(context, g_backend.destroy_cq, cq.real);
  ShadowChannel& channel = *ShadowChannel::of(cq.cq.channel);
  SpinGuard guard(channel.events.lock);
  drain_locked(channel);
  if (int rc = destroy_real(context, g_backend.destroy_cq, cq.real); rc != 0) return rc;
  std::erase(channel.pending, &cq);
  channel.events.update_signal(!channel.pending.empty());
  return 0;
}

bool next_async_event(ShadowContext& context, ibv_async_event* event) {
  SpinGuard guard(context.async_events.lock);
  if (!context.pending_async.empty()) {
    *event = context.pending_async.front();
    context.pending_async.pop_front();
    context.async_events.update_signal(!context.pending_async.empty());
  } else if (!take_async_from_backend(context, event)) {
    return false;
  } else if (!context.pending_async.empty()) {
    context.async_events.update_signal(true);
  }
  if (names_qp(event->event_type)) ShadowQp::of(event->element.qp)->events.note_delivered();
  if (names_srq(event->event_type)) ShadowSrq::of(event->element.srq)->events.note_delivered();
  return true;
}

void drain_async_events(ShadowContext& context) {
  SpinGuard guard(context.async_events.lock);
  drain_async_events_locked(context);
}

void drain_async_events_locked(ShadowContext& context) {
  ibv_async_event event{};
  while (take_async_from_backend(context, &event))
    if (guarded(Guard::kKeepEvents)) context.pending_async.push_back(event);
  context.async_events.update_signal(!context.pending_async.empty());
}

void withdraw_async_events(ShadowContext& context, const void* object) {
  SpinGuard guard(context.async_events.lock);
  std::erase_if(context.pending_async, [&](const ibv_async_event& e) {
    return (names_qp(e.event_type) || names_srq(e.event_type) || e.event_type == IBV_EVENT_CQ_ERR) &&
           e.element.qp == object;
  });
  context.async_events.update_signal(!context.pending_async.empty());
}

void withdraw_newest_event(ShadowContext& context, const void* object, ibv_event_type type) {
  drain_async_events(context);
  SpinGuard guard(context.async_events.lock);
  auto& events = context.pending_async;
  auto it = std::find_if(events.rbegin(), events.rend(),
                         [&](const ibv_async_event& e) { return e.event_type == type && e.element.qp == object; });
  if (it != events.rend()) events.erase(std::next(it).base());
  context.async_events.update_signal(!events.empty());
}

void acknowledge_async(const ibv_async_event& event) {
  if (names_qp(event.event_type)) ShadowQp::of(event.element.qp)->events.acknowledge(1);
  if (names_srq(event.event_type)) ShadowSrq::of(event.element.srq)->events.acknowledge(1);
}

}  // namespace shadowib
