/* The program's beginning and end: threads, clocks, and the report. */
#include <inttypes.h>
#include <signal.h>
#include <sys/syscall.h>

#include "blocked.h"

int timeout_ms = 6000;

static struct call *const kCaptured[] = {timed_calls, descriptor_calls, waiting_calls, verbs_calls, NULL},
                          *const kNatively[] = {timed_calls, descriptor_calls, waiting_calls, NULL},
                          *const kRefused[] = {refused_calls, NULL};
static struct call* const* lists = kCaptured;
static int natively, refused;
static volatile int finishing;

/* What hooks see of checkpoints: pairs of before and after. */
enum { kMostWindows = 64 };
static struct {
  int64_t from_ns, to_ns;
  int event;
} windows[kMostWindows];
static int window_count;

static void note_checkpoint(int event, void* unused) {
  (void)unused;
  const int64_t now = now_ns(CLOCK_MONOTONIC);
  if (event == 0) {
    MUST(window_count < kMostWindows);
    windows[window_count++].from_ns = now;
  } else {
    windows[window_count - 1].to_ns = now;
    windows[window_count - 1].event = event;
  }
}

/* Reads clocks all the time, by the vdso and past it, until the end: none may ever run back. */
static const struct {
  const char* name;
  clockid_t clock;
} kClocks[] = {{"CLOCK_MONOTONIC", CLOCK_MONOTONIC},
               {"CLOCK_MONOTONIC_RAW", CLOCK_MONOTONIC_RAW},
               {"CLOCK_MONOTONIC_COARSE", CLOCK_MONOTONIC_COARSE},
               {"CLOCK_BOOTTIME", CLOCK_BOOTTIME}};
enum { kClockCount = sizeof(kClocks) / sizeof(kClocks[0]) };
static struct {
  uint64_t readings, back;
  int64_t worst_ns, last_ns;
} clocks[kClockCount];

static void* read_clocks(void* unused) {
  (void)unused;
  while (!finishing) {
    for (int i = 0; i < kClockCount; ++i)
      for (int past_vdso = 0; past_vdso < 2; ++past_vdso) {
        struct timespec t;
        if (past_vdso)
          syscall(SYS_clock_gettime, kClocks[i].clock, &t);
        else
          clock_gettime(kClocks[i].clock, &t);
        const int64_t now = nanoseconds(t);
        ++clocks[i].readings;
        if (now < clocks[i].last_ns) {
          ++clocks[i].back;
          if (clocks[i].last_ns - now > clocks[i].worst_ns) clocks[i].worst_ns = clocks[i].last_ns - now;
        }
        clocks[i].last_ns = now;
      }
    sched_yield();
  }
  return NULL;
}

static void* run_call(void* argument) {
  struct call* call = argument;
  const int64_t wall = now_ns(CLOCK_REALTIME);
  call->began_ns = now_ns(CLOCK_MONOTONIC);
  call->tid = (int)syscall(SYS_gettid);
  errno = 0;
  call->got = call->run(call);
  call->got_error = errno;
  call->ended_ns = now_ns(CLOCK_MONOTONIC);
  call->wall_ns = now_ns(CLOCK_REALTIME) - wall;
  call->ended = 1;
  return NULL;
}

static int is_blocked(const struct call* call) {
  char path[64], text[32] = "";
  snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", call->tid);
  FILE* file = fopen(path, "r");
  if (file == NULL) return 0;
  const int read_it = fgets(text, sizeof(text), file) != NULL;
  fclose(file);
  return read_it && text[0] >= '0' && text[0] <= '9';
}

static void start_all(void) {
  for (int l = 0; lists[l] != NULL; ++l) {
    for (struct call* c = lists[l]; c->name != NULL; ++c) {
      c->left_ns = -1;
      if (c->prepare != NULL) c->prepare(c);
    }
  }
  for (int l = 0; lists[l] != NULL; ++l) {
    for (struct call* c = lists[l]; c->name != NULL; ++c) MUST(pthread_create(&c->thread, NULL, run_call, c) == 0);
    for (struct call* c = lists[l]; c->name != NULL; ++c)
      while (c->tid == 0 || !is_blocked(c)) sched_yield();
  }
}

static void end_all(void) {
  for (int l = 0; lists[l] != NULL; ++l) {
    for (struct call* c = lists[l]; c->name != NULL; ++c) {
      c->early = (c->ending == kWoken || c->ending == kInterrupted) && c->ended;
      if (c->early) continue;
      if (c->ending == kWoken) c->wake(c);
      while (c->ending == kInterrupted && !c->ended && !is_blocked(c)) sched_yield(); /* back in its call */
      if (c->ending == kInterrupted) pthread_kill(c->thread, SIGUSR1);
    }
    for (struct call* c = lists[l]; c->name != NULL; ++c) pthread_join(c->thread, NULL);
  }
}

static void report(void) {
  static const char* const kEndings[] = {"times out", "times out afresh", "deadline", "woken", "interrupted"};
  const char* comma = "";
  printf("{\"timeout_ms\": %d, \"long_ms\": %d, \"calls\": [", timeout_ms, kLongMs);
  for (int l = 0; lists[l] != NULL; ++l) {
    for (struct call* c = lists[l]; c->name != NULL; ++c, comma = ",") {
      const int right = !c->early && c->got == c->result && (c->error == 0 || c->got_error == c->error);
      printf(
          "%s\n {\"name\": \"%s\", \"ending\": \"%s\", \"right\": %s, \"early\": %s, \"result\": %ld, \"error\": "
          "\"%s\", ",
          comma, c->name, kEndings[c->ending], right ? "true" : "false", c->early ? "true" : "false", c->got,
          c->got < 0 ? strerrorname_np(c->got_error) : "");
      printf("\"began_ns\": %" PRId64 ", \"ended_ns\": %" PRId64 ", \"wall_ns\": %" PRId64 ", ", c->began_ns,
             c->ended_ns, c->wall_ns);
      printf("\"left_ns\": %" PRId64 "}", c->left_ns);
    }
  }
  printf("],\n \"windows\": [");
  for (int i = 0; i < window_count; ++i)
    printf("%s\n {\"from_ns\": %" PRId64 ", \"to_ns\": %" PRId64 ", \"restart\": %s}", i > 0 ? "," : "",
           windows[i].from_ns, windows[i].to_ns, windows[i].event == 2 ? "true" : "false");
  printf("],\n \"clocks\": [");
  for (int i = 0; i < kClockCount; ++i)
    printf("%s\n {\"name\": \"%s\", \"readings\": %" PRIu64 ", \"back\": %" PRIu64 ", \"worst_ns\": %" PRId64 "}",
           i > 0 ? "," : "", kClocks[i].name, clocks[i].readings, clocks[i].back, clocks[i].worst_ns);
  printf("]}\n");
}

static void on_signal(int signal) { (void)signal; }

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--natively") == 0)
      natively = 1;
    else if (strcmp(argv[i], "--refused") == 0)
      refused = 1;
    else if (strcmp(argv[i], "--timeout") == 0 && i + 1 < argc)
      timeout_ms = atoi(argv[++i]);
    else
      leave(2, "usage: blocked [--natively] [--refused] [--timeout MS]");
  }
  lists = refused ? kRefused : natively ? kNatively : kCaptured;
  if (!natively) {
    join_job();
    int (*add_hook)(void (*)(int, void*), void*) =
        (int (*)(void (*)(int, void*), void*))dlsym(RTLD_DEFAULT, "shadowib_add_hook");
    MUST(add_hook != NULL && add_hook(note_checkpoint, NULL) >= 0);
  }
  struct sigaction action = {.sa_handler = on_signal};
  MUST(sigaction(SIGUSR1, &action, NULL) == 0);
  sigset_t awaited; /* by sigwait and its kin; every thread blocks it */
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGUSR2);
  MUST(pthread_sigmask(SIG_BLOCK, &awaited, NULL) == 0);
  pthread_t clock_reader;
  MUST(pthread_create(&clock_reader, NULL, read_clocks, NULL) == 0);
  start_all();
  printf("ready\n");
  fflush(stdout);
  live_until("wake");
  end_all();
  finishing = 1;
  pthread_join(clock_reader, NULL);
  report();
  leave(0, "done");
}
