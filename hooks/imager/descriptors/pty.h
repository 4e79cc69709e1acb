// A pseudo-terminal's state and what waits in it, as seen by who has its master. Used by the capture, in the
// program's process, and by the restart: no program heap, no stdio.
#pragma once

#include <cstdint>
#include <string>

#include "hooks/imager/descriptors/table.h"
#include "shadowib/base/status.h"

namespace shadowib::descriptors {

// The kernel's struct termios2, which libc's header and the kernel's cannot both be included for.
struct TerminalModes {
  std::uint32_t input, output, control, local;
  std::uint8_t discipline, characters[19];
  std::uint32_t input_speed, output_speed;
};
static_assert(sizeof(TerminalModes) == 44);

// The meaning of Object::pty_flags of a master.
inline constexpr std::uint32_t kPtyPacket = 1;     // TIOCPKT
inline constexpr std::uint32_t kPtyLocked = 2;     // the slave may not be opened
inline constexpr std::uint32_t kPtyExclusive = 4;  // TIOCEXCL of the slave
// Output stands still: by the stop character, which the start character undoes, or by tcflow(), which only that does.
inline constexpr std::uint32_t kPtyStopped = 8;
inline constexpr std::uint32_t kPtySuspended = 16;
inline constexpr std::uint32_t kPtyUnopened = 32;  // as far as /proc shows nobody has the slave open, and nobody had
inline constexpr std::uint32_t kPtyContents = 64;  // modes, window and queues are in this object

// Opens the slave of `master`, whatever /dev/pts calls it, as no controlling terminal. -1 with errno.
int open_slave(int master, int flags);

// Takes modes, window, flags and all that can be read at either end into `object`, and puts all of it back as it was.
// There is no peeking into a terminal, so every process that has one of the ends has to be stopped. kRefused leaves
// everything as it was, and says why.
Status capture_pty(int master, Object* object);

// Gives a pty, in which nothing waits, the state of `object`.
Status fill_pty(int master, int slave, const Object& object);

}  // namespace shadowib::descriptors
