// The adjustment that SEM_UNDO has noted for a process: read, and set. The kernel has no call for either.
//
// An operation fails with ERANGE if it would bring the adjustment out of range, before it looks at anything else. So
// operations that cannot succeed as a whole tell it, and nothing changes. The end of a process that has asked sets
// sem_otime.
#pragma once

#include <sys/sem.h>

#include <algorithm>
#include <cerrno>

namespace shadowib::descriptors {

inline constexpr int kMostSemaphoreValue = 32767;  // SEMVMX; an adjustment goes from -32768 to 32767 (SEMAEM)

// Operations on semaphores of one set that change their adjustments and fail as a whole.
class UndoQuestion {
 public:
  explicit UndoQuestion(int id) : id_(id) {}

  // Lessens the adjustment of one semaphore by `change`. `value` is the semaphore's.
  void lessen(int number, int value, int change) {
    for (int left = change; left != 0;) {
      const int step = std::clamp(left, -kMostSemaphoreValue, kMostSemaphoreValue);
      const int wanted = step > 0 ? 0 : kMostSemaphoreValue;  // a value that has room for the step
      if (value != wanted) add(number, wanted - value, 0);
      add(number, step, SEM_UNDO);
      value = wanted + step;
      left -= step;
    }
  }

  // ERANGE if an adjustment leaves its range, EAGAIN if none does; another errno if the call is denied.
  int ask() {
    // No value is zero and one: the whole fails, whatever the semaphore is.
    add(last_number(), 0, 0);
    add(last_number(), -1, 0);
    return ::semop(id_, operations_, count_) == 0 ? 0 : errno;
  }

 private:
  int last_number() const { return count_ > 0 ? operations_[count_ - 1].sem_num : 0; }
  void add(int number, int by, int flags) {
    operations_[count_++] = {static_cast<unsigned short>(number), static_cast<short>(by),
                             static_cast<short>(flags | IPC_NOWAIT)};
  }

  static constexpr int kMostOperations = 500;  // SEMOPM, and more than any question asks
  int id_;
  std::size_t count_ = 0;
  sembuf operations_[kMostOperations];
};

// For one semaphore.
inline int try_adjustment(int id, int number, int value, int change) {
  UndoQuestion question(id);
  question.lessen(number, value, change);
  return question.ask();
}

// EAGAIN if semaphores first ... first + count - 1 have no adjustment, ERANGE if one has; another errno if the call
// is denied. `values` are of the whole set. `count` is at most kAskedTogether.
inline constexpr int kAskedTogether = 100;
inline int ask_for_undo(int id, const unsigned short* values, int first, int count) {
  UndoQuestion down(id), up(id);
  for (int n = first; n < first + count; ++n) {
    down.lessen(n, values[n], 32768);  // in range from 0 on
    up.lessen(n, values[n], -32767);   // in range up to 0
  }
  const int answer = down.ask();
  return answer == EAGAIN ? up.ask() : answer;
}

// The adjustment of the calling process; 0 if it may not change the semaphore.
inline int undo_of_semaphore(int id, int number, int value) {
  constexpr int kLowest = -32768;
  int fits = 0, fails = 2 * (kMostSemaphoreValue + 1);  // the adjustment is fits + kLowest
  if (try_adjustment(id, number, value, -kLowest) == EAGAIN) fits = -kLowest;
  if (try_adjustment(id, number, value, -kLowest + 1) == ERANGE) fails = -kLowest + 1;
  while (fails - fits > 1) {
    const int middle = (fits + fails) / 2;
    const int answer = try_adjustment(id, number, value, middle);
    if (answer != EAGAIN && answer != ERANGE) return 0;
    (answer == EAGAIN ? fits : fails) = middle;
  }
  return fits + kLowest;
}

// Notes `adjustment` for the calling process, which has none. The value stays. False with errno.
inline bool set_undo_of_semaphore(int id, int number, int value, int adjustment) {
  for (int left = adjustment; left != 0;) {
    const int sign = left > 0 ? 1 : -1;
    const int room = std::max(value, kMostSemaphoreValue - value);  // for a step down and up again, or the reverse
    const int step = sign * std::min(sign * left, room);
    sembuf operations[2] = {{static_cast<unsigned short>(number), static_cast<short>(-step), SEM_UNDO | IPC_NOWAIT},
                            {static_cast<unsigned short>(number), static_cast<short>(step), IPC_NOWAIT}};
    const bool first = value - step >= 0 && value - step <= kMostSemaphoreValue;
    if (!first) std::swap(operations[0], operations[1]);
    if (::semop(id, operations, 2) != 0) return false;
    left -= step;
  }
  return true;
}

}  // namespace shadowib::descriptors
