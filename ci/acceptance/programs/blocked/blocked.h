/* A program of many threads, each blocked in a system call of its own while checkpoints come and go
 * (ci/acceptance/blocked_calls.py).
 *
 *   blocked [--natively] [--refused] [--timeout MS]
 *
 * Prints "ready" once every thread is blocked, and lives until a file `wake` appears. Then it wakes those that wait
 * for something, by what they wait for or by a signal, and prints what every call returned, and what clocks and hooks
 * saw, as one JSON object (blocked_calls.py judges it). --natively: no member of a job, without verbs, to see what
 * the kernel does by itself. */
#ifndef CI_BLOCKED_H
#define CI_BLOCKED_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "../member.h"

#define MUST(condition)                                                                                   \
  do {                                                                                                    \
    if (!(condition)) leave(2, "%s:%d: not so: %s: %s", __FILE__, __LINE__, #condition, strerror(errno)); \
  } while (0)

enum ending {
  kTimesOut,       /* by itself, when its relative time-out has passed */
  kTimesOutAfresh, /* the same, but a stop gives it all of its time again */
  kDeadline,       /* by itself, at an absolute time */
  kWoken,          /* by wake(), after all checkpoints */
  kInterrupted,    /* by a signal of the program, with a handler without SA_RESTART */
};

struct call {
  const char* name;
  enum ending ending;
  void (*prepare)(struct call*); /* main thread, before any has begun; or NULL */
  long (*run)(struct call*);     /* a thread of its own; errno tells on */
  void (*wake)(struct call*);    /* main thread; NULL of those that end otherwise */
  long result;                   /* what run() has to return, */
  int error;                     /* and the errno it has to leave; 0: any */

  /* For prepare, run and wake. */
  int fds[2];
  void* memory;
  int64_t left_ns; /* what the call said was left of its time, or -1 */

  /* The main program's. */
  pthread_t thread;
  volatile int tid, ended;
  int early;                  /* it has ended before it was woken */
  int64_t began_ns, ended_ns; /* CLOCK_MONOTONIC */
  int64_t wall_ns;            /* between the two, by CLOCK_REALTIME */
  long got;
  int got_error;
};

/* One list for each concern; a name of NULL ends a list. */
extern struct call timed_calls[], descriptor_calls[], waiting_calls[], verbs_calls[], refused_calls[];

extern int timeout_ms; /* of those that time out, or are due by a deadline */
static const int kLongMs = 3600 * 1000;

static inline struct timespec span(int ms) { return (struct timespec){ms / 1000, ms % 1000 * 1000000L}; }

static inline struct timespec in_future(clockid_t clock, int ms) {
  struct timespec t, more = span(ms);
  clock_gettime(clock, &t);
  t.tv_sec += more.tv_sec;
  t.tv_nsec += more.tv_nsec;
  if (t.tv_nsec >= 1000000000) t.tv_sec += 1, t.tv_nsec -= 1000000000;
  return t;
}

static inline int64_t nanoseconds(struct timespec t) { return t.tv_sec * 1000000000ll + t.tv_nsec; }

static inline int64_t now_ns(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return nanoseconds(t);
}

#endif
