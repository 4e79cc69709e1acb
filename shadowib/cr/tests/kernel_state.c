/* What the kernel and libc keep for a program's threads: libc's helper threads, registrations, sandboxes. */
#include <aio.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "scenario.h"

static int ticks;

static void tick(union sigval unused) {
  (void)unused;
  __atomic_add_fetch(&ticks, 1, __ATOMIC_RELAXED);
}

static int ticks_now(void) { return __atomic_load_n(&ticks, __ATOMIC_RELAXED); }

static timer_t start_timer(long first_ns, long interval_ns) {
  struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = tick};
  const struct itimerspec when = {{0, interval_ns}, {0, first_ns}};
  timer_t timer;
  CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &when, NULL) == 0);
  return timer;
}

static void await_ticks(int more) {
  const int enough = ticks_now() + more;
  while (ticks_now() < enough) sched_yield();
}

/* libc's threads for timers and for asynchronous reads block all signals but libc's own. */
static void helper_threads(void) {
  static char text[8];
  int ends[2];
  CHECK(pipe(ends) == 0);
  struct aiocb request = {.aio_fildes = ends[0], .aio_buf = text, .aio_nbytes = 4};
  make_pair(1 << 16);
  const timer_t timer = start_timer(10000000, 10000000);
  CHECK(aio_read(&request) == 0);
  await_ticks(2);
  for (int n = 0; n < 3; ++n) {
    checkpoint_and_go_on();
    await_ticks(2);
  }
  for (int n = 0; n < 2; ++n) {
    checkpoint_and_kill();
    await_ticks(2);
    CHECK(aio_error(&request) == EINPROGRESS);
  }
  CHECK(timer_delete(timer) == 0 && write(ends[1], "data", 4) == 4);
  const struct aiocb* list[] = {&request};
  while (aio_error(&request) == EINPROGRESS) aio_suspend(list, 1, NULL);
  CHECK(aio_return(&request) == 4 && memcmp(text, "data", 4) == 0);
  send_one(1);
}

static long run_out_ns;

static void run_out(int event, void* unused) {
  (void)unused;
  if (event == 0) start_timer(run_out_ns, 0);
}

/* Timers that run out once, at about the moment of the stop: each calls exactly once. */
static void timers_that_run_out(void) {
  make_pair(1 << 16);
  run_out_ns = 1;
  before_checkpoint(run_out);
  for (int n = 0; n < 20; ++n) {
    const int before = ticks_now();
    checkpoint_and_go_on();
    while (ticks_now() == before) sched_yield();
    CHECK(ticks_now() == before + 1);
  }
  const int before = ticks_now();
  checkpoint_and_kill();
  while (ticks_now() == before) sched_yield();
  CHECK(ticks_now() == before + 1);
  send_one(1);
}

/* Runs out while the threads are stopped (with SHADOWIB_FAULT=40:slow). */
static void timer_of_the_stop(void) {
  make_pair(1 << 16);
  run_out_ns = 300000000;
  before_checkpoint(run_out);
  checkpoint_and_kill();
  while (ticks_now() == 0) sched_yield();
  CHECK(ticks_now() == 1);
  send_one(1);
}

/* Started with GLIBC_TUNABLES=glibc.pthread.rseq=0: the program registers restartable sequences by itself. */
static struct {
  uint32_t start, cpu;
  uint64_t section;
  uint32_t rest[4];
} area __attribute__((aligned(32))) = {0, ~0u, 0, {0}};

static void registrations(void) {
  const uint32_t signature = 0x53053053;
  CHECK(syscall(SYS_rseq, &area, sizeof(area), 0, signature) == 0);
  CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0);
  make_pair(1 << 16);
  for (int n = 0; n < 2; ++n) {
    checkpoint_and_kill();
    CHECK(syscall(SYS_rseq, &area, sizeof(area), 0, signature) == -1 && errno == EBUSY);
    CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0);
  }
  send_one(1);
}

#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static int confined, at_end;

/* In a sandbox that no stop would survive. With a sanitizer a thread maps memory as it ends. */
static void* stay_confined(void* unused) {
  struct sock_filter strict[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                                 ALLOW(SYS_sched_yield),
                                 ALLOW(SYS_exit),
                                 ALLOW(SYS_madvise),
                                 ALLOW(SYS_mmap),
                                 ALLOW(SYS_munmap),
                                 ALLOW(SYS_rt_sigprocmask),
                                 ALLOW(SYS_futex),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)};
  struct sock_fprog program = {sizeof(strict) / sizeof(strict[0]), strict};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
  __atomic_store_n(&confined, 1, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&at_end, __ATOMIC_ACQUIRE)) syscall(SYS_sched_yield);
  return unused;
}

/* It is refused before any signal is sent; without the thread a checkpoint is taken. */
static void sandboxed_thread(void) {
  pthread_t thread;
  make_pair(1 << 16);
  CHECK(pthread_create(&thread, NULL, stay_confined, NULL) == 0);
  while (!__atomic_load_n(&confined, __ATOMIC_ACQUIRE)) sched_yield();
  CHECK(take_checkpoint(1) < 0);
  send_one(1);
  __atomic_store_n(&at_end, 1, __ATOMIC_RELEASE);
  CHECK(pthread_join(thread, NULL) == 0);
  checkpoint_and_kill();
  send_one(2);
}

/* In a place whose filter a checkpoint would not survive. */
static void refused_by_the_place(void) {
  make_pair(1 << 16);
  CHECK(take_checkpoint(1) < 0);
  send_one(1);
  CHECK(take_checkpoint(1) < 0);
  send_one(2);
}

const struct scenario kernel_state_scenarios[] = {{"helper_threads", helper_threads},
                                                  {"timers_that_run_out", timers_that_run_out},
                                                  {"timer_of_the_stop", timer_of_the_stop},
                                                  {"registrations", registrations},
                                                  {"sandboxed_thread", sandboxed_thread},
                                                  {"refused_by_the_place", refused_by_the_place},
                                                  {NULL, NULL}};
