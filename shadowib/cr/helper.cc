#include "shadowib/cr/helper.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <atomic>

#include "hooks/job/phase.h"
#include "hooks/raw/raw_signal.h"
#include "hooks/threads/fault.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/lock.h"
#include "shadowib/objects/backend.h"

namespace shadowib {
namespace {

SpinLock g_start_lock;
bool g_running = false;
std::atomic<std::uint32_t> g_park{0};    // 1: be parked
std::atomic<std::uint32_t> g_parked{0};  // 1: outside the backend, about to park or parked

void* helper_main(void*) {
  (void)fault_point(Phase::kHelper).ok();
  stop_exempt_this_thread();
  ::prctl(PR_SET_NAME, "shadowib-helper");
  for (;;) {
    if (g_park.load() == 1) {
      g_parked = 1;
      futex_wake(&g_parked, 1);
      park_exempt_thread_while(&g_park, 1);
      g_parked = 0;
      continue;
    }
    if (g_backend.progress != nullptr)
      g_backend.progress(-1);
    else  // the backend of this generation moves its data by itself; that of the next may not
      futex_wait(&g_park, 0);
  }
  return nullptr;
}

}  // namespace

Status start_helper() {
  SpinGuard guard(g_start_lock);
  if (g_running || g_backend.progress == nullptr) return {};
  // The stop signal, too: a stop that came before the thread has exempted itself would keep it from ever parking.
  AllSignalsBlocked blocked;  // the thread inherits it, until it is exempt
  pthread_attr_t attr;
  ::pthread_attr_init(&attr);
  ::pthread_attr_setstacksize(&attr, 256 << 10);
  ::pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  int rc = ::pthread_create(&thread, &attr, helper_main, nullptr);
  ::pthread_attr_destroy(&attr);
  if (rc != 0)
    return Status::of(Code::kIo, rc, "cannot start the helper thread: %s; raise the limit on processes (ulimit -u)",
                      ::strerror(rc));
  g_running = true;
  return {};
}

Status park_helper(int timeout_ms) {
  if (!g_running) return {};
  g_park = 1;
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  while (g_parked.load() == 0) {
    if (deadline.has_passed())
      return Status::of(Code::kTimeout, 0, "the helper thread did not leave the backend within %d ms", timeout_ms);
    if (g_backend.wake != nullptr) g_backend.wake();
    futex_wake(&g_park, 1);
    futex_wait(&g_parked, 0, 1000000);
  }
  return {};
}

void unpark_helper() {
  g_park = 0;
  futex_wake(&g_park, 1);
}

void flush_at_exit() {
  if (g_running && g_backend.progress != nullptr) g_backend.progress(0);
}

void forget_helper() {
  g_running = false;
  g_park = 0;
  g_parked = 0;
  g_start_lock.reset();
}

}  // namespace shadowib
