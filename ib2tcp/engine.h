// The process's one engine: its lock, its links to other processes, its timers, and who moves the data.
//
// One lock for the whole process is deliberate: a message is a few hundred nanoseconds of work, programs seldom
// drive one adapter from many threads at once, and atomics at the target need a common lock anyway. Polling a
// completion queue that has entries, arming it and reading counters take no engine lock.
//
// Lock order: engine lock, then a completion queue's poll lock or a channel's lock. Never the other way round.
#pragma once

#include <atomic>
#include <boost/intrusive/list.hpp>
#include <boost/intrusive/set.hpp>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ib2tcp/multicast.h"
#include "ib2tcp/region_index.h"
#include "ib2tcp/slot_table.h"
#include "ib2tcp/transport.h"
#include "shadowib/base/lock.h"

struct epoll_event;

namespace shadowib::ib2tcp {

class Border;
struct Identity;
class Link;
class Qp;
class Rendezvous;
struct Mr;
struct Mw;
struct Srq;
struct Endpoint;

// Unlinks itself when destroyed; is_linked() tells whether it is on a list.
using Hook = boost::intrusive::list_member_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>>;
template <typename T, Hook T::*member>
using HookedList = boost::intrusive::list<T, boost::intrusive::member_hook<T, Hook, member>,
                                          boost::intrusive::constant_time_size<false>>;

// Sorted by deadline, since each of thousands of queue pairs may be waiting by itself.
using Timers = boost::intrusive::multiset<Timer, boost::intrusive::member_hook<Timer, Timer::SetHook, &Timer::hook>,
                                          boost::intrusive::constant_time_size<false>>;

// Written under the engine's lock only, so that adding needs no locked instruction. Read by anyone.
template <typename T>
class Tally {
 public:
  void add(T step) { value_.store(value_.load(std::memory_order_relaxed) + step, std::memory_order_relaxed); }
  T load() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<T> value_{0};
};

// Whether refusals use up retries (BackendOps::set_paused). None does while the program is stopped, and for a turn
// behind that, in which it runs: a program that was stopped right behind a refusal needs time to post a receive. A
// stop within a turn keeps the rest of it for later. A side that has had its turn, and has met no refusal that counts
// since, gets no new one. So the errors come however often a program is stopped.
class Pause {
 public:
  // One thread at a time.
  void set(bool paused) {
    const std::int64_t from = count_from_ns_.load(), now = monotonic_ns();
    if (paused == (from == INT64_MAX)) return;
    if (paused) turn_ns_ = from > now ? from - now : awaits_count_.load() ? 0 : kTurnNs;
    count_from_ns_.store(paused ? INT64_MAX : now + turn_ns_);
  }
  // Whether a refusal does that counts for the other side. Any thread.
  bool counts(bool for_other = true) {
    const std::int64_t from = count_from_ns_.load(std::memory_order_relaxed);
    const bool counts = for_other && (from == 0 || monotonic_ns() >= from);
    awaits_count_.store(!counts, std::memory_order_relaxed);
    return counts;
  }

 private:
  static constexpr std::int64_t kTurnNs = 1'000'000'000;  // longer than any min_rnr_timer
  std::int64_t turn_ns_ = 0;                              // when the program goes on
  std::atomic<std::int64_t> count_from_ns_{0};
  std::atomic<bool> awaits_count_{false};  // the last refusal did not
};

struct Statistics {
  Tally<std::uint64_t> frames_sent, frames_received, acks_sent, rnr_naks, links_lost, frames_refused,
      handshakes_refused, links_held;
  std::atomic<std::uint64_t> helper_turns{0};
  std::atomic<std::uint64_t> naps{0};  // of the helper, while the program polls
};

class Engine {
 public:
  using QpTable = SlotTable<Qp, 16, 24>;
  using MrTable = SlotTable<Mr, 20, 31>;  // the highest bit marks keys of windows (memory_window.h)
  using MwTable = SlotTable<Mw, 16, 23>;  // by the part of the key that stays
  using SrqTable = SlotTable<Srq, 16, 24>;

  Engine();
  ~Engine();

  // Creates the epoll sets. 0 or an errno.
  int open();

  SpinLock lock;
  QpTable qps;
  MrTable mrs;
  MwTable mws;
  RegionIndex regions;
  Multicast multicast;
  SrqTable xrc_srqs;                       // those that others name by number
  std::unique_ptr<Rendezvous> rendezvous;  // who we are to others, and how they are found
  Poller* poller = nullptr;                // the rendezvous's fabric, if it has one
  Statistics statistics;
  Pause pause;
  Tally<std::int64_t> outstanding;  // posted requests of all queue pairs, both kinds
  std::atomic<int> objects{0};      // of the program, all kinds but devices
  int handshakes = 0;               // under way
  int sockets = 0;                  // streams that memory does not tell of (add_sockets)
  std::vector<Qp*> datagram_qps;    // those that any link may carry something of; under the lock

  // --- Below: under the lock, if not said otherwise. ---
  std::vector<Link*>& links() { return links_; }
  // Those with a connection, frozen ones included, and some whose connection has ended since the last turn.
  std::vector<Link*>& connected() { return connected_; }
  void add_connected(Link& link);
  Link* link_with(const std::uint8_t uuid[16]);
  // Doorbells are for the helper, once it has slept: who else sees one ready leaves it. Under the lock.
  bool helper_looks() const { return helper_looks_; }
  void add_link(Link* link) { links_.push_back(link); }
  void add_sockets(int change);
  // Its place among them, which stays.
  std::uint32_t number_of(const Link& link) const;

  void arm(Timer& timer, std::int64_t deadline_ns);
  void disarm(Timer& timer) { timer.hook.unlink(); }

  // Adds a descriptor to epoll: `control` for what a polling program need not look at often (listeners,
  // handshakes, ends of connections), else data.
  void watch(Watch& watch, int fd, std::uint32_t events, bool control);
  void rewatch(Watch& watch, std::uint32_t events);
  void unwatch(Watch& watch);
  // Deletes later, when no event of the current batch can refer to it.
  template <typename T>
  void bury(T* object) {
    graves_.push_back({object, [](void* p) { delete static_cast<T*>(p); }});
  }
  void bury(std::unique_ptr<char[]> bytes) {
    graves_.push_back({bytes.release(), [](void* p) { delete[] static_cast<char*>(p); }});
  }

  // One non-blocking turn: reads, executes, answers, sends. Returns true if anything moved. `flush`: send delayed
  // acknowledgements now instead of after a few idle turns.
  bool turn(bool flush) SHADOWIB_REQUIRES(lock);

  // Something was left behind that only a later turn can do (bytes that did not fit, a timer, an answer): if
  // the helper sleeps it must look. Takes effect in unlock_and_wake().
  void want_turn() { helper_wanted_ = true; }
  // Around a call of the exchange. Its code may need the program's allocator, and so wait for a thread that unmaps
  // memory there and waits for this lock: that thread borrows it. No memory is copied meanwhile.
  void lend() { loan_.store(kLent); }
  void end_loan();
  // For memory_changes(): the lock, or a loan of it. True: a loan.
  bool lock_or_borrow() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS;
  void give_back();

  // Releases the lock and wakes the helper if want_turn() was called and it sleeps.
  void unlock_and_wake() SHADOWIB_RELEASE(lock);

  // --- Callers without the lock. ---
  // A program's empty poll: a turn if nobody else is at it. `armed`: this program may be about to sleep on a channel.
  bool poll_turn(bool armed);
  // The program armed a completion queue: it will sleep soon, so the helper takes over at once.
  void about_to_sleep();
  // See BackendOps::progress and wake.
  int progress(int timeout_ms);
  void wake();

 private:
  enum HelperState : std::uint32_t { kAway, kAwake, kNapping, kSleeping };
  enum Loan : std::uint32_t { kNotLent, kLent, kBorrowed };
  struct Grave {
    void* object;
    void (*destroy)(void*);
  };

  void look_for_lost_peers();
  bool run_timers();
  bool is_control_due();
  bool run_epoll(int set);
  void dispatch(::epoll_event* events, int count);
  void dig();
  void nap_while_polled();
  void work_then_sleep(int timeout_ms);
  bool prepare_sleep(int* timeout_ms);
  void ring();
  void hear_bell();

  std::vector<Link*> connected_, links_;
  Timers timers_;
  std::int64_t next_deadline_ns_ = INT64_MAX;
  std::vector<Grave> graves_;
  int data_set_ = -1, control_set_ = -1, bell_ = -1;
  Watch bell_watch_, control_watch_;
  bool helper_looks_ = false;  // at its descriptors, once it has slept
  bool helper_wanted_ = false;
  int idle_turns_ = 0;
  std::uint32_t turns_ = 0;
  std::int64_t control_ns_ = 0;  // when the control set was looked at
  std::uint32_t empty_in_a_row_ = 0;

  alignas(64) std::atomic<std::uint32_t> polls_{0};  // empty polls, by anyone
  std::atomic<std::uint32_t> polls_at_arm_{0};       // polls_ when a completion queue was armed last
  std::atomic<std::uint32_t> helper_{kAway};
  std::atomic<bool> yield_{false};  // a polling program asks the helper to leave the sockets alone
  std::atomic<bool> wake_{false};   // wake() was called
  std::atomic<std::uint32_t> nap_word_{0};
  std::atomic<std::uint32_t> loan_{kNotLent};

 public:
  std::unique_ptr<Border> border;            // under the lock; nullptr: this process is in no cluster
  std::unique_ptr<Identity> former;          // under the lock; of this process's earlier life (restore_identity)
  std::int64_t exchange_rests_until_ns = 0;  // under the lock; see exchange_lookup()

 private:
  // Rings every few seconds while there are sockets. A Timer would cost every turn a look at the clock.
  int lost_peers_clock_ = -1;
  Watch lost_peers_watch_;
};

extern Engine* g_engine;
// The engine for transports.
Driver& engine_driver();

// Holds the engine's lock for a call of the program, and wakes the helper at the end if need be.
class [[nodiscard]] SHADOWIB_SCOPED_CAPABILITY EngineGuard {
 public:
  EngineGuard() SHADOWIB_ACQUIRE(g_engine->lock) { g_engine->lock.lock(); }
  ~EngineGuard() SHADOWIB_RELEASE() { g_engine->unlock_and_wake(); }
  EngineGuard(const EngineGuard&) = delete;
  EngineGuard& operator=(const EngineGuard&) = delete;
};

class [[nodiscard]] LockOrLoan {
 public:
  // Which of the two it is, only run time knows.
  explicit LockOrLoan(Engine& engine) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS : engine_(engine),
                                                                           borrowed_(engine.lock_or_borrow()) {}
  ~LockOrLoan() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS { borrowed_ ? engine_.give_back() : engine_.unlock_and_wake(); }
  LockOrLoan(const LockOrLoan&) = delete;
  LockOrLoan& operator=(const LockOrLoan&) = delete;

 private:
  Engine& engine_;
  const bool borrowed_;
};

// The job's exchange, asked by a thread that holds the engine's lock (Engine::lend): nothing moves meanwhile.
int exchange_publish(const char* key, const void* value, std::size_t bytes);
// ENOENT: there is no such key. Another errno says nothing about it: the exchange fails, and then rests for ten times
// as long as it took to fail (EAGAIN).
int exchange_lookup(const char* key, void* value, std::size_t capacity, std::size_t* bytes);
int exchange_claim(const char* key);

}  // namespace shadowib::ib2tcp
