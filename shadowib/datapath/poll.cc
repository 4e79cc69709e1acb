#include "hooks/threads/stop.h"
#include "shadowib/base/guard.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/event_delivery.h"
#include "shadowib/objects/backend.h"

namespace shadowib {
namespace {

// A completion of a shared receive, or of a datagram's, says by number alone whose it is: names that queue pair as
// the program knows it, counts a shared one for settling, and turns a datagram's sender.
void name_numbered_qp(ShadowCq& cq, SlotHeader& slot, ibv_wc& wc) {
  ShadowQp* qp = ShadowContext::of(cq.cq.context)->numbered.find({wc.qp_num});
  if (qp == nullptr) return;  // being destroyed
  wc.qp_num = qp->qp_num.value;
  if (wc.status != IBV_WC_SUCCESS) return;
  if (qp->is_datagram()) {
    const auto& receive = static_cast<RecvSlot&>(slot);
    turn_source(*qp, receive.sge, receive.wr.num_sge, &wc);
  } else {
    qp->shared_consumed.fetch_add(1, std::memory_order_relaxed);
  }
}

// Linux' rxe tells of an invalidation by the kernel's flag, which is another one to programs: of raw packets'
// checksums.
constexpr unsigned kInvalidated = IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK;

void name_invalidated(ShadowCq& cq, ibv_wc& wc) {
  WindowTable& windows = ShadowContext::of(cq.cq.context)->windows;
  if ((wc.wc_flags & IBV_WC_WITH_INV) == 0) {
    // Most are of raw packets' checksums, and take no lock.
    if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0 || !windows.used() || !windows.is_window({wc.invalidated_rkey})) return;
    wc.wc_flags = (wc.wc_flags & ~static_cast<unsigned>(IBV_WC_IP_CSUM_OK)) | IBV_WC_WITH_INV;
  }
  wc.invalidated_rkey = windows.note_invalidated({wc.invalidated_rkey}).value;
}

// Turns completions into the program's; `swallow`: some may be ours alone. Returns how many are the program's.
template <bool swallow>
inline int accept(ShadowCq& cq, ibv_wc* wc, ibv_wc* end) {
  ibv_wc* const first = wc;
  ibv_wc* kept = wc;
  for (; wc < end; ++wc) {
    auto* slot = reinterpret_cast<SlotHeader*>(wc->wr_id);
    if (swallow && slot->forced && wc->status == IBV_WC_SUCCESS &&
        guarded(Guard::kSwallowForced)) {  // an error is told of whatever was asked for
      slot->complete(wc->status);
      continue;
    }
    wc->wr_id = slot->user_wr_id;
    if (slot->qp_num.value == 0)
      name_numbered_qp(cq, *slot, *wc);
    else
      wc->qp_num = slot->qp_num.value;
    if ((wc->wc_flags & kInvalidated) != 0 && wc->status == IBV_WC_SUCCESS) name_invalidated(cq, *wc);
    slot->complete(wc->status);
    if (!swallow) continue;
    if (kept != wc) *kept = *wc;
    ++kept;
  }
  if (swallow && kept != first) cq.kept_since_armed.store(true, std::memory_order_relaxed);
  return static_cast<int>(kept - first);
}

// The XRC queue that a receive was posted to, if it was to one. Caller holds refill_lock.
const ShadowSrq* xrc_srq_of(const ShadowCq& cq, const SlotHeader* slot) {
  if (slot->qp_num.value != 0) return nullptr;
  for (const ShadowSrq* srq : cq.xrc_srqs)
    if (srq->log.holds(slot)) return srq;
  return nullptr;
}

int poll_refill(ShadowCq& cq, int count, ibv_wc* wc) SHADOWIB_REQUIRES(cq.refill_lock) {
  int n = 0;
  while (n < count && !cq.refill.empty()) {
    wc[n++] = cq.refill.front().wc;
    cq.refill.pop_front();
  }
  cq.note_refill();
  return n;
}

// The program sees one queue: a call returns as many as it asks for if they are there, wherever they lie. One that
// arms the queue, polls once for all it may hold and then sleeps gets no second event for what a shorter answer left
// behind. The lock is held over both: a post may drain the backend's queue to make room, and what it takes between
// the two looks would be polled behind what came later.
__attribute__((noinline, cold)) int poll_both(ShadowCq& cq, int count, ibv_wc* wc) {
  SpinGuard guard(cq.refill_lock);
  const auto drained = [&](int from) SHADOWIB_REQUIRES(cq.refill_lock) {
    return peek(cq.refill_count) != ShadowCq::kLookedAt ? poll_refill(cq, count - from, wc + from) : 0;
  };
  int there = guarded(Guard::kServeDrainedFirst) ? drained(0) : 0;
  while (there < count) {
    const int asked = count - there;
    const int n = g_backend.poll_cq(cq.real, asked, wc + there);
    if (n < 0) return there > 0 ? there : n;
    there += accept_completions(cq, wc + there, wc + there + n);
    if (n < asked) break;
  }
  return guarded(Guard::kServeDrainedFirst) ? there : there + drained(there);
}

// The cold rest of poll_cq's loop. Returns n, so that nothing needs to be kept over the call: a queue that swallows
// completions is polled by poll_both.
__attribute__((noinline, cold)) int accept_rest(ShadowCq& cq, ibv_wc* wc, ibv_wc* end, int n) {
  (void)accept<false>(cq, wc, end);
  return n;
}

}  // namespace

int accept_completions(ShadowCq& cq, ibv_wc* wc, ibv_wc* end) { return accept<true>(cq, wc, end); }

int poll_cq(ibv_cq* program_cq, int count, ibv_wc* wc) {
  Inside inside;
  ShadowCq& cq = *ShadowCq::of(program_cq);
  if (__builtin_expect(peek(cq.refill_count) != 0, 0)) return poll_both(cq, count, wc);
  int n = g_backend.poll_cq(cq.real, count, wc);
  for (ibv_wc* end = wc + n; wc < end; ++wc) {
    auto* slot = reinterpret_cast<SlotHeader*>(wc->wr_id);
    if (__builtin_expect(slot->qp_num.value == 0, 0)) return accept_rest(cq, wc, end, n);
    wc->wr_id = slot->user_wr_id;
    wc->qp_num = slot->qp_num.value;
    slot->complete(wc->status);
  }
  return n;
}

int req_notify_cq(ibv_cq* program_cq, int solicited_only) {
  Inside inside;
  ShadowCq& cq = *ShadowCq::of(program_cq);
  if (__builtin_expect(cq.arming.may_have_surplus(), 0)) withdraw_surplus(cq);
  const bool kept = cq.kept_since_armed.exchange(false, std::memory_order_relaxed);
  // Noted first: another thread may have the event before the call returns, and it answers this request.
  cq.arming.note_armed(solicited_only != 0);
  int rc = g_backend.req_notify_cq(cq.real, solicited_only);
  if (__builtin_expect(rc == 0, 1)) {
    if (__builtin_expect(cq.arming.forget_untold(), 0)) drain_untold(cq);
    if (__builtin_expect(peek(cq.refill_count) != 0, 0)) tell_of_drained(cq);
    return 0;
  }
  cq.arming.note_refused(solicited_only != 0);
  if (kept) cq.kept_since_armed.store(true, std::memory_order_relaxed);  // since the request before
  return rc;
}

void drain_completions(ShadowCq& cq) {
  SpinGuard guard(cq.refill_lock);
  // Who polls or asks for an event from here on finds the backend's queue empty, and looks here.
  cq.refill_count.fetch_or(ShadowCq::kLookedAt);
  ibv_wc wc[32];
  int n;
  while ((n = g_backend.poll_cq(cq.real, 32, wc)) > 0)
    for (ibv_wc* at = wc; at < wc + n; ++at) {
      const ShadowSrq* srq = xrc_srq_of(cq, reinterpret_cast<const SlotHeader*>(at->wr_id));
      if (accept_completions(cq, at, at + 1) != 0) cq.refill.push_back({*at, srq});
    }
  cq.note_refill();
}

void purge_completions(ShadowCq& cq, VirtualQpNum qp_num) {
  if (!g_backend.purges_completions) drain_completions(cq);
  SpinGuard guard(cq.refill_lock);
  if (!guarded(Guard::kPurgeDrained)) return;
  // What a shared receive of XRC has become stays with its queue.
  std::erase_if(cq.refill, [&](const Drained& d) { return d.srq == nullptr && d.wc.qp_num == qp_num.value; });
  cq.note_refill();
}

void purge_completions(ShadowCq& cq, const ShadowSrq& srq) {
  drain_completions(cq);
  SpinGuard guard(cq.refill_lock);
  std::erase_if(cq.refill, [&](const Drained& d) { return d.srq == &srq; });
  std::erase(cq.xrc_srqs, &srq);
  cq.note_refill();
}

}  // namespace shadowib
