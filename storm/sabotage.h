// Mistakes made on purpose, to see that the ledger finds them.
#pragma once

#include <atomic>
#include <cstdint>

namespace storm {

enum class Sabotage : std::uint8_t {
  kNone,
  kLost,        // a message is not posted
  kDoubled,     // a message is posted twice
  kReplayed,    // writes are posted again some time later
  kEarly,       // writes do not wait until their place is free
  kCorrupted,   // a byte is another
  kCompletion,  // a request is signaled that should not be
  kCounter,     // an addition to a shared counter adds two
  kHung,        // a sender stops
  kStuck,       // all senders stop
  kForgotten,   // a message beside the connections is not posted, nor those behind it
};

// One per process. Any thread may ask.
class Saboteur {
 public:
  void choose(Sabotage what) { chosen_ = what; }
  bool is(Sabotage what) const { return chosen_ == what; }
  // True once, when there have been some chances.
  bool strikes(Sabotage what) { return chosen_ == what && chances_.fetch_add(1) == kFirst; }
  // True from then on.
  bool goes_on_with(Sabotage what) { return chosen_ == what && chances_.fetch_add(1) >= kFirst; }

 private:
  static constexpr std::uint32_t kFirst = 20;
  Sabotage chosen_ = Sabotage::kNone;
  std::atomic<std::uint32_t> chances_{0};
};

inline Saboteur& saboteur() {
  static Saboteur the_saboteur;
  return the_saboteur;
}

}  // namespace storm
