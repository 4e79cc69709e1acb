// Calls that wait for an answer of the launcher's, or of its library's thread, and must not be cut in two by a
// checkpoint: the answer would come to nobody. They are let in one by one until the gate is closed; who comes then
// waits before it, where it can be stopped.
#pragma once

#include "shadowib/base/status.h"

namespace shadowib {

// For the time of such a call. A call within a call, as the library makes of itself, is let in.
class [[nodiscard]] LauncherCall {
 public:
  explicit LauncherCall(const char* name);  // literal
  ~LauncherCall();
  LauncherCall(const LauncherCall&) = delete;
  LauncherCall& operator=(const LauncherCall&) = delete;
  // Not the program's: the library calls itself.
  bool nested() const { return nested_; }

 private:
  bool nested_, counted_;
};

// Likewise for a conversation instead of a call: from the first part of a question to the end of its answer.
void enter_launcher_gate(const char* name);  // literal; not inside (hooks/threads/stop.h)
void leave_launcher_gate();

// The calling thread is the library's own, which everybody waits for: it never waits before the gate.
void note_library_thread();

// Lets nobody in and waits until all have come out; kRefused, and open again, after timeout_ms.
Status close_launcher_gate(int timeout_ms);
void open_launcher_gate();
void reset_launcher_gate_after_fork();

}  // namespace shadowib
