// Signals that wait for the process and would end or stop it as soon as it runs.
//
// The sender of such a signal meant the process that ran then. A batch system that wants the machine back sends
// SIGTERM, and has a checkpoint taken, in this order or the other. That process gets it as ever. Each restart of the
// set would die of it at once, for ever. So it is left out of the image, if the program has neither a handler for it
// nor has blocked it. Signals with a handler are the program's own affair, and so are blocked ones: it may take them
// by sigwait or a signalfd. And what asks us for a checkpoint (hooks/threads/request_signals.h) has asked for this
// one.
#pragma once

#include <cstdint>

#include "hooks/imager/image_format.h"

namespace shadowib {

// Drops such signals from pending[0..count), siginfo_t each, and returns how many are left. `blocked`: by the
// program, in the thread they wait for or, if they wait for the process, in all of its threads. `requests`: for
// checkpoints.
std::uint32_t leave_out_fatal(std::uint8_t (*pending)[128], std::uint32_t count, const SignalAction (&actions)[64],
                              std::uint64_t blocked, std::uint64_t requests);

}  // namespace shadowib
