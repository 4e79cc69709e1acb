#include <algorithm>

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
    const auto& receive = static_cast<const RecvSlot&>(slot);
    turn_source(*qp, receive.list(), receive.wr.num_sge, &wc);
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

// A success that only the shim has asked for.
__attribute__((always_inline)) inline bool is_ours(const SlotHeader& slot, const ibv_wc& wc) {
  return is_equal<SlotHeader::kForced>(slot.status) && wc.status == IBV_WC_SUCCESS && guarded(Guard::kSwallowForced);
}

// Swallows a completion, or turns it into the program's and answers true.
__attribute__((always_inline)) inline bool accept_one(ShadowCq& cq, SlotHeader& slot, ibv_wc& wc) {
  if (is_below<SlotHeader::kApart>(slot.status)) {
    if (is_ours(slot, wc) || is_equal<SlotHeader::kFence>(slot.status)) {
      slot.complete(wc.status);
      return false;
    }
    static_cast<SendSlot&>(slot).take_force_back();  // an error is told of whatever was asked for
  }
  wc.wr_id = slot.user_wr_id;
  if (slot.qp_num.value == 0)
    name_numbered_qp(cq, slot, wc);
  else
    wc.qp_num = slot.qp_num.value;
  if (__builtin_expect((wc.wc_flags & kInvalidated) != 0, 0) && wc.status == IBV_WC_SUCCESS) name_invalidated(cq, wc);
  slot.complete(wc.status);
  return true;
}

// Turns the completions [wc, end) into the program's, which stand from `kept` on then; returns their end.
__attribute__((always_inline)) inline ibv_wc* swallow(ShadowCq& cq, ibv_wc* kept, ibv_wc* wc, ibv_wc* end) {
  for (; wc < end; ++wc) {
    if (!accept_one(cq, *reinterpret_cast<SlotHeader*>(wc->wr_id), *wc)) continue;
    if (kept != wc) *kept = *wc;
    ++kept;
  }
  return kept;
}

// The XRC queue that a receive was posted to, if it was to one. Caller holds refill_lock.
const ShadowSrq* xrc_srq_of(const ShadowCq& cq, const SlotHeader* slot) {
  if (slot->qp_num.value != 0) return nullptr;
  for (const ShadowSrq* srq : cq.xrc_srqs)
    if (srq->log.holds(slot)) return srq;
  return nullptr;
}

// Of the backend's next, while its slot is pending.
CompletionPlace place_of(const ShadowCq& cq, const ibv_wc& wc) SHADOWIB_REQUIRES(cq.refill_lock) {
  const auto* slot = reinterpret_cast<const SlotHeader*>(wc.wr_id);
  const ShadowQp* qp = ShadowContext::of(cq.cq.context)->numbered.find({wc.qp_num});
  if (qp == nullptr || is_equal<SlotHeader::kFence>(slot->status)) return {};
  if (!slot->is_receive) return {qp, false, qp->send.sequence_of(slot)};
  if (qp->receive.holds(slot)) return {qp, true, qp->receive.sequence_of(slot)};
  // Receives of a shared queue are used in the order of posting, so those of one queue pair complete in it.
  if (qp->srq != nullptr && qp->srq->log.holds(slot)) return {qp, true, qp->srq->log.order_of(slot)};
  const ShadowSrq* shared = xrc_srq_of(cq, slot);
  return shared != nullptr ? CompletionPlace{qp, true, shared->log.order_of(slot)} : CompletionPlace{};
}

// Takes one of the backend's into the refill queue. `in_order`: before those of its work queue that came later, else
// last.
void refill(ShadowCq& cq, const ibv_wc& real, bool in_order) SHADOWIB_REQUIRES(cq.refill_lock) {
  Drained taken{real, xrc_srq_of(cq, reinterpret_cast<const SlotHeader*>(real.wr_id)), place_of(cq, real)};
  if (accept_completions(cq, &taken.wc, &taken.wc + 1) == 0) return;
  auto at = in_order ? cq.refill.begin() : cq.refill.end();
  while (at != cq.refill.end() && !taken.place.is_before(at->place)) ++at;
  cq.refill.insert(at, taken);
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
int poll_both_locked(ShadowCq& cq, int count, ibv_wc* wc) SHADOWIB_REQUIRES(cq.refill_lock) {
  const auto drained = [&](int from) SHADOWIB_REQUIRES(cq.refill_lock) {
    return !cq.refill.empty() ? poll_refill(cq, count - from, wc + from) : 0;
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

__attribute__((noinline, cold)) int poll_both(ShadowCq& cq, int count, ibv_wc* wc) {
  SpinGuard guard(cq.refill_lock);
  return poll_both_locked(cq, count, wc);
}

// A poll without the lock has taken wc[0..n), and another thread has drained meanwhile: earlier ones, or later ones.
__attribute__((noinline, cold)) int poll_beside_drain(ShadowCq& cq, int count, ibv_wc* wc, int n) {
  SpinGuard guard(cq.refill_lock);
  for (int i = 0; i < n; ++i) refill(cq, wc[i], true);
  cq.note_refill();
  const int there = poll_both_locked(cq, count, wc);
  return there == 0 && n < 0 ? n : there;
}

// A poll that is under way, and what is needed after the backend's answer.
struct PollCall {
  ShadowCq* cq;
  ibv_wc* wc;
  int count;
};

// The ends of poll_cq that are seldom taken: each is the last call of it.
__attribute__((noinline, cold)) int parked(int n) {
  park_if_requested();
  return n;
}
int leave_with(int n) {
  if (leave_inside()) park_if_requested();
  return n;
}
__attribute__((noinline, cold)) int poll_both_and_leave(const PollCall& call) {
  return leave_with(poll_both(*call.cq, call.count, call.wc));
}
__attribute__((noinline, cold)) int poll_beside_drain_and_leave(const PollCall& call, int n) {
  return leave_with(poll_beside_drain(*call.cq, call.count, call.wc, n));
}

__attribute__((always_inline)) inline int leave_with_kept(const PollCall& call, int kept) {
  if (kept > 0) call.cq->kept_since_armed.store(true, std::memory_order_relaxed);
  return leave_with(kept);
}

// The rest of a poll whose completions are not all plain: those before `kept` are the program's, [at, end) the
// backend's.
__attribute__((noinline)) int poll_rest_and_leave(const PollCall& call, ibv_wc* kept, ibv_wc* at, ibv_wc* end) {
  ShadowCq& cq = *call.cq;
  ibv_wc* const places = call.wc + call.count;
  for (;;) {
    kept = swallow(cq, kept, at, end);
    // Places are left if some were swallowed, and a backend that gave all it was asked for may have more.
    if (kept == end || end != places) break;
    const int asked = static_cast<int>(places - kept);
    if (is_set(cq.refill_count)) {
      kept += std::max(0, poll_both(cq, asked, kept));
      break;
    }
    const int n = g_backend.poll_cq(cq.real, asked, kept);
    if (is_set(cq.refill_count)) {
      kept += std::max(0, poll_beside_drain(cq, asked, kept, n));
      break;
    }
    if (n <= 0) break;
    at = kept;
    end = kept + n;
  }
  return leave_with_kept(call, static_cast<int>(kept - call.wc));
}

__attribute__((noinline, cold)) int poll_beside_drain_after(const PollCall& call, int kept, int n) {
  const int more = poll_beside_drain(*call.cq, call.count - kept, call.wc + kept, n);
  return leave_with_kept(call, kept + std::max(0, more));
}

// The same where only the last of the backend's answer is not plain, and ours: it has been swallowed. Most often a
// second look finds no more.
__attribute__((noinline)) int poll_last_and_leave(const PollCall& call, int kept) {
  if (kept + 1 < call.count) return leave_with_kept(call, kept);
  if (__builtin_expect(is_set(call.cq->refill_count), 0))
    return poll_rest_and_leave(call, call.wc + kept, call.wc + call.count, call.wc + call.count);
  const int more = g_backend.poll_cq(call.cq->real, 1, call.wc + kept);
  asm volatile("" : "+r"(kept));  // no address is kept over the call
  if (__builtin_expect(is_set(call.cq->refill_count), 0)) return poll_beside_drain_after(call, kept, more);
  if (__builtin_expect(more > 0, 0))
    return poll_rest_and_leave(call, call.wc + kept, call.wc + kept, call.wc + kept + more);
  return leave_with_kept(call, kept);
}

}  // namespace

int accept_completions(ShadowCq& cq, ibv_wc* wc, ibv_wc* end) {
  const int kept = static_cast<int>(swallow(cq, wc, wc, end) - wc);
  if (kept > 0) cq.kept_since_armed.store(true, std::memory_order_relaxed);
  return kept;
}

namespace {

// The end of a short poll at a completion that is not plain; `left` of the backend's n from it on.
__attribute__((always_inline)) inline int leave_short(const PollCall& call, ibv_wc* at, int left, int n) {
  auto* slot = reinterpret_cast<SlotHeader*>(at->wr_id);
  if (left != 1 || !is_ours(*slot, *at)) return poll_rest_and_leave(call, at, at, call.wc + n);
  slot->complete(IBV_WC_SUCCESS);
  return poll_last_and_leave(call, n - 1);
}

// After a restart: a completion that the short way turns, as it is a queue pair's own.
__attribute__((always_inline)) inline bool is_short_turned(const SlotHeader& slot, const ibv_wc& wc) {
  return !is_below<SlotHeader::kApart>(slot.status) && slot.qp_num.value != 0 && (wc.wc_flags & kInvalidated) == 0;
}

// `may_swallow`: completions of forced signals may come here. `turns`: they do not name queue pairs as the program
// does.
template <bool may_swallow, bool turns = false>
__attribute__((always_inline)) inline int poll_short(ibv_cq* program_cq, int count, ibv_wc* wc) {
  ShadowCq& polled = *ShadowCq::of(program_cq);
  PollCall call{&polled, wc, count};
  enter_inside();
  if (__builtin_expect(is_set(polled.refill_count), 0)) return poll_both_and_leave(call);
  const int n = g_backend.poll_cq(polled.real, count, wc);
  asm volatile("" : "+m"(call));  // kept in memory over the call: fewer instructions than saved registers
  ShadowCq& cq = *call.cq;
  // Another thread may have drained since. What the backend gave it before it gave us ours is seen here.
  if (__builtin_expect(is_set(cq.refill_count), 0)) return poll_beside_drain_and_leave(call, n);
  if (n > 0) {
    ibv_wc* at = call.wc;
    int left = n;
    do {
      auto* slot = reinterpret_cast<SlotHeader*>(at->wr_id);
      const bool is_short = turns ? is_short_turned(*slot, *at) : is_equal<SlotHeader::kPlain>(slot->status);
      if (__builtin_expect_with_probability(!is_short, 0, 0.999)) return leave_short(call, at, left, n);
      at->wr_id = slot->user_wr_id;  // before any restart qp_num is the program's
      if (turns) at->qp_num = slot->qp_num.value;
      slot->complete(at->status);
      ++at;
      asm volatile("" : "+r"(left));  // counted: compilers would work out where the last one ends
    } while (--left != 0);
    if (may_swallow) cq.kept_since_armed.store(true, std::memory_order_relaxed);
  }
  return leave_inside() ? parked(n) : n;
}

}  // namespace

int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) { return poll_short<true>(cq, count, wc); }
int poll_cq_turning(ibv_cq* cq, int count, ibv_wc* wc) { return poll_short<true, true>(cq, count, wc); }
int poll_cq_unforced(ibv_cq* cq, int count, ibv_wc* wc) { return poll_short<false>(cq, count, wc); }

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
    if (__builtin_expect(is_set(cq.refill_count), 0)) tell_of_drained(cq);
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
    for (int i = 0; i < n; ++i) refill(cq, wc[i], false);
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
