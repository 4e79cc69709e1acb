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

// ERANGE if the adjustment less `change` is out of range, EAGAIN if not; another errno if the call is denied.
// `value` is the semaphore's.
inline int try_adjustment(int id, int number, int value, int change) {
  sembuf operations[12];
  std::size_t count = 0;
  const auto add = [&](int by, int flags) {
    operations[count++] = {static_cast<unsigned short>(number), static_cast<short>(by),
                           static_cast<short>(flags | IPC_NOWAIT)};
  };
  for (int left = change; left != 0;) {
    const int step = std::clamp(left, -kMostSemaphoreValue, kMostSemaphoreValue);
    const int wanted = step > 0 ? 0 : kMostSemaphoreValue;  // a value that has room for the step
    if (value != wanted) add(wanted - value, 0);
    add(step, SEM_UNDO);
    value = wanted + step;
    left -= step;
  }
  // No value is zero and one: the whole fails, whatever the semaphore is.
  add(0, 0);
  add(-1, 0);
  return ::semop(id, operations, count) == 0 ? 0 : errno;
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
