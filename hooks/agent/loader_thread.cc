#include "hooks/agent/loader_thread.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstdlib>

#include "hooks/agent/empty_library.h"
#include "hooks/agent/fault_report.h"
#include "hooks/raw/raw_signal.h"
#include "hooks/raw/tasks.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"
#include "shadowib/base/malloc_arenas.h"

namespace shadowib {
namespace {

enum Command : std::uint32_t { kIdle, kRun, kPark };

std::atomic<std::uint32_t> g_command{kIdle};
std::atomic<std::uint32_t> g_finished{0};  // jobs done
std::uint32_t g_started = 0;               // jobs given; touched by the agent alone
Status (*g_function)(void*) = nullptr;
void* g_argument = nullptr;
Status g_result;
bool g_running = false;
std::atomic<int> g_tid{0};
constexpr std::size_t kPageBytes = 4096;
int (*g_unmap)(void*, std::size_t) = nullptr;  // libc's

void* loader_main(void*) {
  ::prctl(PR_SET_NAME, "shadowib-loader");
  stop_exempt_this_thread();
  note_malloc_arena();
  g_tid.store(raw_gettid());
  for (;;) {
    switch (g_command.load(std::memory_order_acquire)) {
      case kRun: {
        const TakesFaults takes;
        g_result = g_function(g_argument);
      }
        g_command.store(kIdle, std::memory_order_release);
        g_finished.fetch_add(1, std::memory_order_release);
        futex_wake(&g_finished, 1);
        break;
      case kPark:
        park_exempt_thread_while(&g_command, kPark);
        break;
      default:
        futex_wait(&g_command, kIdle);
    }
  }
  return nullptr;
}

// `timeout_ms`: of the whole that began at `start`.
Status wait_finished(std::int64_t start, int timeout_ms) {
  const std::int64_t deadline = start + std::int64_t{timeout_ms} * 1000000;
  for (;;) {
    const std::uint32_t finished = g_finished.load(std::memory_order_acquire);
    if (finished == g_started) return {};
    const std::int64_t left = deadline - monotonic_ns();
    if (left <= 0) {
      char thread[200];
      describe_task(g_tid.load(), thread, sizeof(thread));
      return Status::of(Code::kTimeout, 0,
                        "the loader thread did not finish within %d ms (a stopped thread holds a lock of the "
                        "loader or of malloc): %s",
                        timeout_ms, thread);
    }
    futex_wait(&g_finished, finished, left);
  }
}

void give(std::uint32_t command) {
  g_command.store(command, std::memory_order_release);
  futex_wake(&g_command, 1);
}

// As a program's libraries know it, which may have turned it: Open MPI and UCX write a jump of theirs over it, and
// take a lock of theirs then. malloc calls it as it likes.
void unmap_as_libc_does() {
  void* const page = reinterpret_cast<void*>(
      ::syscall(SYS_mmap, nullptr, kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (page != MAP_FAILED) g_unmap(page, kPageBytes);
}

Status rehearse(void*) {
  // The locks of dlopen and dlclose, of the list of objects, and of the arenas of malloc where the old backend lies
  // and where the new one will.
  if (void* handle = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD)) ::dlclose(handle);
  ::dl_iterate_phdr([](dl_phdr_info*, std::size_t, void*) { return 1; }, nullptr);
  take_locks_of_noted_arenas();
  if (static bool told = false; !open_and_close_empty_library() && !told) {
    told = true;
    log_line(LogLevel::kWarn,
             "the loader takes no library from memory (memfd_create, /proc): whether one could be closed after a "
             "restart is not tried before a checkpoint");
  }
  unmap_as_libc_does();
  return {};
}

}  // namespace

Status loader_thread_start() {
  if (g_running) return {};
  note_malloc_arena();  // the new thread's table of thread-local storage is in it
  if (void* libc = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD)) {
    g_unmap = reinterpret_cast<int (*)(void*, std::size_t)>(::dlsym(libc, "munmap"));
    ::dlclose(libc);
  }
  if (g_unmap == nullptr) return Status::of(Code::kInternal, 0, "the C library has no munmap: %s", ::dlerror());
  AllSignalsBlocked blocked;  // the thread inherits it, until it is exempt
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, 1 << 20);  // constructors of providers run on it
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  int rc = ::pthread_create(&thread, &attributes, loader_main, nullptr);
  ::pthread_attr_destroy(&attributes);
  if (rc != 0) return Status::of(Code::kIo, rc, "cannot create the loader thread (limit of processes?)");
  g_running = true;
  return {};
}

Status run_on_loader_thread(Status (*fn)(void*), void* arg, int timeout_ms) {
  const std::int64_t start = monotonic_ns();
  SHADOWIB_TRY(wait_finished(start, timeout_ms));
  g_function = fn;
  g_argument = arg;
  ++g_started;
  give(kRun);
  SHADOWIB_TRY(wait_finished(start, timeout_ms));
  return g_result;
}

Status loader_rehearse(int timeout_ms) { return run_on_loader_thread(rehearse, nullptr, timeout_ms); }

Status loader_thread_park(int timeout_ms) {
  if (!g_running) return {};
  SHADOWIB_TRY(wait_finished(monotonic_ns(), timeout_ms));
  give(kPark);
  return {};
}

void loader_thread_unpark() {
  if (g_command.load() == kPark) give(kIdle);
}

void loader_thread_forget() {
  g_running = false;
  g_command.store(kIdle);
  g_finished.store(0);
  g_started = 0;
}

}  // namespace shadowib
