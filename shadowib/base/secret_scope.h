// Where a secret passes through this thread: what must not be found in an image afterwards.
#pragma once

#include <cstdint>

namespace shadowib {

// While it lives no signal reaches the thread, since a signal's frame would keep the registers on the stack. At its
// end the vector registers are cleared: libc copies and compares through them. The owner wipes secrets in memory. For
// moments without a wait: a stop waits for the thread meanwhile.
class SecretScope {
 public:
  // Which registers there are, which after a restart may be others: before the first scope, and whenever it may have
  // changed. Asking takes a virtual machine tens of microseconds.
  static void note_processor();

  SecretScope();
  ~SecretScope();
  SecretScope(const SecretScope&) = delete;
  SecretScope& operator=(const SecretScope&) = delete;

 private:
  std::uint64_t before_ = 0;
};

}  // namespace shadowib
