/* Calls that wait for something: it comes after the checkpoints, or a signal of the program does. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "blocked.h"

enum { kLarge = 1 << 20 }; /* more than any of the queues here holds */

static const char kBytes[kLarge];

/* Pipes. */

static void make_pipe(struct call* c) { MUST(pipe(c->fds) == 0); }
static void write_byte(struct call* c) { MUST(write(c->fds[1], kBytes, 1) == 1); }

static long call_read(struct call* c) {
  char byte;
  return read(c->fds[0], &byte, 1);
}

static long call_readv(struct call* c) {
  char byte;
  struct iovec piece = {&byte, 1};
  return readv(c->fds[0], &piece, 1);
}

static long call_write(struct call* c) { return write(c->fds[1], kBytes, kLarge); }

static void drain(struct call* c) {
  static char block[65536];
  for (size_t got = 0; got < kLarge;) {
    const ssize_t n = read(c->fds[0], block, sizeof(block));
    if (n <= 0) leave(1, "%s: %zu bytes came of %d", c->name, got, kLarge);
    got += (size_t)n;
  }
}

/* Waiting for readiness. */

static long poll_for(struct call* c, int ms) {
  struct pollfd fd = {c->fds[0], POLLIN, 0};
  return poll(&fd, 1, ms);
}
static long call_poll(struct call* c) { return poll_for(c, -1); }
static long call_poll_long(struct call* c) { return poll_for(c, kLongMs); }

static long call_ppoll(struct call* c) {
  struct pollfd fd = {c->fds[0], POLLIN, 0};
  return ppoll(&fd, 1, NULL, NULL);
}

static long select_for(struct call* c, struct timeval* time) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(c->fds[0], &set);
  return select(c->fds[0] + 1, &set, NULL, NULL, time);
}
static long call_select(struct call* c) { return select_for(c, NULL); }

static long call_select_long(struct call* c) { /* Linux says what is left */
  struct timeval time = {kLongMs / 1000, 0};
  const long result = select_for(c, &time);
  c->left_ns = time.tv_sec * 1000000000ll + time.tv_usec * 1000ll;
  return result;
}

static long call_pselect(struct call* c) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(c->fds[0], &set);
  return pselect(c->fds[0] + 1, &set, NULL, NULL, NULL, NULL);
}

static void make_epoll(struct call* c) {
  make_pipe(c);
  struct epoll_event event = {.events = EPOLLIN};
  c->memory = malloc(sizeof(int));
  MUST((*(int*)c->memory = epoll_create1(0)) >= 0);
  MUST(epoll_ctl(*(int*)c->memory, EPOLL_CTL_ADD, c->fds[0], &event) == 0);
}

static long epoll_for(struct call* c, int ms) {
  struct epoll_event event;
  return epoll_wait(*(int*)c->memory, &event, 1, ms);
}
static long call_epoll_wait(struct call* c) { return epoll_for(c, -1); }
static long call_epoll_wait_long(struct call* c) { return epoll_for(c, kLongMs); }

static long call_epoll_pwait(struct call* c) {
  struct epoll_event event;
  sigset_t mask;
  sigfillset(&mask);
  return epoll_pwait(*(int*)c->memory, &event, 1, -1, &mask);
}

static long call_epoll_pwait2(struct call* c) {
  struct epoll_event event;
  return epoll_pwait2(*(int*)c->memory, &event, 1, NULL, NULL);
}

static void make_eventfd(struct call* c) { MUST((c->fds[0] = c->fds[1] = eventfd(0, 0)) >= 0); }
static long call_read_eventfd(struct call* c) {
  uint64_t count;
  return read(c->fds[0], &count, sizeof(count));
}
static void count_up(struct call* c) {
  const uint64_t one = 1;
  MUST(write(c->fds[1], &one, sizeof(one)) == sizeof(one));
}

/* Opening a FIFO waits for the other end. */
static void make_fifo(struct call* c) {
  (void)c;
  unlink("fifo");
  MUST(mkfifo("fifo", 0600) == 0);
}
static long call_open(struct call* c) { return (c->fds[0] = open("fifo", O_RDONLY)) >= 0 ? 0 : -1; }
static void open_other_end(struct call* c) { MUST((c->fds[1] = open("fifo", O_WRONLY)) >= 0); }

/* Sockets: fds[0] is the one in the call. */

static void make_pair(struct call* c) { MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, c->fds) == 0); }

static void make_pair_long(struct call* c) {
  make_pair(c);
  const struct timeval time = {kLongMs / 1000, 0};
  MUST(setsockopt(c->fds[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)) == 0);
}

static void make_tcp(struct call* c) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof(address);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  MUST(bind(listener, (struct sockaddr*)&address, length) == 0 && listen(listener, 1) == 0);
  MUST(getsockname(listener, (struct sockaddr*)&address, &length) == 0);
  MUST((c->fds[1] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
  MUST(connect(c->fds[1], (struct sockaddr*)&address, length) == 0);
  MUST((c->fds[0] = accept(listener, NULL, NULL)) >= 0 && close(listener) == 0);
}

static long call_recv(struct call* c) {
  char byte;
  return recv(c->fds[0], &byte, 1, 0);
}

static long call_recvfrom(struct call* c) {
  char byte;
  struct sockaddr_storage from;
  socklen_t length = sizeof(from);
  return recvfrom(c->fds[0], &byte, 1, 0, (struct sockaddr*)&from, &length);
}

static long call_recvmsg(struct call* c) {
  char byte;
  struct iovec piece = {&byte, 1};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
  return recvmsg(c->fds[0], &message, 0);
}

static long call_recv_all(struct call* c) {
  MUST(write(c->fds[1], kBytes, 3) == 3); /* three of four have been received when the stop comes */
  char bytes[4];
  return recv(c->fds[0], bytes, sizeof(bytes), MSG_WAITALL);
}

static long call_recv_look(struct call* c) {
  MUST(write(c->fds[1], "abc", 3) == 3);
  char bytes[4];
  const long result = recv(c->fds[0], bytes, sizeof(bytes), MSG_WAITALL | MSG_PEEK);
  return result == sizeof(bytes) && memcmp(bytes, "abc", sizeof(bytes)) != 0 ? -2 : result;
}

static long call_send(struct call* c) { return send(c->fds[1], kBytes, kLarge, 0); }

static void make_listener(struct call* c) {
  struct sockaddr_in* address = c->memory = calloc(1, sizeof(*address));
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(*address);
  MUST((c->fds[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
  MUST(bind(c->fds[0], c->memory, length) == 0 && listen(c->fds[0], 1) == 0);
  MUST(getsockname(c->fds[0], c->memory, &length) == 0);
}

static long call_accept(struct call* c) {
  const int fd = accept(c->fds[0], NULL, NULL);
  return fd >= 0 ? close(fd) : -1;
}

static void connect_to_it(struct call* c) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  MUST(connect(fd, c->memory, sizeof(struct sockaddr_in)) == 0 && close(fd) == 0);
}

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
static void make_queue(struct call* c) { MUST((c->fds[0] = msgget(IPC_PRIVATE, 0600)) >= 0); }
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

static void make_semaphores(struct call* c) { MUST((c->fds[0] = semget(IPC_PRIVATE, 1, 0600)) >= 0); }
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
    {"read", kWoken, make_pipe, call_read, write_byte, 1, 0},
    {"readv", kWoken, make_pipe, call_readv, write_byte, 1, 0},
    {"read of an eventfd", kWoken, make_eventfd, call_read_eventfd, count_up, 8, 0},
    {"write, begun", kWoken, make_pipe, call_write, drain, kLarge, 0},
    {"open of a FIFO", kWoken, make_fifo, call_open, open_other_end, 0, 0},
    {"poll without time-out", kWoken, make_pipe, call_poll, write_byte, 1, 0},
    {"poll, long", kWoken, make_pipe, call_poll_long, write_byte, 1, 0},
    {"ppoll without time-out", kWoken, make_pipe, call_ppoll, write_byte, 1, 0},
    {"select without time-out", kWoken, make_pipe, call_select, write_byte, 1, 0},
    {"select, long", kWoken, make_pipe, call_select_long, write_byte, 1, 0},
    {"pselect without time-out", kWoken, make_pipe, call_pselect, write_byte, 1, 0},
    {"epoll_wait without time-out", kWoken, make_epoll, call_epoll_wait, write_byte, 1, 0},
    {"epoll_wait, long", kWoken, make_epoll, call_epoll_wait_long, write_byte, 1, 0},
    {"epoll_pwait without time-out", kWoken, make_epoll, call_epoll_pwait, write_byte, 1, 0},
    {"epoll_pwait2 without time-out", kWoken, make_epoll, call_epoll_pwait2, write_byte, 1, 0},
    {"recv", kWoken, make_pair, call_recv, write_byte, 1, 0},
    {"recv, long SO_RCVTIMEO", kWoken, make_pair_long, call_recv, write_byte, 1, 0},
    {"recv over TCP", kWoken, make_tcp, call_recv, write_byte, 1, 0},
    {"recv with MSG_WAITALL, begun", kWoken, make_pair, call_recv_all, write_byte, 4, 0},
    {"recv with MSG_WAITALL over TCP, begun", kWoken, make_tcp, call_recv_all, write_byte, 4, 0},
    {"recv with MSG_WAITALL and MSG_PEEK over TCP, begun", kWoken, make_tcp, call_recv_look, write_byte, 4, 0},
    {"recvfrom", kWoken, make_pair, call_recvfrom, write_byte, 1, 0},
    {"recvmsg", kWoken, make_pair, call_recvmsg, write_byte, 1, 0},
    {"send, begun", kWoken, make_pair, call_send, drain, kLarge, 0},
    {"accept", kWoken, make_listener, call_accept, connect_to_it, 0, 0},
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
    {NULL}};

struct call interrupted_calls[] = {
    {"read, interrupted", kInterrupted, make_pipe, call_read, NULL, -1, EINTR},
    {"poll, interrupted", kInterrupted, make_pipe, call_poll, NULL, -1, EINTR},
    {"poll, long, interrupted", kInterrupted, make_pipe, call_poll_long, NULL, -1, EINTR},
    {"select, long, interrupted", kInterrupted, make_pipe, call_select_long, NULL, -1, EINTR},
    {"epoll_wait, interrupted", kInterrupted, make_epoll, call_epoll_wait, NULL, -1, EINTR},
    {"epoll_wait, long, interrupted", kInterrupted, make_epoll, call_epoll_wait_long, NULL, -1, EINTR},
    {"recv, interrupted", kInterrupted, make_pair, call_recv, NULL, -1, EINTR},
    {"recv, long SO_RCVTIMEO, interrupted", kInterrupted, make_pair_long, call_recv, NULL, -1, EINTR},
    {"accept, interrupted", kInterrupted, make_listener, call_accept, NULL, -1, EINTR},
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
