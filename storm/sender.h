// One direction of a connection as its sender sees it: posts the plan's operations and checks what completes.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "storm/objects.h"
#include "storm/random.h"
#include "storm/wiring.h"

namespace storm {

// One flow's view of additions to counters that many flows add to.
struct SharedAdditions {
  std::uint64_t count[kSharedCounters] = {}, hash[kSharedCounters] = {};
};

class Sender {
 public:
  Sender(Wiring& wiring, SharedAdditions& shared);

  // Posts some of what may be posted; true if something was.
  bool step();
  // A completion of the send queue.
  void completed(const ibv_wc& wc);
  // Tells the peer how far the other direction is, by a write of its own; false if there is no room for it now.
  bool post_credit(const Credits& credits);
  // Whether so many requests of the receiver's own may be posted now.
  bool has_room(std::size_t requests = 1) const {
    return log_.size() + unlogged_ + requests <= wiring_.out().send_depth;
  }
  // The last request: when it has completed, all have run. False if there is no room for it now. Not of datagrams.
  bool post_flush();
  // Binds the receiver's window; false as before. bound() tells how many binds have completed.
  bool post_bind(ibv_mw* window, std::uint32_t key, const ibv_mw_bind_info& what);
  bool post_invalidation(std::uint32_t key);
  std::uint64_t bound() const { return own_binds_; }
  // Credits told beside the connection, the key of a window.
  void credited(const Credits& credits);
  void window_bound(std::uint32_t key);

  std::uint64_t posted() const { return next_; }
  bool all_posted() const { return next_ == wiring_.out().operations; }
  // All are posted, and of those that had to complete all have.
  bool done() const { return all_posted() && signaled_ == 0; }
  bool empty() const { return log_.empty(); }
  // The right values of the peer's counter and register.
  std::uint64_t counter() const { return counter_; }
  std::uint64_t swapped() const;
  std::string describe() const;

 private:
  // A request that may be outstanding.
  struct Entry {
    Operation op;
    std::uint64_t number;  // of the plan's operations
    std::uint64_t id;
    std::uint64_t expected;  // what an atomic finds; the number of what a mirror holds
    std::uint32_t place;     // of its own data
    std::uint64_t remote;    // of a write to the ring
    std::uint32_t rkey;
  };
  struct Mirror {
    std::uint64_t number;
    std::uint32_t bytes = 0;  // 0: nothing written yet
  };

  bool may_post(const Operation& op) const;
  bool skips(const Operation& op);
  void post_again(const Entry& entry);

  Entry& log(const Operation& op);
  void prepare(Entry& entry, ibv_send_wr& wr, ibv_sge* pieces);
  void prepare_data(Entry& entry, ibv_send_wr& wr);
  void prepare_atomic(Entry& entry, ibv_send_wr& wr);
  void cut(const Entry& entry, ibv_send_wr& wr, ibv_sge* pieces);
  void post(ibv_send_wr* chain);
  void post_own(const Operation& op, ibv_send_wr& wr, ibv_sge* pieces);
  void retire(const Entry& entry);
  void check_read(const Entry& entry);
  void check_atomic(const Entry& entry);
  void look_at_credits();
  std::uint8_t* at(std::uint32_t place) const;
  ibv_ah* route();

  Wiring& wiring_;
  SharedAdditions& shared_;
  Dice dice_;
  std::deque<Entry> log_;
  std::uint64_t next_ = 0, position_ = 0;
  std::uint64_t messages_ = 0, ring_writes_ = 0, own_binds_ = 0;
  std::uint32_t signaled_ = 0;        // outstanding
  std::uint32_t since_signaled_ = 0;  // requests behind the last one
  Credits credits_{};
  std::uint64_t counter_ = 0, swaps_ = 0;
  std::uint64_t next_shared_[kSharedCounters] = {};  // no less can be found
  Mirror mirrors_[Layout::kMirrors];
  AddressHandle route_;
  bool window_open_ = false;
  std::uint32_t window_key_ = 0;
  bool stopped_ = false;      // by sabotage
  std::size_t unlogged_ = 0;  // requests that sabotage has posted: each may still have its place in the queue
};

}  // namespace storm
