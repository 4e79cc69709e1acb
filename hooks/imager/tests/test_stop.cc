#include "hooks/imager/tests/test_stop.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "hooks/threads/fault.h"
#include "hooks/threads/sanitizer_thread.h"
#include "hooks/threads/stop.h"
#include "hooks/threads/thread_context.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr int kMax = 4096;
ParkedThread g_parked[kMax];
std::atomic<std::uint32_t> g_parked_count, g_stopped;

void park(int, siginfo_t*, void* interrupted) {
  const int saved = errno;
  ParkedContext here;
  std::memcpy(&here.program_mask, &static_cast<ucontext_t*>(interrupted)->uc_sigmask, sizeof(here.program_mask));
  if (save_context(&here.context) == 0) {
    static std::atomic<std::uint32_t> next;
    const std::uint32_t mine = next.fetch_add(1);
    g_parked[mine] = {here.context.tid, &here};
    g_parked_count.fetch_add(1);
    futex_wake(&g_parked_count, 1);
  }
  while (g_stopped.load() != 0) futex_wait(&g_stopped, 1);
  errno = saved;
}

}  // namespace

int parked_threads(ParkedThread* threads, int capacity) {
  const int count = static_cast<int>(g_parked_count.load());
  for (int i = 0; i < count && i < capacity; ++i) threads[i] = g_parked[i];
  return count;
}

// The saver stops here before it writes, until the program has done what the test has in mind.
Status fault_point(int point) {
  constexpr int kSaver = 68;  // hooks/job/phase.h
  if (point == kSaver && ::getenv("IMAGER_TEST_SAVER_STOPS") != nullptr) ::kill(::getpid(), SIGSTOP);
  return {};
}
bool fault_no_space() { return ::getenv("IMAGER_TEST_NO_SPACE") != nullptr; }

namespace test {

void install_stop_handler(bool on_alternate_stack) {
  end_sanitizer_thread();
  struct sigaction action {};
  action.sa_sigaction = park;
  ::sigfillset(&action.sa_mask);
  action.sa_flags = SA_SIGINFO | SA_RESTART | (on_alternate_stack ? SA_ONSTACK : 0);
  ::sigaction(SIGRTMAX - 2, &action, nullptr);
}

void stop_all() {
  g_stopped = 1;
  const long self = ::syscall(SYS_gettid);
  std::uint32_t expected = 0;
  DIR* dir = ::opendir("/proc/self/task");
  while (const dirent* entry = ::readdir(dir)) {
    const int tid = ::atoi(entry->d_name);
    if (tid <= 0 || tid == self) continue;
    ::syscall(SYS_tgkill, ::getpid(), tid, SIGRTMAX - 2);
    ++expected;
  }
  ::closedir(dir);
  for (std::uint32_t now; (now = g_parked_count.load()) < expected;) futex_wait(&g_parked_count, now);
}

void release_all() {
  g_stopped = 0;
  futex_wake(&g_stopped, kMax);
}

}  // namespace test
}  // namespace shadowib
