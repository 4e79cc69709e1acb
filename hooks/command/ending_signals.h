// Signals by which people and batch systems end a command.
#pragma once

#include <signal.h>

namespace shadowib {

// SIGINT, SIGTERM and SIGHUP wait while this lives: what a command says and what it does stay together. For a command
// with one thread.
class EndingSignalsWait {
 public:
  EndingSignalsWait() {
    sigset_t ending;
    sigemptyset(&ending);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ending, signal);
    pthread_sigmask(SIG_BLOCK, &ending, &before_);
  }
  ~EndingSignalsWait() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  EndingSignalsWait(const EndingSignalsWait&) = delete;
  EndingSignalsWait& operator=(const EndingSignalsWait&) = delete;

 private:
  sigset_t before_;
};

}  // namespace shadowib
