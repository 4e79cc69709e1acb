/* Calls that wait for something of a descriptor: it comes after the checkpoints, or a signal of the program does. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

struct call descriptor_calls[] = {
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
    {"read, interrupted", kInterrupted, make_pipe, call_read, NULL, -1, EINTR},
    {"poll, interrupted", kInterrupted, make_pipe, call_poll, NULL, -1, EINTR},
    {"poll, long, interrupted", kInterrupted, make_pipe, call_poll_long, NULL, -1, EINTR},
    {"select, long, interrupted", kInterrupted, make_pipe, call_select_long, NULL, -1, EINTR},
    {"epoll_wait, interrupted", kInterrupted, make_epoll, call_epoll_wait, NULL, -1, EINTR},
    {"epoll_wait, long, interrupted", kInterrupted, make_epoll, call_epoll_wait_long, NULL, -1, EINTR},
    {"recv, interrupted", kInterrupted, make_pair, call_recv, NULL, -1, EINTR},
    {"recv, long SO_RCVTIMEO, interrupted", kInterrupted, make_pair_long, call_recv, NULL, -1, EINTR},
    {"accept, interrupted", kInterrupted, make_listener, call_accept, NULL, -1, EINTR},
    {NULL}};
