// Whether a completion queue awaits an event, as far as a rebuild must know.
#pragma once

#include <atomic>
#include <cstdint>

namespace shadowib {

// Counts the requests for notification that no event taken from the backend has answered. A request made while
// earlier events lie unread must survive the reading of all of them, however many there are (H8): each was the answer
// to a request of its own, so that a queue that is armed counts one at least. One event answers all requests made
// before it, so a program that asks more often than it is told leaves some counted; a rebuild arms the queue then
// although it need not, which yields one event too many, as verbs allow, and counts one from there on. Thread-safe,
// also against itself.
class Arming {
 public:
  // The backend is about to be asked for an event. The stronger of two unanswered requests counts: any completion.
  void note_armed(bool solicited_only) {
    std::uint64_t seen = word_.load(std::memory_order_relaxed);
    while (!word_.compare_exchange_weak(seen, (seen + kOne) | (solicited_only ? 0 : kAny))) {
    }
  }
  // It did not take the request.
  void note_refused() { note_event(); }
  // An event was taken from the backend.
  void note_event() {
    std::uint64_t seen = word_.load(std::memory_order_relaxed);
    while (seen >= kOne && !word_.compare_exchange_weak(seen, seen < 2 * kOne ? 0 : seen - kOne)) {
    }
  }
  // A rebuild will ask the new backend once for everything unanswered.
  void note_rebuilt() {
    if (is_armed()) word_.store(kOne | (word_.load() & kAny));
  }
  bool is_armed() const { return word_.load() >= kOne; }
  bool solicited_only() const { return (word_.load() & kAny) == 0; }

 private:
  static constexpr std::uint64_t kAny = 1, kOne = 2;
  std::atomic<std::uint64_t> word_{
      0};  // unanswered requests times kOne, and kAny if one of them was for any completion
};

}  // namespace shadowib
