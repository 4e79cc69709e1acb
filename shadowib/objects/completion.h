// Shadow completion channels and completion queues.
#pragma once

#include <infiniband/verbs.h>

#include <deque>
#include <vector>

#include "shadowib/base/lock.h"
#include "shadowib/objects/acknowledged_events.h"
#include "shadowib/objects/arming.h"
#include "shadowib/objects/context.h"

namespace shadowib {

struct ShadowCq;
struct ShadowSrq;

struct ShadowChannel {
  ibv_comp_channel channel;  // fd is ours for good (events.h)
  ListHook hook;
  ibv_comp_channel* real = nullptr;
  EventQueue events;
  std::deque<ShadowCq*> pending SHADOWIB_GUARDED_BY(events.lock);  // events taken out of the backend and not yet read
  static ShadowChannel* of(ibv_comp_channel* channel) { return reinterpret_cast<ShadowChannel*>(channel); }
};

// The place of a completion among those of its work queue, which the program sees in this order.
struct CompletionPlace {
  const void* queue = nullptr;  // nullptr: not known, and it may stand anywhere
  bool is_receive = false;      // of a queue pair's two queues
  std::uint64_t sequence = 0;
  bool is_before(const CompletionPlace& other) const {
    return queue != nullptr && queue == other.queue && is_receive == other.is_receive && sequence < other.sequence;
  }
};

// A completion that waits to be polled again.
struct Drained {
  ibv_wc wc;
  const ShadowSrq* srq;  // an XRC queue whose receive it completes, or nullptr
  CompletionPlace place{};
};

struct ShadowCq {
  union {
    ibv_cq cq;
    ibv_cq_ex extended;  // begins with an ibv_cq; its functions are set if it was created so
  };
  ListHook hook;
  ibv_cq* real = nullptr;
  int comp_vector = 0;

  // Completions a checkpoint took out of the backend, already translated, served before the backend's (P2).
  SpinLock refill_lock;
  std::deque<Drained> refill SHADOWIB_GUARDED_BY(refill_lock);
  // Their number. kLookedAt: the backend's are to be looked at one by one, or some are just being drained. A poll
  // takes the lock only if it is not 0.
  std::atomic<std::uint32_t> refill_count{0};
  static constexpr std::uint32_t kLookedAt = 1u << 31;
  bool looked_at = false;      // windows exist: one may have been invalidated by a peer
  std::uint32_t reserved = 0;  // entries of the real one beyond the program's, for forced completions
  bool swallows() const { return reserved != 0; }
  std::atomic<bool> has_forced{false};        // completions to swallow, ever
  std::atomic<bool> kept_since_armed{false};  // the program has polled, or will, what an event may be for
  void note_refill() SHADOWIB_REQUIRES(refill_lock) {
    refill_count.store(static_cast<std::uint32_t>(refill.size()) | (looked_at ? kLookedAt : 0),
                       std::memory_order_release);
  }
  void look_at_each() {
    SpinGuard guard(refill_lock);
    looked_at = true;
    note_refill();
  }
  std::vector<ShadowSrq*> xrc_srqs;  // whose receives complete here; under refill_lock

  // Extended polling: the completion it stands at, from start_poll to end_poll.
  ibv_wc current;
  bool single_threaded;  // the program has promised to poll with one thread at a time
  SpinLock polling;

  Arming arming;
  AcknowledgedEvents events;  // told by get_cq_event
  std::uint32_t users = 0;    // queue pairs and XRC shared receive queues
  static ShadowCq* of(ibv_cq* cq) { return reinterpret_cast<ShadowCq*>(cq); }
};

}  // namespace shadowib
