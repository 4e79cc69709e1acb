// A member that dies by a fault while a restart brings it back says where: its user has nothing else to look at.
#pragma once

#include "hooks/raw/raw_signal.h"

namespace shadowib {

// While it lives, a fault (SIGSEGV, SIGBUS, SIGILL, SIGFPE) of a thread that takes these signals is logged, with the
// place in memory and in a file.
// The process ends by the signal then, as without it. Made by the agent while all threads of the program are parked.
class FaultReports {
 public:
  explicit FaultReports(unsigned member);
  ~FaultReports();
  FaultReports(const FaultReports&) = delete;
  FaultReports& operator=(const FaultReports&) = delete;

 private:
  KernelSigaction program_[4] = {};
};

// The calling thread, which blocks every signal, takes those of faults if they are reported now.
class TakesFaults {
 public:
  TakesFaults();
  ~TakesFaults() { raw_sigmask(SIG_SETMASK, &before_, nullptr); }
  TakesFaults(const TakesFaults&) = delete;
  TakesFaults& operator=(const TakesFaults&) = delete;

 private:
  std::uint64_t before_ = 0;
};

}  // namespace shadowib
