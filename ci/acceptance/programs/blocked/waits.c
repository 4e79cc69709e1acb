/* Calls that wait for another thread, for a signal, or in System V's queues: what they wait for comes after the
 * checkpoints, or a signal of the program does. */
#include <limits.h>
#include <linux/futex.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/syscall.h>

#include "blocked.h"

/* Futexes. */

static void make_semaphore(struct call* c) {
  c->memory = malloc(sizeof(sem_t));
  MUST(sem_init(c->memory, 0, 0) == 0);
}
static void give(struct call* c) { MUST(sem_post(c->memory) == 0); }
static long call_sem_wait(struct call* c) { return sem_wait(c->memory); }
static long call_sem_timedwait(struct call* c) {
  struct timespec time = in_future(CLOCK_REALTIME, kLongMs);
  return sem_timedwait(c->memory, &time);
}

struct condition {
  pthread_mutex_t mutex;
  pthread_cond_t condition;
  int holds;
};

static void make_condition(struct call* c) {
  struct condition* condition = c->memory = calloc(1, sizeof(*condition));
  pthread_mutex_init(&condition->mutex, NULL);
  pthread_cond_init(&condition->condition, NULL);
}

static void make_it_hold(struct call* c) {
  struct condition* condition = c->memory;
  pthread_mutex_lock(&condition->mutex);
  condition->holds = 1;
  pthread_cond_signal(&condition->condition);
  pthread_mutex_unlock(&condition->mutex);
}

static long call_cond_wait(struct call* c) {
  struct condition* condition = c->memory;
  pthread_mutex_lock(&condition->mutex);
  long result = 0;
  while (result == 0 && !condition->holds) result = pthread_cond_wait(&condition->condition, &condition->mutex);
  pthread_mutex_unlock(&condition->mutex);
  return result;
}

static long call_cond_timedwait(struct call* c) {
  struct condition* condition = c->memory;
  struct timespec time = in_future(CLOCK_REALTIME, kLongMs);
  pthread_mutex_lock(&condition->mutex);
  long result = 0;
  while (result == 0 && !condition->holds)
    result = pthread_cond_timedwait(&condition->condition, &condition->mutex, &time);
  pthread_mutex_unlock(&condition->mutex);
  return result;
}

static void held_mutex(struct call* c) {
  make_condition(c);
  MUST(pthread_mutex_lock(c->memory) == 0);
}
static long call_mutex_lock(struct call* c) { return pthread_mutex_lock(c->memory); }
static void unlock_it(struct call* c) { MUST(pthread_mutex_unlock(c->memory) == 0); }

static void futex_word(struct call* c) { c->memory = calloc(1, sizeof(uint32_t)); }
static long call_futex(struct call* c) { return syscall(SYS_futex, c->memory, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0); }
static long call_futex_long(struct call* c) {
  struct timespec time = span(kLongMs);
  return syscall(SYS_futex, c->memory, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
}
static void wake_futex(struct call* c) { /* the word stays: only a wake-up ends the call */
  while (syscall(SYS_futex, c->memory, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0) == 0 && !c->ended) sched_yield();
}

/* Signals and System V. */

static long call_nanosleep(struct call* c) {
  struct timespec time = span(kLongMs), left = {0, 0};
  const long result = nanosleep(&time, &left);
  c->left_ns = nanoseconds(left);
  return result;
}

static long call_clock_nanosleep(struct call* c) {
  struct timespec time = span(kLongMs), left = {0, 0};
  const long result = clock_nanosleep(CLOCK_MONOTONIC, 0, &time, &left);
  c->left_ns = nanoseconds(left);
  return result;
}

static sigset_t awaited(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  return set;
}
static long call_sigwaitinfo(struct call* c) {
  (void)c;
  const sigset_t set = awaited();
  return sigwaitinfo(&set, NULL);
}
static long call_sigtimedwait(struct call* c) {
  (void)c;
  const sigset_t set = awaited();
  const struct timespec time = span(kLongMs);
  return sigtimedwait(&set, NULL, &time);
}
static long call_sigwait(struct call* c) {
  (void)c;
  const sigset_t set = awaited();
  int signal = 0;
  return sigwait(&set, &signal) == 0 ? signal : -1;
}
static void send_awaited(struct call* c) { MUST(pthread_kill(c->thread, SIGUSR2) == 0); }

static long call_pause(struct call* c) { return (void)c, pause(); }
static long call_sigsuspend(struct call* c) {
  (void)c;
  sigset_t set;
  sigfillset(&set);
  sigdelset(&set, SIGUSR1);
  return sigsuspend(&set);
}

struct message {
  long type;
  char text[8];
};
static void make_queue(struct call* c) {
  MUST((c->fds[0] = msgget(IPC_PRIVATE, 0600)) >= 0);
  printf("made msg %d\n", c->fds[0]);
}
static long call_msgrcv(struct call* c) {
  struct message message;
  const long result = msgrcv(c->fds[0], &message, sizeof(message.text), 0, 0);
  const int error = errno;
  msgctl(c->fds[0], IPC_RMID, NULL);
  errno = error;
  return result;
}
static void send_message(struct call* c) {
  const struct message message = {.type = 1};
  MUST(msgsnd(c->fds[0], &message, 1, 0) == 0);
}

static void make_semaphores(struct call* c) {
  MUST((c->fds[0] = semget(IPC_PRIVATE, 1, 0600)) >= 0);
  printf("made sem %d\n", c->fds[0]);
}
static long take_semaphore(struct call* c, const struct timespec* time) {
  struct sembuf take = {0, -1, 0};
  const long result = semtimedop(c->fds[0], &take, 1, time);
  const int error = errno;
  semctl(c->fds[0], 0, IPC_RMID);
  errno = error;
  return result;
}
static long call_semop(struct call* c) { return take_semaphore(c, NULL); }
static long call_semtimedop(struct call* c) {
  const struct timespec time = span(kLongMs);
  return take_semaphore(c, &time);
}
static void put_semaphore(struct call* c) {
  struct sembuf put = {0, 1, 0};
  MUST(semop(c->fds[0], &put, 1) == 0);
}

struct call waiting_calls[] = {
    {"sem_wait", kWoken, make_semaphore, call_sem_wait, give, 0, 0},
    {"sem_timedwait, long", kWoken, make_semaphore, call_sem_timedwait, give, 0, 0},
    {"pthread_cond_wait", kWoken, make_condition, call_cond_wait, make_it_hold, 0, 0},
    {"pthread_cond_timedwait, long", kWoken, make_condition, call_cond_timedwait, make_it_hold, 0, 0},
    {"pthread_mutex_lock", kWoken, held_mutex, call_mutex_lock, unlock_it, 0, 0},
    {"futex without time-out", kWoken, futex_word, call_futex, wake_futex, 0, 0},
    {"futex, long", kWoken, futex_word, call_futex_long, wake_futex, 0, 0},
    {"sigwaitinfo", kWoken, NULL, call_sigwaitinfo, send_awaited, SIGUSR2, 0},
    {"sigtimedwait, long", kWoken, NULL, call_sigtimedwait, send_awaited, SIGUSR2, 0},
    {"sigwait", kWoken, NULL, call_sigwait, send_awaited, SIGUSR2, 0},
    {"msgrcv", kWoken, make_queue, call_msgrcv, send_message, 1, 0},
    {"semop", kWoken, make_semaphores, call_semop, put_semaphore, 0, 0},
    {"semtimedop, long", kWoken, make_semaphores, call_semtimedop, put_semaphore, 0, 0},
    {"nanosleep, interrupted", kInterrupted, NULL, call_nanosleep, NULL, -1, EINTR},
    {"clock_nanosleep, interrupted", kInterrupted, NULL, call_clock_nanosleep, NULL, EINTR, 0},
    {"sem_wait, interrupted", kInterrupted, make_semaphore, call_sem_wait, NULL, -1, EINTR},
    {"sem_timedwait, interrupted", kInterrupted, make_semaphore, call_sem_timedwait, NULL, -1, EINTR},
    {"futex, interrupted", kInterrupted, futex_word, call_futex, NULL, -1, EINTR},
    {"futex, long, interrupted", kInterrupted, futex_word, call_futex_long, NULL, -1, EINTR},
    {"sigtimedwait, interrupted", kInterrupted, NULL, call_sigtimedwait, NULL, -1, EINTR},
    {"msgrcv, interrupted", kInterrupted, make_queue, call_msgrcv, NULL, -1, EINTR},
    {"semop, interrupted", kInterrupted, make_semaphores, call_semop, NULL, -1, EINTR},
    {"pause", kInterrupted, NULL, call_pause, NULL, -1, EINTR},
    {"sigsuspend", kInterrupted, NULL, call_sigsuspend, NULL, -1, EINTR},
    {NULL}};
