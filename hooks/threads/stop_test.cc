// Stopping under load: nothing is missed, nothing is killed, nobody runs while stopped.
#include "hooks/threads/stop.h"

#include <aio.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "hooks/raw/raw_signal.h"
#include "hooks/raw/tasks.h"
#include "hooks/raw/vdso_range.h"
#include "hooks/threads/thread_context.h"
#include "shadowib/base/arena.h"
#include "shadowib/base/lock.h"

extern char** environ;

namespace shadowib {
namespace {

void nap(long nanoseconds) {
  timespec t{0, nanoseconds};
  syscall(SYS_nanosleep, &t, nullptr);
}

// Work done by all workers; must stand still while stopped.
// A counter without ThreadSanitizer: its atomics take a lock of the address, and a thread stopped inside one holds up
// all that read the counter.
class Counter {
 public:
  __attribute__((no_sanitize_thread)) std::uint64_t load() const {
    return __atomic_load_n(&value_, __ATOMIC_SEQ_CST);
  }
  __attribute__((no_sanitize_thread)) void fetch_add(std::uint64_t more,
                                                     std::memory_order = std::memory_order_seq_cst) {
    __atomic_fetch_add(&value_, more, __ATOMIC_SEQ_CST);
  }
  operator std::uint64_t() const { return load(); }

 private:
  std::uint64_t value_ = 0;
};
Counter g_work;

constexpr int kHangMs = 300000;  // ends a test that hangs; beside other work a thread may wait long for a processor
std::atomic<bool> g_end{false};

// Stops and releases `rounds` times; checks that nothing moves in between. No heap between stop and release.
void stop_repeatedly(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    Status status = stop_threads(kHangMs);
    ASSERT_TRUE(status.ok()) << status.text();
    std::uint64_t before = g_work.load();
    nap(500000);
    std::uint64_t after = g_work.load();
    int tasks = 0;
    for_each_task([](int, void* count) { return ++*static_cast<int*>(count), true; }, &tasks);
    int parked = parked_threads(nullptr, 0);
    release_threads();
    ASSERT_EQ(before, after) << "a thread ran while stopped, round " << i;
    ASSERT_EQ(parked, tasks - 1) << "round " << i;
    nap(1000000);
  }
}

class StopTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(stop_install().ok());
    g_end = false;
  }
  void start(int count, void (*work)()) {
    for (int i = 0; i < count; ++i)
      threads_.emplace_back([work] {
        while (!g_end) {
          work();
          g_work.fetch_add(1, std::memory_order_relaxed);
        }
      });
  }
  void TearDown() override {
    g_end = true;
    for (auto& thread : threads_) thread.join();
  }
  std::vector<std::thread> threads_;
};

TEST_F(StopTest, MallocStorm) {
  start(6, [] {
    void* p[20];
    for (int i = 0; i < 20; ++i) p[i] = malloc(static_cast<std::size_t>(10 + i * 731));
    for (void* q : p) free(q);
  });
  stop_repeatedly(40);
}

#if !defined(__SANITIZE_THREAD__)
// Who stands holds no lock of the arena, wherever it was.
TEST_F(StopTest, TheArenaCanBeUsedMeanwhile) {
  start(4, [] {
    for (int i = 0; i < 100; ++i) arena_free(arena_allocate(100));
  });
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread agent([] {
    stop_exempt_this_thread();
    for (int i = 0; i < 1000; ++i) {
      Status status = stop_threads(kHangMs);
      EXPECT_TRUE(status.ok()) << status.text();
      arena_free(arena_allocate(100));
      release_threads();
    }
    stop_unexempt_this_thread();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  agent.join();
}
#endif

// Where a parked thread was interrupted, or 0. The frames lead from its context to our handler's, which returns to
// the restorer; the kernel's frame with the registers lies above. A search of the stack finds what earlier handlers
// have left, too: in holes of frames below and above. The handler that parks a thread is not instrumented, so
// ThreadSanitizer does not know that it stands.
__attribute__((no_sanitize("address", "thread"))) std::uint64_t interrupted_at(const ParkedThread& thread) {
  KernelSigaction action{};
  if (raw_sigaction(stop_signal(), nullptr, &action) != 0) return 0;
  const auto* frame = reinterpret_cast<const std::uint64_t*>(static_cast<const ThreadContext*>(thread.context)->rbp);
  for (int depth = 0; depth < 16 && frame != nullptr; ++depth) {
    if (frame[1] == action.restorer)
      return static_cast<std::uint64_t>(reinterpret_cast<const ucontext_t*>(frame + 2)->uc_mcontext.gregs[REG_RIP]);
    frame = reinterpret_cast<const std::uint64_t*>(frame[0]);
  }
  return 0;
}

// Who waits for a vforked child sleeps in the kernel, and no signal but a deadly one reaches it before the child
// goes.
struct VforkTest : StopTest {
  void SetUp() override {
    StopTest::SetUp();
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer makes a fork of a vfork";
#endif
    ASSERT_EQ(pipe(pipe_), 0);
    waits_ = 0;
    parent_ = std::thread([this] {
      waits_ = raw_gettid();
      pid_t child;
      {
        Inside inside;
        child = vfork();
        if (child == 0) {
          char byte;
          while (read(pipe_[0], &byte, 1) < 0) continue;
          _exit(0);
        }
        nap(200000000);  // back from the kernel, and not yet where it can be stopped
      }
      int status = 0;
      while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    });
    while (waits_ == 0 || task_state(waits_) != 'D') sched_yield();
  }
  void let_go() const { EXPECT_EQ(write(pipe_[1], "", 1), 1); }
  void TearDown() override {
    if (parent_.joinable()) parent_.join();
    close(pipe_[0]);
    close(pipe_[1]);
    StopTest::TearDown();
  }
  int pipe_[2] = {-1, -1};
  std::atomic<int> waits_{0};
  std::thread parent_;
};

TEST_F(VforkTest, WhoSleepsInTheKernelIsWaitedForLonger) {
  std::atomic<bool> exempt{false};
  std::thread later([this, &exempt] {
    stop_exempt_this_thread();
    exempt = true;
    for (int i = 0; i < 5; ++i) nap(500000000);  // longer than the first limit
    let_go();
    stop_unexempt_this_thread();
  });
  while (!exempt) sched_yield();
  Status status = stop_threads(2000, 60000);
  ASSERT_TRUE(status.ok()) << status.text();
  release_threads();
  later.join();
}

TEST_F(VforkTest, ButNotForever) {
  Status status = stop_threads(10, 200);
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_NE(std::string(status.text()).find("state D"), std::string::npos) << status.text();
  let_go();
}

// At the lowest priority beside one that takes the whole processor, a thread has it for a moment now and then.
TEST_F(StopTest, WhoHasNoProcessorIsWaitedForLonger) {
  cpu_set_t first;
  CPU_ZERO(&first);
  ASSERT_EQ(sched_getaffinity(0, sizeof(first), &first), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &first)) ++cpu;
  CPU_ZERO(&first);
  CPU_SET(cpu, &first);
  static cpu_set_t only;
  only = first;
  static std::atomic<bool> idle{false};
  idle = false;
  start(1, [] {
    static thread_local const bool done = [] {
      const sched_param none{};
      return sched_setaffinity(0, sizeof(only), &only) == 0 && sched_setscheduler(0, SCHED_IDLE, &none) == 0 &&
             !idle.exchange(true);
    }();
    (void)done;
  });
  while (!idle) sched_yield();
  const pid_t busy = fork();
  if (busy == 0) {
    sched_setaffinity(0, sizeof(only), &only);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) cpu_pause();
  }
  for (int round = 0; round < 5; ++round) {
    const Status status = stop_threads(1, kHangMs);
    EXPECT_TRUE(status.ok()) << status.text();
    if (status.ok()) release_threads();
    nap(50000000);
  }
  kill(busy, SIGKILL);
  waitpid(busy, nullptr, 0);
}

// Between the look at the threads and the verdict: who sleeps then may sleep because it has stopped.
TEST_F(StopTest, WhoStopsAtTheLastMomentHasStopped) {
  start(6, [] { cpu_pause(); });
  while (g_work < 1000) sched_yield();
  for (int round = 0; round < 200; ++round) {
    const Status status = stop_threads(0, kHangMs);
    ASSERT_TRUE(status.ok()) << "round " << round << ": " << status.text();
    release_threads();
  }
}

// Under another kernel the code there is another: no thread of an image may stand in it.
TEST_F(StopTest, NobodyIsStoppedInTheVdso) {
  const VdsoRange vdso = find_vdso();
  ASSERT_EQ(vdso.start, getauxval(AT_SYSINFO_EHDR));
  start(3, [] {
    timespec now;
    for (int i = 0; i < 1000; ++i) clock_gettime(CLOCK_MONOTONIC, &now);
  });
  for (int round = 0; round < 30; ++round) {
    Status status = stop_threads(kHangMs);
    ASSERT_TRUE(status.ok()) << status.text();
    ParkedThread threads[8];
    const int count = parked_threads(threads, 8);
    int inside = 0, found = 0;
    for (int i = 0; i < count && i < 8; ++i) {
      const std::uint64_t at = interrupted_at(threads[i]);
      inside += vdso.contains(at);
      found += at != 0;
    }
    release_threads();
    ASSERT_EQ(found, count) << "round " << round;
    ASSERT_EQ(inside, 0) << "round " << round;
    nap(100000);
  }
}

// Whichever way it parks, what the program had blocked is known; what is blocked while it is parked does not count.
TEST_F(StopTest, TheMaskIsTheProgramsOwn) {
  static std::atomic<int> blocking{0};
  blocking = 0;
  start(4, [] {
    static thread_local const bool done = [] {
      sigset_t set;
      sigemptyset(&set);
      sigaddset(&set, SIGUSR1);
      return pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0 && ++blocking != 0;
    }();
    (void)done;
    Inside inside;
    for (int i = 0; i < 200; ++i) cpu_pause();
  });
  while (blocking < 4) sched_yield();
  for (int round = 0; round < 50; ++round) {
    Status status = stop_threads(kHangMs);
    ASSERT_TRUE(status.ok()) << status.text();
    ParkedThread threads[8];
    std::uint64_t masks[8] = {};
    const int count = parked_threads(threads, 8);
    for (int i = 0; i < count && i < 8; ++i)
      masks[i] = static_cast<const ParkedContext*>(threads[i].context)->program_mask;
    release_threads();
    ASSERT_EQ(count, 4);
    for (int i = 0; i < count; ++i) {
      EXPECT_NE(masks[i] & signal_bit(SIGUSR1), 0u);
      EXPECT_EQ(masks[i] & (signal_bit(SIGTERM) | signal_bit(stop_signal())), 0u);
    }
    nap(100000);
  }
}

TEST_F(StopTest, ThreadsComeAndGo) {
  start(3, [] {
    std::thread inner([] { std::thread([] { g_work.fetch_add(1); }).join(); });
    inner.join();
  });
  stop_repeatedly(60);
}

TEST_F(StopTest, InsideIsFinishedFirst) {
  static std::atomic<int> inside{0};
  start(4, [] {
    Inside outer;
    ++inside;
    for (int i = 0; i < 200; ++i) {
      Inside inner;  // ends, but is not the outermost
      cpu_pause();
    }
    --inside;
  });
  for (int i = 0; i < 100; ++i) {
    Status status = stop_threads(kHangMs);
    ASSERT_TRUE(status.ok()) << status.text();
    int still = inside.load();
    release_threads();
    ASSERT_EQ(still, 0);
  }
}

TEST_F(StopTest, BlockedSignalsDoNotHelp) {
  start(2, [] {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (int i = 0; i < 1000; ++i) cpu_pause();
    nap(100000);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
  });
  stop_repeatedly(20);
}

std::atomic<std::uint64_t> g_ticks{0};
void tick(sigval) { ++g_ticks; }

// ThreadSanitizer knows no thread that libc makes within itself: the one of a timer calls malloc and crashes.
#if defined(__SANITIZE_THREAD__)
constexpr bool kTimers = false;
#else
constexpr bool kTimers = true;
#endif

timer_t start_timer() {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD;
  event.sigev_notify_function = tick;
  timer_t timer{};
  EXPECT_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
  const itimerspec often{{0, 1000000}, {0, 1000000}};
  EXPECT_EQ(timer_settime(timer, 0, &often, nullptr), 0);
  return timer;
}

void stop_and_go_on() {
  const Status status = stop_threads(kHangMs);
  ASSERT_TRUE(status.ok()) << status.text();
  const std::uint64_t stopped = g_ticks;
  nap(5000000);
  EXPECT_EQ(g_ticks, stopped);
  release_threads();
  while (kTimers && g_ticks == stopped) sched_yield();
}

// libc's threads for SIGEV_THREAD timers and for POSIX AIO block every signal but those of libc. Setting another
// user, which libc has every thread do by such a signal, works as before.
void stop_helper_threads() {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  char byte = 0;
  aiocb request{};
  request.aio_fildes = pipe[0];
  request.aio_buf = &byte;
  request.aio_nbytes = 1;
  ASSERT_EQ(aio_read(&request), 0);
  const timer_t timer = kTimers ? start_timer() : timer_t{};
  for (int round = 0; round < 5; ++round) {
    stop_and_go_on();
    ASSERT_EQ(setresuid(-1u, geteuid(), -1u), 0);
  }
  EXPECT_TRUE(!kTimers || timer_delete(timer) == 0);
  ASSERT_EQ(::write(pipe[1], "x", 1), 1);
  while (aio_error(&request) == EINPROGRESS) sched_yield();
  EXPECT_EQ(aio_return(&request), 1);
  EXPECT_EQ(byte, 'x');
}

// In a child: libc's threads stay.
TEST_F(StopTest, HelperThreadsOfLibcStop) {
  const pid_t pid = fork();
  if (pid == 0) {
    stop_reset_after_fork();
    EXPECT_TRUE(stop_install().ok());
    stop_helper_threads();
    ::_exit(HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST_F(StopTest, AThreadThatCannotBeStoppedIsNamedAndTheOthersGoOn) {
  std::atomic<int> tid{0};
  std::atomic<bool> end{false};
  std::thread stubborn([&] {
    pthread_setname_np(pthread_self(), "stubborn");
    const std::uint64_t all = ~std::uint64_t{0};
    raw_sigmask(SIG_SETMASK, &all, nullptr);  // behind the guard's back
    tid = raw_gettid();
    while (!end) nap(100000);
  });
  start(2, [] { nap(10000); });
  while (tid == 0) sched_yield();
  Status status = stop_threads(100);
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_NE(std::string(status.text()).find("stubborn"), std::string::npos) << status.text();
  EXPECT_NE(std::string(status.text()).find(std::to_string(tid)), std::string::npos) << status.text();
  std::uint64_t before = g_work;
  while (g_work == before) sched_yield();  // released
  end = true;
  stubborn.join();
  stop_repeatedly(3);
}

// Children of every kind, made while the parent is stopped again and again: none is lost, killed or stopped.
void make_children() {
  int status = 0;
  switch (g_work.load() % 4) {
    case 0: {
      pid_t pid = fork();
      if (pid == 0) _exit(7);
      ASSERT_EQ(waitpid(pid, &status, 0), pid);
      break;
    }
    case 1: {
      pid_t pid = vfork();
      if (pid == 0) {
        execl("/bin/sh", "sh", "-c", "exit 7", nullptr);
        _exit(1);
      }
      ASSERT_EQ(waitpid(pid, &status, 0), pid);
      break;
    }
    case 2: {
      pid_t pid;
      char* const arguments[] = {const_cast<char*>("sh"), const_cast<char*>("-c"), const_cast<char*>("exit 7"),
                                 nullptr};
      ASSERT_EQ(posix_spawn(&pid, "/bin/sh", nullptr, nullptr, arguments, environ), 0);
      ASSERT_EQ(waitpid(pid, &status, 0), pid);
      break;
    }
    default:
      status = system("exit 7");
  }
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << "status " << std::hex << status;
}

TEST_F(StopTest, ChildrenAreNeitherLostNorKilled) {
  start(2, make_children);
  start(2, [] { free(malloc(100)); });
  for (int i = 0; i < 100; ++i) {
    Status status = stop_threads(kHangMs);
    ASSERT_TRUE(status.ok()) << status.text();
    nap(200000);
    release_threads();
    nap(2000000);
  }
}

TEST_F(StopTest, ADeadLeaderDoesNotHoldUpTheOthers) {
  pid_t child = fork();
  if (child == 0) {
    stop_reset_after_fork();
    if (!stop_install().ok()) _exit(2);
    std::thread([] {
      while (task_state(raw_getpid()) != 'Z') sched_yield();  // ended, and still listed
      std::thread other([] { nap(300000000); });
      Status status = stop_threads(5000);
      if (status.ok()) release_threads();
      other.join();
      _exit(status.ok() ? 0 : 3);
    }).detach();
    syscall(SYS_exit, 0);  // as pthread_exit ends, without unwinding the test
  }
  int status;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << std::hex << status;
}

TEST_F(StopTest, ExemptThreadsRunOnUntilTheyPark) {
  std::atomic<std::uint32_t> word{0};
  std::atomic<int> state{0};
  std::thread helper([&] {
    stop_exempt_this_thread();
    state = 1;
    while (state == 1) nap(100000);
    park_exempt_thread_while(&word, 0);
    state = 3;
    stop_unexempt_this_thread();
  });
  while (state != 1) sched_yield();
  ASSERT_TRUE(stop_threads(5000).ok());
  EXPECT_EQ(stop_wait_exempt_parked(20).code(), Code::kTimeout);
  state = 2;
  EXPECT_TRUE(stop_wait_exempt_parked(5000).ok());
  EXPECT_EQ(parked_threads(nullptr, 0), 1);
  release_threads();
  EXPECT_EQ(state, 2);
  word = 1;
  futex_wake(&word, 1);
  helper.join();
  EXPECT_EQ(state, 3);
}

TEST_F(StopTest, TheProgramsUseOfOurSignalIsKeptApart) {
  static std::atomic<int> calls{0};
  struct sigaction mine {
  }, old{};
  mine.sa_handler = [](int) { ++calls; };
  ASSERT_EQ(sigaction(stop_signal(), &mine, nullptr), 0);
  ASSERT_EQ(sigaction(stop_signal(), nullptr, &old), 0);
  EXPECT_EQ(old.sa_handler, mine.sa_handler);
  start(1, [] { nap(10000); });
  stop_repeatedly(2);
  EXPECT_EQ(calls, 0);
  kill(getpid(), stop_signal());  // not ours
  while (calls == 0) sched_yield();
  EXPECT_EQ(calls, 1);
  ASSERT_NE(signal(stop_signal(), SIG_DFL), SIG_ERR);
}

TEST_F(StopTest, HandlersOfTheProgramDoNotRunWhileStopped) {
  struct sigaction count {};
  count.sa_handler = [](int) { g_work.fetch_add(1); };
  count.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &count, nullptr);
  start(2, [] { Inside inside; });
  start(1, [] { nap(100000); });
  std::atomic<bool> done{false};
  std::thread sender([&] {
    stop_exempt_this_thread();
    const std::uint64_t all = ~kLibcSignals;
    raw_sigmask(SIG_SETMASK, &all, nullptr);
    while (!done) kill(getpid(), SIGUSR1), nap(50000);
    stop_unexempt_this_thread();
  });
  nap(1000000);
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &usr1, nullptr);  // the stopper is an agent
  for (int i = 0; i < 50; ++i) {
    Status status = stop_threads(kHangMs);
    ASSERT_TRUE(status.ok()) << status.text();
    std::uint64_t before = g_work;
    nap(300000);
    std::uint64_t after = g_work;
    release_threads();
    ASSERT_EQ(before, after);
  }
  done = true;
  sender.join();
}

}  // namespace
}  // namespace shadowib
