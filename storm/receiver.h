// One direction of a connection as its receiver sees it. It posts receives as the plan's manner has it, and takes
// messages and writes. It checks that each is the next one, whole, and comes once and not too early.
#pragma once

#include <deque>
#include <vector>

#include "storm/objects.h"
#include "storm/receives.h"
#include "storm/sender.h"
#include "storm/wiring.h"

namespace storm {

class Receiver {
 public:
  // `queues`: one, or of XRC two. `back` sends the other way. `ticks` tells the time in tenths of seconds in which
  // this process ran.
  Receiver(Wiring& wiring, std::vector<Receives*> queues, Sender& back, ibv_mw* window, ibv_mr* window_region,
           const std::atomic<std::uint64_t>& ticks);

  // Before the peer may send: memory is as the plan has it, and so are the receives.
  void prepare();
  // Looks at memory, posts receives, tells the sender; true if there was something to do.
  bool step();
  // A completion of a receive, and after flush_expected() one that flushes.
  void received(const ibv_wc& wc);
  void flush_expected() { flushing_ = true; }
  std::uint32_t outstanding() const;

  // The sender says that all before operation n are posted, and if `for_good` that there will be no others.
  void sender_at(std::uint64_t n, bool for_good);
  bool all_received() const;
  // At the end of an epoch: places hold what they should.
  void check_places();
  std::uint64_t counter() const { return word(wiring_.mine.counter); }
  std::uint64_t swapped() const { return word(wiring_.mine.swapped); }
  std::string describe() const;

 private:
  struct Sealed {
    std::uint64_t place, number;
  };
  bool post_receives();
  bool post_receives_of(Receives& queue);
  bool poll_ring();
  void consume_ring(std::uint64_t before);
  void consume(const Operation& op, bool landed);
  bool release();
  bool tell();
  bool serve_window();
  void check_sealed(const Sealed& what);
  bool is_of_later(std::uint64_t place, const std::uint8_t* at, std::uint64_t number) const;
  void complain_of_place(std::uint64_t place, std::uint64_t number, const char* what);
  std::uint64_t number_of(const ibv_wc& wc, const std::uint8_t* data);
  void check_message(const ibv_wc& wc, const Operation& op, const std::uint8_t* data);
  void check_datagram(const ibv_wc& wc) const;
  std::uint64_t skip(std::uint64_t n, bool (*wanted)(Kind)) const;
  std::uint8_t* place_at(std::uint64_t place) const;
  std::uint64_t word(std::size_t offset) const;
  Operation operation(std::uint64_t n) const { return operation_at(wiring_.in(), wiring_.plan.transport, n); }

  Wiring& wiring_;
  std::vector<Receives*> queues_;
  Sender& back_;
  ibv_mw* const window_;
  ibv_mr* const window_region_;
  const std::atomic<std::uint64_t>& ticks_;
  Dice dice_;
  std::uint64_t next_message_, next_write_;  // operations: the next ones of their kinds
  std::uint64_t messages_ = 0;               // received or dropped
  std::uint64_t consumed_ = 0, released_ = 0;
  std::deque<Sealed> sealed_;
  Credits told_{};
  std::uint32_t patience_ = 0;  // turns until late receives are posted
  std::uint64_t binds_ = 0, binds_told_ = 0;
  std::uint32_t window_key_ = 0;
  std::uint64_t sender_at_ = 0, moved_at_ = 0;  // ticks
  bool flushing_ = false;
};

}  // namespace storm
