// Signals to a command that stands for processes: they are for the processes, and do not end the command.
#pragma once

#include <signal.h>

namespace shadowib {

inline constexpr int kForwardedSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH};

// For pthread_sigmask(3) and signalfd(2).
inline sigset_t forwarded_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : kForwardedSignals) ::sigaddset(&set, signal);
  return set;
}

}  // namespace shadowib
