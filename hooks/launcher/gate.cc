#include "hooks/launcher/gate.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "shadowib/base/deadline.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

std::atomic<std::uint32_t> g_inside{0}, g_closed{0};
std::atomic<const char*> g_latest{""};
std::atomic<int> g_library_thread{0};
constinit thread_local int t_calls __attribute__((tls_model("initial-exec"))) = 0;

bool on_library_thread() {
  const int thread = g_library_thread.load(std::memory_order_relaxed);
  return thread != 0 && thread == static_cast<int>(::syscall(SYS_gettid));
}

}  // namespace

void enter_launcher_gate(const char* name) {
  for (;;) {
    g_inside.fetch_add(1);
    if (g_closed.load() == 0) break;
    leave_launcher_gate();
    futex_wait(&g_closed, 1);
  }
  g_latest.store(name);
}

void leave_launcher_gate() {
  if (g_inside.fetch_sub(1) == 1 && g_closed.load() != 0) futex_wake(&g_inside, 1 << 30);
}

LauncherCall::LauncherCall(const char* name) : nested_(t_calls++ > 0), counted_(!nested_ && !on_library_thread()) {
  if (counted_) enter_launcher_gate(name);
}

LauncherCall::~LauncherCall() {
  --t_calls;
  if (counted_) leave_launcher_gate();
}

void note_library_thread() { g_library_thread.store(static_cast<int>(::syscall(SYS_gettid))); }

Status close_launcher_gate(int timeout_ms) {
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  g_closed.store(1);
  std::uint32_t inside = 0;
  while ((inside = g_inside.load()) != 0) {
    const std::int64_t left = deadline.left_ns();
    if (left == 0) break;
    futex_wait(&g_inside, inside, left);
  }
  if (inside == 0) return {};
  open_launcher_gate();
  return Status::of(
      Code::kRefused, 0,
      "%u call(s) to the launcher, the latest of them %.60s, have not come to their end within %d ms; try again",
      inside, g_latest.load(), timeout_ms);
}

void open_launcher_gate() {
  if (g_closed.exchange(0) != 0) futex_wake(&g_closed, 1 << 30);
}

void reset_launcher_gate_after_fork() {
  g_inside = 0;
  g_closed = 0;
  g_library_thread = 0;
  t_calls = 0;
}

}  // namespace shadowib
