// Completion queues and completion channels.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "ib2tcp/engine.h"
#include "shadowib/base/lock.h"

namespace shadowib::ib2tcp {

struct Channel;

// A ring of completions. Filled under the engine's lock, emptied under its own poll lock; the two meet in two
// counters, so that polling entries that are there never waits for the engine.
struct Cq {
  ibv_cq verbs{};  // first
  Channel* channel = nullptr;
  std::atomic<int> users{0};  // queue pairs' uses
  bool overflowed = false;
  std::unique_ptr<ibv_wc[]> ring;
  std::uint64_t mask = 0;

  enum Armed : int { kNot = 0, kSolicited = 1, kNext = 2 };
  std::atomic<int> armed{kNot};
  // Where the ring ends whose last entry was solicited, or failed.
  std::atomic<std::uint64_t> solicited_put{0};
  // Undelivered events on the channel; under the channel's lock.
  int pending_events = 0;
  Hook pending_hook;

  std::uint32_t unread_events = 0;  // a bit for each type; under Context::events_lock
  alignas(64) SpinLock poll_lock;
  std::atomic<std::uint64_t> taken{0};
  alignas(64) std::atomic<std::uint64_t> put{0};

  // Room for the next completion, zero but for wr_id. nullptr if the queue is full: the completion is lost,
  // IBV_EVENT_CQ_ERR is raised once, and the queue pair must go to error. The queue becomes longer instead while
  // something is sent again (Border::sends_again), or after expect_repeat(). Under the engine's lock.
  ibv_wc* begin(std::uint64_t wr_id) {
    const std::uint64_t at = put.load(std::memory_order_relaxed);
    if (__builtin_expect(at - taken.load(std::memory_order_acquire) > mask, 0) && !lengthen()) {
      overflow(wr_id);
      return nullptr;
    }
    ibv_wc& wc = ring[at & mask];
    wc = ibv_wc{};
    wc.wr_id = wr_id;
    return &wc;
  }
  // Appends what has been filled in there, and raises the channel's event if armed for it. Under the engine's lock.
  void append(bool solicited) {
    if (channel == nullptr)
      put.store(put.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    else
      append_and_tell(solicited);
  }
  // A message comes that the peer had sent before this process went back. As many completions as fit into the queue
  // may come before its own, and until all of these have been polled the queue becomes longer. Under the engine's
  // lock.
  void expect_repeat() { repeats_until_ = put.load(std::memory_order_relaxed) + mask + 1; }
  // Drops a queue pair's completions that were not polled. Under the engine's lock.
  void purge(std::uint32_t qp_num);
  // 0 or an errno. Under the engine's lock.
  int resize(std::uint64_t size);
  int take(int count, ibv_wc* wc);
  // Raises the channel's event for the next completion, or at once if there is one that nobody has polled: mlx5 does
  // so, which is told where the program has polled to. Open MPI's udcm relies on it: it asks after it has polled, and
  // then sleeps. A program that asks before it polls, as most do, is told once only of these completions.
  void arm(bool solicited_only);

 private:
  int set_room(std::uint64_t size);
  bool lengthen();
  void overflow(std::uint64_t wr_id);
  void append_and_tell(bool solicited);
  void tell();

  std::uint64_t repeats_until_ = 0;  // where the ring ends
  static constexpr std::uint64_t kUntold = ~std::uint64_t{0};
  std::atomic<std::uint64_t> told_taken_{0}, told_put_{kUntold};  // the ring when the last event was raised
};

struct Channel {
  ibv_comp_channel verbs{};  // first; fd is an eventfd that counts undelivered events
  std::atomic<int> users{0};
  SpinLock lock;
  HookedList<Cq, &Cq::pending_hook> pending SHADOWIB_GUARDED_BY(lock);  // oldest first

  void notify(Cq& cq);
  void forget(Cq& cq);
};

ibv_comp_channel* create_comp_channel(ibv_context* context);
int destroy_comp_channel(ibv_comp_channel* channel);
ibv_cq* create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector);
int destroy_cq(ibv_cq* cq);
int resize_cq(ibv_cq* cq, int cqe);
int poll_cq(ibv_cq* cq, int count, ibv_wc* wc);
int req_notify_cq(ibv_cq* cq, int solicited_only);
int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq);
void ack_cq_events(ibv_cq* cq, unsigned count);

}  // namespace shadowib::ib2tcp
