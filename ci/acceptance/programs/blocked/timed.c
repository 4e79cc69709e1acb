/* Calls that end by themselves: when a relative time-out has passed, or at an absolute time. */
#include <fcntl.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "blocked.h"

static void silent_pipe(struct call* c) { MUST(pipe(c->fds) == 0); }

static struct pollfd silence(struct call* c) { return (struct pollfd){c->fds[0], POLLIN, 0}; }

static long call_poll(struct call* c) {
  struct pollfd fd = silence(c);
  return poll(&fd, 1, timeout_ms);
}

static long call_ppoll(struct call* c) {
  struct pollfd fd = silence(c);
  struct timespec time = span(timeout_ms);
  sigset_t mask;
  sigfillset(&mask);
  return ppoll(&fd, 1, &time, &mask);
}

static long call_select(struct call* c) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(c->fds[0], &set);
  struct timeval time = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
  return select(c->fds[0] + 1, &set, NULL, NULL, &time);
}

static long call_pselect(struct call* c) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(c->fds[0], &set);
  struct timespec time = span(timeout_ms);
  sigset_t mask;
  sigfillset(&mask);
  return pselect(c->fds[0] + 1, &set, NULL, NULL, &time, &mask);
}

static void silent_epoll(struct call* c) {
  silent_pipe(c);
  struct epoll_event event = {.events = EPOLLIN};
  MUST((c->fds[1] = epoll_create1(0)) >= 0 && epoll_ctl(c->fds[1], EPOLL_CTL_ADD, c->fds[0], &event) == 0);
}

static long call_epoll_wait(struct call* c) {
  struct epoll_event event;
  return epoll_wait(c->fds[1], &event, 1, timeout_ms);
}

static long call_epoll_pwait(struct call* c) {
  struct epoll_event event;
  sigset_t mask;
  sigfillset(&mask);
  return epoll_pwait(c->fds[1], &event, 1, timeout_ms, &mask);
}

static long call_epoll_pwait2(struct call* c) {
  struct epoll_event event;
  struct timespec time = span(timeout_ms);
  return epoll_pwait2(c->fds[1], &event, 1, &time, NULL);
}

static long call_nanosleep(struct call* c) {
  (void)c;
  struct timespec time = span(timeout_ms);
  return nanosleep(&time, NULL);
}

static long sleep_by(clockid_t clock) {
  struct timespec time = span(timeout_ms);
  return clock_nanosleep(clock, 0, &time, NULL);
}
static long call_clock_nanosleep(struct call* c) { return (void)c, sleep_by(CLOCK_MONOTONIC); }
static long call_clock_nanosleep_realtime(struct call* c) { return (void)c, sleep_by(CLOCK_REALTIME); }
static long call_clock_nanosleep_boottime(struct call* c) { return (void)c, sleep_by(CLOCK_BOOTTIME); }
static long call_usleep(struct call* c) { return (void)c, usleep((useconds_t)timeout_ms * 1000); }
static long call_sleep(struct call* c) { return (void)c, sleep((unsigned)(timeout_ms + 999) / 1000); }

static long call_sigtimedwait(struct call* c) {
  (void)c;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  struct timespec time = span(timeout_ms);
  return sigtimedwait(&set, NULL, &time);
}

static void semaphore_set(struct call* c) {
  MUST((c->fds[0] = semget(IPC_PRIVATE, 1, 0600)) >= 0);
  printf("made sem %d\n", c->fds[0]);
}

static long call_semtimedop(struct call* c) {
  struct sembuf take = {0, -1, 0};
  struct timespec time = span(timeout_ms);
  const long result = semtimedop(c->fds[0], &take, 1, &time);
  const int error = errno;
  semctl(c->fds[0], 0, IPC_RMID);
  errno = error;
  return result;
}

/* A futex word of its own for each, that nobody changes. */
static void futex_word(struct call* c) { c->memory = calloc(1, sizeof(uint32_t)); }

static long call_futex(struct call* c) {
  struct timespec time = span(timeout_ms);
  return syscall(SYS_futex, c->memory, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
}

static long call_futex_absolute(struct call* c) {
  struct timespec time = in_future(CLOCK_MONOTONIC, timeout_ms);
  return syscall(SYS_futex, c->memory, FUTEX_WAIT_BITSET_PRIVATE, 0, &time, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void silent_pair(struct call* c) {
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, c->fds) == 0);
  struct timeval time = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
  MUST(setsockopt(c->fds[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)) == 0);
  MUST(setsockopt(c->fds[0], SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)) == 0);
}

static void full_pair(struct call* c) {
  silent_pair(c);
  static const char block[4096];
  while (send(c->fds[0], block, sizeof(block), MSG_DONTWAIT) > 0) continue;
  const int least = 0; /* queued bytes may need less room after a restart: there shall be none all the same */
  MUST(setsockopt(c->fds[0], SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)) == 0);
}

static long call_recv(struct call* c) {
  char byte;
  return recv(c->fds[0], &byte, 1, 0);
}

static long call_recv_all(struct call* c) {
  MUST(write(c->fds[1], "abc", 3) == 3); /* received when the first stop comes, and the fourth never does */
  char bytes[4];
  return recv(c->fds[0], bytes, sizeof(bytes), MSG_WAITALL);
}

static long call_read_socket(struct call* c) {
  char byte;
  return read(c->fds[0], &byte, 1);
}

static long call_recvmsg(struct call* c) {
  char byte;
  struct iovec piece = {&byte, 1};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
  return recvmsg(c->fds[0], &message, 0);
}

static long call_recvmmsg(struct call* c) {
  char byte;
  struct iovec piece = {&byte, 1};
  struct mmsghdr message = {.msg_hdr = {.msg_iov = &piece, .msg_iovlen = 1}};
  return recvmmsg(c->fds[0], &message, 1, 0, NULL);
}

static long call_sendmmsg(struct call* c) {
  static char block[4096];
  struct iovec piece = {block, sizeof(block)};
  struct mmsghdr message = {.msg_hdr = {.msg_iov = &piece, .msg_iovlen = 1}};
  return sendmmsg(c->fds[0], &message, 1, 0);
}

static long call_send(struct call* c) {
  static const char block[4096];
  return send(c->fds[0], block, sizeof(block), 0);
}

static void silent_listener(struct call* c) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct timeval time = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
  MUST((c->fds[0] = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0);
  MUST(bind(c->fds[0], (struct sockaddr*)&address, sizeof(sa_family_t)) == 0 &&
       listen(c->fds[0], 4) == 0); /* any name */
  MUST(setsockopt(c->fds[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)) == 0);
}

static long call_accept(struct call* c) { return accept(c->fds[0], NULL, NULL); }

static long call_clock_nanosleep_absolute(struct call* c) {
  (void)c;
  struct timespec time = in_future(CLOCK_MONOTONIC, timeout_ms);
  return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}

static void empty_semaphore(struct call* c) {
  c->memory = malloc(sizeof(sem_t));
  MUST(sem_init(c->memory, 0, 0) == 0);
}

static long call_sem_timedwait(struct call* c) {
  struct timespec time = in_future(CLOCK_REALTIME, timeout_ms);
  return sem_timedwait(c->memory, &time);
}

static long call_sem_clockwait(struct call* c) {
  struct timespec time = in_future(CLOCK_MONOTONIC, timeout_ms);
  return sem_clockwait(c->memory, CLOCK_MONOTONIC, &time);
}

static long wait_for_condition(clockid_t clock) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_condattr_t attributes;
  pthread_cond_t condition;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, clock);
  pthread_cond_init(&condition, &attributes);
  struct timespec time = in_future(clock, timeout_ms);
  pthread_mutex_lock(&mutex);
  int result = 0;
  while (result == 0) result = pthread_cond_timedwait(&condition, &mutex, &time);
  pthread_mutex_unlock(&mutex);
  return result;
}
static long call_cond_timedwait(struct call* c) { return (void)c, wait_for_condition(CLOCK_REALTIME); }
static long call_cond_timedwait_monotonic(struct call* c) { return (void)c, wait_for_condition(CLOCK_MONOTONIC); }

static void held_mutex(struct call* c) {
  c->memory = malloc(sizeof(pthread_mutex_t));
  MUST(pthread_mutex_init(c->memory, NULL) == 0 && pthread_mutex_lock(c->memory) == 0);
}

static long call_mutex_timedlock(struct call* c) {
  struct timespec time = in_future(CLOCK_REALTIME, timeout_ms);
  return pthread_mutex_timedlock(c->memory, &time);
}

struct call timed_calls[] = {
    {"poll", kTimesOut, silent_pipe, call_poll, NULL, 0, 0},
    {"ppoll", kTimesOut, silent_pipe, call_ppoll, NULL, 0, 0},
    {"select", kTimesOut, silent_pipe, call_select, NULL, 0, 0},
    {"pselect", kTimesOut, silent_pipe, call_pselect, NULL, 0, 0},
    {"epoll_wait", kTimesOut, silent_epoll, call_epoll_wait, NULL, 0, 0},
    {"epoll_pwait", kTimesOut, silent_epoll, call_epoll_pwait, NULL, 0, 0},
    {"epoll_pwait2", kTimesOut, silent_epoll, call_epoll_pwait2, NULL, 0, 0},
    {"nanosleep", kTimesOut, NULL, call_nanosleep, NULL, 0, 0},
    {"clock_nanosleep", kTimesOut, NULL, call_clock_nanosleep, NULL, 0, 0},
    {"clock_nanosleep, CLOCK_REALTIME", kTimesOut, NULL, call_clock_nanosleep_realtime, NULL, 0, 0},
    {"clock_nanosleep, CLOCK_BOOTTIME", kTimesOut, NULL, call_clock_nanosleep_boottime, NULL, 0, 0},
    {"usleep", kTimesOut, NULL, call_usleep, NULL, 0, 0},
    {"sleep", kTimesOut, NULL, call_sleep, NULL, 0, 0},
    {"sigtimedwait", kTimesOut, NULL, call_sigtimedwait, NULL, -1, EAGAIN},
    {"semtimedop", kTimesOut, semaphore_set, call_semtimedop, NULL, -1, EAGAIN},
    {"futex", kTimesOut, futex_word, call_futex, NULL, -1, ETIMEDOUT},
    {"recv with SO_RCVTIMEO", kTimesOut, silent_pair, call_recv, NULL, -1, EAGAIN},
    {"recv with SO_RCVTIMEO and MSG_WAITALL, begun", kTimesOut, silent_pair, call_recv_all, NULL, 3, 0},
    {"recvmsg with SO_RCVTIMEO", kTimesOut, silent_pair, call_recvmsg, NULL, -1, EAGAIN},
    {"recvmmsg with SO_RCVTIMEO", kTimesOut, silent_pair, call_recvmmsg, NULL, -1, EAGAIN},
    {"read with SO_RCVTIMEO", kTimesOutAfresh, silent_pair, call_read_socket, NULL, -1, EAGAIN},
    {"send with SO_SNDTIMEO", kTimesOut, full_pair, call_send, NULL, -1, EAGAIN},
    {"sendmmsg with SO_SNDTIMEO", kTimesOut, full_pair, call_sendmmsg, NULL, -1, EAGAIN},
    {"accept with SO_RCVTIMEO", kTimesOut, silent_listener, call_accept, NULL, -1, EAGAIN},
    {"clock_nanosleep, absolute", kDeadline, NULL, call_clock_nanosleep_absolute, NULL, 0, 0},
    {"futex, absolute", kDeadline, futex_word, call_futex_absolute, NULL, -1, ETIMEDOUT},
    {"sem_timedwait", kDeadline, empty_semaphore, call_sem_timedwait, NULL, -1, ETIMEDOUT},
    {"sem_clockwait", kDeadline, empty_semaphore, call_sem_clockwait, NULL, -1, ETIMEDOUT},
    {"pthread_cond_timedwait", kDeadline, NULL, call_cond_timedwait, NULL, ETIMEDOUT, 0},
    {"pthread_cond_timedwait, CLOCK_MONOTONIC", kDeadline, NULL, call_cond_timedwait_monotonic, NULL, ETIMEDOUT, 0},
    {"pthread_mutex_timedlock", kDeadline, held_mutex, call_mutex_timedlock, NULL, ETIMEDOUT, 0},
    {NULL}};
