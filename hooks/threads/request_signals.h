// Signals by which whoever runs a job asks for a checkpoint of it: a batch system that is about to take the machine
// back sends one to the processes.
//
// SHADOWIB_CHECKPOINT_ON and SHADOWIB_KILL_ON name them ("USR1,TERM"); the latter also end the job once the set is
// committed. From the time a process is a member they are shadowib's: the agent's thread takes them if no other may,
// what the program does on them is kept apart as with the stop signal (stop.h), and is what a child by fork() gets
// back.
#pragma once

#include <atomic>
#include <cstdint>

#include "hooks/raw/raw_signal.h"
#include "shadowib/base/status.h"

namespace shadowib {

// The signals that `text` names, as bits of raw_signal.h: names with or without SIG, or numbers, with commas between
// them. kUsage names a word that is no signal, or a signal that cannot be taken from a program.
Status parse_request_signals(const char* text, std::uint64_t* signals);

// Reads the environment. After stop_install().
Status choose_request_signals();
// Takes what was chosen from this process. `wake_fd`: where the number of an eventfd stands that becomes readable
// when a signal comes.
void install_request_signals(const std::atomic<int>* wake_fd);
// Async-signal-safe.
bool is_request_signal(int signal);
std::uint64_t request_signals();

// Exchanges the program's own action for such a signal. Either may be null.
void exchange_request_action(int signal, const KernelSigaction* action, KernelSigaction* old);

// Requests since the last call.
struct SignalledRequest {
  bool checkpoint = false, kill = false;
};
SignalledRequest take_signalled_request();
// Likewise without an answer, and without looking at the eventfd.
void drop_signalled_request();

// In a forked child: the program's own actions are in force again.
void give_back_request_signals();

}  // namespace shadowib
