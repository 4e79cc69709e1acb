// Whether a completion queue awaits an event, as far as a rebuild must know.
#pragma once

#include <atomic>
#include <cstdint>

namespace shadowib {

// Counts the requests for notification that no event taken from the backend has answered. A request made while
// earlier events lie unread must survive the reading of all of them (H8). Each event was the answer to a request of
// its own, so an armed queue counts one at least. One event answers all requests made before it. So a program that
// asks more often than it is told leaves some counted, and a rebuild arms the queue although it need not. That yields
// one event too many, as verbs allow. The queue counts one from there on. Thread-safe, also against itself.
//
// Requests for any completion and for solicited ones are counted apart, since one that the backend refuses takes back
// itself and nobody else's. The stronger kind counts until all are answered.
class Arming {
 public:
  // The backend is about to be asked for an event.
  void note_armed(bool solicited_only) {
    change([solicited_only](Requests r) {
      std::uint32_t& kind = solicited_only ? r.solicited : r.any;
      kind += kind != kMost;
      return r;
    });
  }
  // It did not take the request. An event that came meanwhile may have been counted as that one's answer.
  void note_refused(bool solicited_only) {
    change([solicited_only](Requests r) {
      return (solicited_only ? r.solicited : r.any) != 0 ? r.without(solicited_only) : r.without(!solicited_only);
    });
  }
  // An event was taken from the backend.
  void note_event() {
    change([](Requests r) { return r.without(r.solicited != 0); });
  }
  // A rebuild will ask the new backend once for everything unanswered.
  void note_rebuilt() {
    forget_surplus();
    change([](Requests r) { return r.any != 0 ? Requests{1, 0} : Requests{0, r.solicited != 0 ? 1u : 0u}; });
  }
  bool is_armed() const { return word_.load() != 0; }
  bool solicited_only() const { return unpack(word_.load()).any == 0; }

  // The shim has asked the backend once more for an unanswered request, and tells the event that it has taken
  // nevertheless. One event may come that no request of the program waits for.
  void note_surplus() { surplus_.store(Surplus::kDue, std::memory_order_relaxed); }
  // Or it was taken, and not told.
  bool may_have_surplus() const { return surplus_.load(std::memory_order_relaxed) != Surplus::kNone; }
  // The program asks again, so that the two requests become one. Events from before have been taken. True if one of
  // them was not told: what it was for may lie in the backend's queue, which has told of it and will not again.
  bool forget_surplus() { return surplus_.exchange(Surplus::kNone, std::memory_order_relaxed) == Surplus::kUntold; }
  // Likewise for an event that was taken while the program asked: true for its request or for the taker's
  // (take_surplus), whichever comes later.
  bool forget_untold() {
    Surplus untold = Surplus::kUntold;
    return __builtin_expect(surplus_.load() == untold, 0) && surplus_.compare_exchange_strong(untold, Surplus::kNone);
  }
  // An event was taken from the backend. True if no request waits for it: it is not told. That is so whether one was
  // due or not. The backend may have told of its surplus just when the program asked again. That event answers the
  // program, and the backend's answer to the program's own request is the one too many.
  bool take_surplus() {
    if (is_armed()) {  // this may be the one that is due, or the answer to a request, and is told
      Surplus due = Surplus::kDue;
      surplus_.compare_exchange_strong(due, Surplus::kNone, std::memory_order_relaxed);
      return false;
    }
    surplus_.store(Surplus::kUntold);
    return !is_armed() || !forget_untold();
  }

 private:
  static constexpr std::uint32_t kMost = ~std::uint32_t{0};
  // Unanswered ones, by kind.
  struct Requests {
    std::uint32_t any, solicited;
    Requests without(bool of_solicited) const {
      return of_solicited ? Requests{any, solicited - (solicited != 0)} : Requests{any - (any != 0), solicited};
    }
  };
  static std::uint64_t pack(Requests r) { return r.any | std::uint64_t{r.solicited} << 32; }
  static Requests unpack(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
  }
  template <typename Change>
  void change(Change changed) {
    std::uint64_t seen = word_.load(std::memory_order_relaxed);
    while (!word_.compare_exchange_weak(seen, pack(changed(unpack(seen))))) {
    }
  }

  std::atomic<std::uint64_t> word_{0};
  enum class Surplus : std::uint8_t { kNone, kDue, kUntold };
  std::atomic<Surplus> surplus_{Surplus::kNone};
};

}  // namespace shadowib
