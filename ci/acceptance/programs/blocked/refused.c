/* Calls on what a checkpoint refuses by name: the refusal must not be seen by who is blocked in one. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "blocked.h"

static void write_byte(struct call* c) { MUST(write(c->fds[1], "", 1) == 1); }

/* A child that ends when it is told to. */
static void make_child(struct call* c) {
  MUST(pipe2(c->fds, O_CLOEXEC) == 0);
  const pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    close(c->fds[1]);
    char byte;
    _exit(read(c->fds[0], &byte, 1) == 1 ? 0 : 1);
  }
  c->memory = malloc(sizeof(child));
  *(pid_t*)c->memory = child;
}
static long call_waitid(struct call* c) {
  siginfo_t info = {0};
  const long result = waitid(P_PID, (id_t) * (pid_t*)c->memory, &info, WEXITED);
  return result == 0 ? info.si_status : result;
}
static long call_waitpid(struct call* c) {
  int status = -1;
  return waitpid(*(pid_t*)c->memory, &status, 0) == *(pid_t*)c->memory ? status : -1;
}

/* A Unix connection that waits for room in the listener's backlog, and a TCP connection whose first packet is dropped
 * for want of it. Whoever accepts makes room; TCP asks again after a second or more. */
static void make_full_unix(struct call* c) {
  struct sockaddr_un* address = c->memory = calloc(1, sizeof(*address) + sizeof(socklen_t));
  socklen_t length = sizeof(*address);
  address->sun_family = AF_UNIX;
  MUST((c->fds[0] = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0);
  MUST(bind(c->fds[0], c->memory, sizeof(sa_family_t)) == 0 && listen(c->fds[0], 0) == 0);
  MUST(getsockname(c->fds[0], c->memory, &length) == 0);
  *(socklen_t*)(address + 1) = length;
  const int first = socket(AF_UNIX, SOCK_STREAM, 0);
  MUST(connect(first, c->memory, length) == 0);
  MUST((c->fds[1] = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0);
}
static long call_connect_unix(struct call* c) {
  return connect(c->fds[1], c->memory, *(socklen_t*)((struct sockaddr_un*)c->memory + 1));
}
static void make_full_tcp(struct call* c) {
  struct sockaddr_in* address = c->memory = calloc(1, sizeof(*address));
  socklen_t length = sizeof(*address);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  MUST((c->fds[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
  MUST(bind(c->fds[0], c->memory, length) == 0 && listen(c->fds[0], 0) == 0);
  MUST(getsockname(c->fds[0], c->memory, &length) == 0);
  const int first = socket(AF_INET, SOCK_STREAM, 0);
  MUST(connect(first, c->memory, length) == 0);
  MUST((c->fds[1] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
}
static long call_connect_tcp(struct call* c) { return connect(c->fds[1], c->memory, sizeof(struct sockaddr_in)); }
static void accept_first(struct call* c) { MUST(accept(c->fds[0], NULL, NULL) >= 0); }

/* Locks that somebody else holds: descriptors of their own do. */
static void make_locked(struct call* c) {
  c->memory = strdup("locked-XXXXXX");
  MUST((c->fds[1] = mkstemp(c->memory)) >= 0 && flock(c->fds[1], LOCK_EX) == 0);
  MUST((c->fds[0] = open(c->memory, O_RDWR)) >= 0);
}
static long call_flock(struct call* c) { return flock(c->fds[0], LOCK_EX); }
static void unlock_it(struct call* c) { MUST(flock(c->fds[1], LOCK_UN) == 0); }

static void make_range_locked(struct call* c) {
  struct flock lock = {.l_type = F_WRLCK, .l_len = 1};
  c->memory = strdup("locked-XXXXXX");
  MUST((c->fds[1] = mkstemp(c->memory)) >= 0 && fcntl(c->fds[1], F_OFD_SETLK, &lock) == 0);
  MUST((c->fds[0] = open(c->memory, O_RDWR)) >= 0);
}
static long call_setlkw(struct call* c) {
  struct flock lock = {.l_type = F_WRLCK, .l_len = 1};
  return fcntl(c->fds[0], F_OFD_SETLKW, &lock);
}
static void unlock_range(struct call* c) {
  struct flock lock = {.l_type = F_UNLCK, .l_len = 1};
  MUST(fcntl(c->fds[1], F_OFD_SETLK, &lock) == 0);
}

static void make_inotify(struct call* c) {
  MUST(mkdir("watched", 0700) == 0 || errno == EEXIST);
  MUST((c->fds[0] = inotify_init1(0)) >= 0 && inotify_add_watch(c->fds[0], "watched", IN_CREATE) >= 0);
}
static long call_read_inotify(struct call* c) {
  char event[4096];
  return read(c->fds[0], event, sizeof(event)) > 0 ? 0 : -1;
}
static void make_file(struct call* c) {
  (void)c;
  MUST(close(open("watched/made", O_CREAT | O_RDWR, 0600)) == 0);
}

/* Asynchronous I/O, waiting for a pipe to be readable. */
static void make_io(struct call* c) {
  aio_context_t io = 0;
  MUST(pipe(c->fds) == 0 && syscall(SYS_io_setup, 1, &io) == 0);
  struct iocb request = {
      .aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = (uint32_t)c->fds[0], .aio_buf = 1 /* POLLIN */};
  struct iocb* list[] = {&request};
  MUST(syscall(SYS_io_submit, io, 1, list) == 1);
  c->memory = (void*)io;
}
static long call_io_getevents(struct call* c) {
  struct io_event event;
  return syscall(SYS_io_getevents, (aio_context_t)c->memory, 1, 1, &event, NULL);
}
static long call_io_getevents_long(struct call* c) {
  struct io_event event;
  struct timespec time = span(kLongMs);
  return syscall(SYS_io_getevents, (aio_context_t)c->memory, 1, 1, &event, &time);
}

struct call refused_calls[] = {{"waitid", kWoken, make_child, call_waitid, write_byte, 0, 0},
                               {"waitpid", kWoken, make_child, call_waitpid, write_byte, 0, 0},
                               {"connect", kWoken, make_full_unix, call_connect_unix, accept_first, 0, 0},
                               {"connect over TCP", kWoken, make_full_tcp, call_connect_tcp, accept_first, 0, 0},
                               {"flock", kWoken, make_locked, call_flock, unlock_it, 0, 0},
                               {"fcntl(F_OFD_SETLKW)", kWoken, make_range_locked, call_setlkw, unlock_range, 0, 0},
                               {"read of inotify", kWoken, make_inotify, call_read_inotify, make_file, 0, 0},
                               {"io_getevents", kWoken, make_io, call_io_getevents, write_byte, 1, 0},
                               {"io_getevents, long", kWoken, make_io, call_io_getevents_long, write_byte, 1, 0},
                               {NULL}};
