// The deeds of a process, and the faults found in it. Counters may be raised by any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace storm {

// The kind of a request, and the stream of a flow that checks it: messages use up a receive of the peer's, writes go
// to places of the ring there.
enum class Kind : std::uint8_t {
  kSend,
  kSendImm,
  kSendInvalidate,
  kWrite,
  kWriteImm,
  kRead,         // of what never changes
  kMirrorWrite,  // into memory that the writer alone uses
  kMirrorRead,   // and its reading back
  kAdd,
  kSharedAdd,  // on a counter that many add to
  kSwap,
  kBind,
  kInvalidate,  // of a window, by its owner
  kCredit,      // not of a plan: how far the receiver is
  kFlush,       // not of a plan: the last of an epoch
  kCount
};
const char* name_of(Kind kind);

enum class Fault : std::uint8_t {
  kLost,
  kDoubled,
  kEarly,
  kCorrupted,
  kReordered,
  kHung,
  kCompletion,  // wrong, missing or surplus
  kEvent,       // surplus; a missing one hangs
  kRefused,     // a call that must succeed has not
  kIdentity,    // an object is not what it was
  kCount
};
const char* name_of(Fault fault);

// Other things that are worth a number in the report.
enum class Count : std::uint8_t {
  kBytes,
  kEpochs,
  kCompletions,
  kCompletionEvents,
  kLimitEvents,
  kDropped,  // datagrams and messages of unreliable connections
  kFlushed,  // receives returned by a queue pair in error
  kChurned,  // objects made and destroyed beside the traffic
  kAddressHandles,
  kDeepest,  // most requests outstanding on one queue pair
  kCount
};
const char* name_of(Count count);

class Ledger {
 public:
  void did(Kind kind, std::uint64_t n = 1) { add(kinds_[static_cast<int>(kind)], n); }
  void count(Count what, std::uint64_t n = 1) { add(counts_[static_cast<int>(what)], n); }
  void raise_to(Count what, std::uint64_t n);  // if it is less
  // Prints what is wrong, the first few times.
  void fault(Fault fault, const char* format, ...) __attribute__((format(printf, 3, 4)));
  // The process has to end, for what another has found.
  void give_up(const char* why);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  std::uint64_t operations() const;
  std::uint64_t faults(Fault fault) const { return faults_[static_cast<int>(fault)].load(); }

  void set_name(std::string name) { name_ = std::move(name); }
  // {"operations": {...}, "faults": {...}, ...}
  std::string json() const;

 private:
  using Number = std::atomic<std::uint64_t>;
  static void add(Number& number, std::uint64_t n) { number.fetch_add(n, std::memory_order_relaxed); }
  std::array<Number, static_cast<int>(Kind::kCount)> kinds_{};
  std::array<Number, static_cast<int>(Fault::kCount)> faults_{};
  std::array<Number, static_cast<int>(Count::kCount)> counts_{};
  std::atomic<bool> failed_{false};
  std::string name_;
};

Ledger& ledger();

// A verbs call that must succeed: returns whether it has, else a fault with errno's text.
bool succeeded(bool condition, const char* what, int error);

}  // namespace storm

// One for calls that return 0 or an error number, one for calls that return an object or set errno.
#define STORM_ZERO(call) (::storm::zero((call), #call))
namespace storm {
inline bool zero(int rc, const char* what) { return rc == 0 || succeeded(false, what, rc); }
template <typename T>
T* made(T* object, const char* what) {
  succeeded(object != nullptr, what, 0);
  return object;
}
}  // namespace storm
