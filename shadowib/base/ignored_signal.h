// Signals that a process was started with ignored.
#pragma once

#include <signal.h>

namespace shadowib {

// True if `signal` is ignored now. A program that nohup(1) starts leaves SIGHUP so. Source: sigaction(2).
inline bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace shadowib
