// Several threads, what the kernel keeps for each, signals and timers.
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "hooks/imager/tests/subject.h"
#include "hooks/imager/tests/test_stop.h"

using namespace shadowib::test;

namespace {

thread_local int t_number = -1;
thread_local std::vector<int> t_list;

SCENARIO(threads) {
  constexpr int kThreads = 8;
  std::mutex mutex;
  std::condition_variable condition;
  std::atomic<int> started{0}, finished{0};
  bool go = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      t_number = i;
      for (int k = 0; k <= i; ++k) t_list.push_back(k * i);
      char name[16];  // as prctl wants it
      std::snprintf(name, sizeof(name), "worker %d", i & 15);
      ::prctl(PR_SET_NAME, name);
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(0, &one);
      if (i == 3) ::sched_setaffinity(0, sizeof(one), &one);
      const long tid = ::syscall(SYS_gettid);
      const pthread_t self = ::pthread_self();
      std::unique_lock lock(mutex);
      ++started;
      condition.notify_all();
      condition.wait(lock, [&] { return go; });
      CHECK_THAT(t_number == i && t_list.size() == static_cast<unsigned>(i + 1) && t_list.back() == i * i);
      CHECK_THAT(::syscall(SYS_gettid) == tid && ::pthread_self() == self);
      char now[16] = {};
      ::prctl(PR_GET_NAME, now);
      CHECK_THAT(std::strcmp(name, now) == 0);
      cpu_set_t set;
      CHECK_THAT(::sched_getaffinity(0, sizeof(set), &set) == 0);
      if (i == 3) CHECK_THAT(CPU_COUNT(&set) == 1 && CPU_ISSET(0, &set));
      // Registered again: the kernel tells the processor.
      const auto* area = static_cast<const volatile unsigned*>(
          static_cast<void*>(static_cast<char*>(__builtin_thread_pointer()) + __rseq_offset));
      if (__rseq_size != 0) CHECK_THAT(area[1] < 4096);
      ++finished;
    });
  {
    std::unique_lock lock(mutex);
    condition.wait(lock, [&] { return started == kThreads; });
  }
  save_and_end();
  {
    const std::lock_guard lock(mutex);
    go = true;
  }
  condition.notify_all();
  for (std::thread& thread : threads) thread.join();  // by clear_child_tid
  CHECK_THAT(finished == kThreads);
  std::thread([] { CHECK_THAT(t_number == -1); }).join();
}

// The saving thread is not the main one, as with the agent.
SCENARIO(agent_thread) {
  std::atomic<int> done{0};
  std::thread agent([&] {
    save_and_end();
    done = 1;
  });
  const pid_t pid = ::getpid();
  agent.join();
  CHECK_THAT(done == 1 && ::getpid() == pid && ::syscall(SYS_gettid) == pid);
}

// A computation in vector registers is interrupted and goes on.
__attribute__((target("avx2"))) bool vector_loop(std::atomic<bool>* running, const std::atomic<bool>* stop) {
  __m256i a = _mm256_set_epi64x(1, 2, 3, 4), b = _mm256_set_epi64x(5, 6, 7, 8);
  const __m256i one = _mm256_set1_epi64x(1);
  std::uint64_t rounds = 0;
  while (!stop->load(std::memory_order_relaxed)) {
    for (int i = 0; i < 1000; ++i) {
      a = _mm256_add_epi64(a, one);
      b = _mm256_sub_epi64(b, one);
      __asm__ volatile("" : "+x"(a), "+x"(b));
      ++rounds;
    }
    running->store(true, std::memory_order_relaxed);
  }
  alignas(32) std::uint64_t x[4], y[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(x), a);
  _mm256_store_si256(reinterpret_cast<__m256i*>(y), b);
  for (unsigned i = 0; i < 4; ++i)
    if (x[i] != 4 - i + rounds || y[i] != 8 - i - rounds) return false;
  return true;
}

SCENARIO(vector_registers) {
  if (!__builtin_cpu_supports("avx2")) {
    save_and_end();
    return;
  }
  std::atomic<bool> running{false}, stop{false}, right{false};
  std::thread thread([&] { right = vector_loop(&running, &stop); });
  while (!running) ::sched_yield();
  save_and_end();
  running = false;
  while (!running) ::sched_yield();
  stop = true;
  thread.join();
  CHECK_THAT(right);
}

struct Loop {
  std::atomic<bool> running{false}, stop{false}, right{false};
  void run() { right = vector_loop(&running, &stop); }
};
Loop g_in_handler;

// One that a handler on a stack of its own has interrupted, which computes, too, when the stop comes: the registers
// of one lie in a frame that the stop signal has not made.
SCENARIO(vector_registers_of_two) {
#if defined(__SANITIZE_THREAD__)
  std::printf("SKIP ThreadSanitizer holds a signal back until its thread makes a call, so no loop is interrupted\n");
  std::fflush(stdout);
  ::_exit(0);
#endif
  if (!__builtin_cpu_supports("avx2")) {
    save_and_end();
    return;
  }
  static char alternate[64 << 10];
  struct sigaction action {};
  action.sa_handler = [](int) { g_in_handler.run(); };
  action.sa_flags = SA_ONSTACK;
  CHECK_THAT(::sigaction(SIGUSR1, &action, nullptr) == 0);
  Loop outer;
  std::thread thread([&] {
    stack_t stack{};
    stack.ss_sp = alternate;
    stack.ss_size = sizeof(alternate);
    CHECK_THAT(::sigaltstack(&stack, nullptr) == 0);
    outer.run();
  });
  while (!outer.running) ::sched_yield();
  CHECK_THAT(::pthread_kill(thread.native_handle(), SIGUSR1) == 0);
  while (!g_in_handler.running) ::sched_yield();
  save_and_end();
  for (Loop* loop : {&g_in_handler, &outer}) {
    loop->running = false;
    while (!loop->running) ::sched_yield();
    loop->stop = true;
  }
  thread.join();
  CHECK_THAT(g_in_handler.right && outer.right);
}

std::atomic<int> g_signals[65];
void count_signal(int signal, siginfo_t*, void*) { ++g_signals[signal]; }

void install(int signal, int flags = 0) {
  struct sigaction action {};
  action.sa_sigaction = count_signal;
  action.sa_flags = SA_SIGINFO | flags;
  ::sigaddset(&action.sa_mask, SIGUSR1);
  CHECK_THAT(::sigaction(signal, &action, nullptr) == 0);
}

SCENARIO(signals) {
  static char alternate[64 << 10];
  stack_t stack{};
  stack.ss_sp = alternate;
  stack.ss_size = sizeof(alternate);
  CHECK_THAT(::sigaltstack(&stack, nullptr) == 0);
  install(SIGUSR2, SA_ONSTACK | SA_RESTART);
  install(SIGRTMIN + 1);
  install(SIGTERM);
  install(SIGHUP);
  ::signal(SIGWINCH, SIG_IGN);
  sigset_t blocked;
  ::sigemptyset(&blocked);
  for (const int signal : {SIGRTMIN + 1, SIGTERM, SIGHUP, SIGQUIT}) ::sigaddset(&blocked, signal);
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  // Two to the process, with values, one ordinary; one to this thread alone.
  for (const int value : {100, 20}) ::sigqueue(::getpid(), SIGRTMIN + 1, sigval{value});
  ::kill(::getpid(), SIGTERM);
  ::kill(::getpid(), SIGQUIT);  // nothing is installed for it: it may be waited for
  ::syscall(SYS_tgkill, ::getpid(), ::syscall(SYS_gettid), SIGHUP);
  save_and_end();
  sigset_t now, pending;
  ::sigprocmask(SIG_BLOCK, nullptr, &now);
  CHECK_THAT(::sigismember(&now, SIGTERM) == 1 && ::sigismember(&now, SIGUSR2) == 0);
  ::sigpending(&pending);
  CHECK_THAT(::sigismember(&pending, SIGHUP) == 1 && ::sigismember(&pending, SIGTERM) == 1);
  CHECK_THAT(g_signals[SIGTERM] == 0);
  // Every one of those with values, in order. Taken rather than handled: ThreadSanitizer, which stands between, keeps
  // no more than one of a signal for the handler.
  sigset_t with_values;
  ::sigemptyset(&with_values);
  ::sigaddset(&with_values, SIGRTMIN + 1);
  for (const int value : {100, 20}) {
    siginfo_t info{};
    CHECK_THAT(::sigwaitinfo(&with_values, &info) == SIGRTMIN + 1 && info.si_value.sival_int == value);
  }
  sigset_t to_await;
  ::sigemptyset(&to_await);
  ::sigaddset(&to_await, SIGQUIT);
  int came = 0;
  CHECK_THAT(::sigwait(&to_await, &came) == 0 && came == SIGQUIT);
  ::sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
  CHECK_THAT(g_signals[SIGTERM] == 1 && g_signals[SIGHUP] == 1 && g_signals[SIGRTMIN + 1] == 0);
  stack_t after{};
  CHECK_THAT(::sigaltstack(nullptr, &after) == 0 && after.ss_sp == alternate && after.ss_size == sizeof(alternate));
  struct sigaction action {};
  ::sigaction(SIGUSR2, nullptr, &action);
  CHECK_THAT(action.sa_sigaction == count_signal && (action.sa_flags & SA_ONSTACK) != 0 &&
             ::sigismember(&action.sa_mask, SIGUSR1) == 1);
  ::sigaction(SIGWINCH, nullptr, &action);
  CHECK_THAT(action.sa_handler == SIG_IGN);
  ::raise(SIGUSR2);
  CHECK_THAT(g_signals[SIGUSR2] == 1);
}

// Threads that are parked on their alternate stacks.
SCENARIO(parked_on_alternate_stack) {
  install_stop_handler(true);
  static char alternate[64 << 10];
  std::atomic<bool> ready{false}, stop{false}, right{false};
  std::thread thread([&] {
    stack_t stack{};
    stack.ss_sp = alternate;
    stack.ss_size = sizeof(alternate);
    ::sigaltstack(&stack, nullptr);
    ready = true;
    while (!stop) ::sched_yield();
    stack_t after{};
    ::sigaltstack(nullptr, &after);
    right = after.ss_sp == alternate && after.ss_flags == 0;
  });
  while (!ready) ::sched_yield();
  save_and_end();
  stop = true;
  thread.join();
  CHECK_THAT(right);
}

SCENARIO(timers) {
  install(SIGALRM);
  install(SIGRTMIN + 3);
  // Ids with a gap, so that they have to be asked for.
  timer_t first, second, third;
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGRTMIN + 3;
  event.sigev_value.sival_int = 1;
  CHECK_THAT(::timer_create(CLOCK_MONOTONIC, &event, &first) == 0);
  CHECK_THAT(::timer_create(CLOCK_MONOTONIC, &event, &second) == 0);
  CHECK_THAT(::timer_create(CLOCK_REALTIME, &event, &third) == 0);
  CHECK_THAT(::timer_delete(first) == 0);
  const itimerspec soon{{0, 0}, {0, 300000000}}, late{{5, 0}, {1000, 0}};
  CHECK_THAT(::timer_settime(second, 0, &soon, nullptr) == 0 && ::timer_settime(third, 0, &late, nullptr) == 0);
  const itimerval alarm{{0, 0}, {0, 300000}};
  ::setitimer(ITIMER_REAL, &alarm, nullptr);
  save_and_end();
  itimerspec now{};
  CHECK_THAT(::timer_gettime(third, &now) == 0 && now.it_interval.tv_sec == 5 && now.it_value.tv_sec > 900);
  while (g_signals[SIGALRM] == 0 || g_signals[SIGRTMIN + 3] == 0) ::sched_yield();
  CHECK_THAT(::timer_gettime(second, &now) == 0 && now.it_value.tv_nsec == 0);
}

SCENARIO(periodic_timer_that_is_pending) {
  sigset_t alarm, pending;
  ::sigemptyset(&alarm);
  ::sigaddset(&alarm, SIGALRM);
  ::sigprocmask(SIG_BLOCK, &alarm, nullptr);
  const itimerval periodic{{0, 20000}, {0, 20000}};
  ::setitimer(ITIMER_REAL, &periodic, nullptr);
  do ::sigpending(&pending);
  while (::sigismember(&pending, SIGALRM) == 0);
  save_and_end();
  const timespec limit{10, 0};
  for (int i = 0; i < 3; ++i) CHECK_THAT(::sigtimedwait(&alarm, nullptr, &limit) == SIGALRM);
  itimerval now{};
  CHECK_THAT(::getitimer(ITIMER_REAL, &now) == 0 && now.it_interval.tv_usec == 20000);
}

SCENARIO(many_threads) {
  constexpr int kThreads = 300;
  std::atomic<int> ready{0}, right{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      t_number = i;
      ++ready;
      while (!stop) ::usleep(1000);
      right += t_number == i;
    });
  while (ready < kThreads) ::sched_yield();
  save_and_end();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK_THAT(right == kThreads);
}

// A robust mutex whose owner dies after the restart.
SCENARIO(robust_mutex) {
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_t mutex;
  ::pthread_mutex_init(&mutex, &attributes);
  std::atomic<bool> locked{false}, stop{false};
  std::thread owner([&] {
    ::pthread_mutex_lock(&mutex);
    locked = true;
    while (!stop) ::sched_yield();
  });
  while (!locked) ::sched_yield();
  save_and_end();
  stop = true;
  CHECK_THAT(::pthread_mutex_lock(&mutex) == EOWNERDEAD);
  owner.join();
}

}  // namespace

// Stays until a signal comes, for a look from outside.
SCENARIO(linger) {
  std::thread([] {
    for (;;) ::pause();
  }).detach();
  ::usleep(10000);
  save_and_end();
  for (;;) ::pause();
}
