// Signals to a supervisor, held back and read one by one. Those that its caller ignores stay ignored.
#pragma once

#include <signal.h>

namespace shadowib::cli {

class HeldSignals {
 public:
  // `extra`: one that is held, too; 0: none.
  explicit HeldSignals(int extra);
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // Until a signal is there, a child has ended, or `ms` have passed.
  void wait(int ms) const;
  // The next signal, 0 if there is none. *by_terminal: the terminal has sent it to the whole process group.
  int take(bool* by_terminal) const;
  static bool ends(int signal);  // asks for the end of the job

 private:
  int fd_ = -1;
};

}  // namespace shadowib::cli
