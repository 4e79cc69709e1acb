/* A member of a job that has something a checkpoint has to refuse: odd_process KIND [ARGUMENT].
 *
 * Prints "ready fd=N pid=P" (fd -1: it is no descriptor), keeps the thing until a file `close` appears, prints
 * "closed", lives until a file `finish` appears and exits with 0 if all was well. Exits with 77 and the reason if the
 * thing cannot be made here. `odd_process trace PID` is no member: it traces another process until it is killed. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "member.h"

struct odd {
  int fd;        /* what the message has to name, or -1 */
  int other;     /* a second descriptor to close, or -1 */
  pid_t child;   /* to be ended, or 0 */
  void* mapping; /* to be unmapped, or NULL */
};

static int need(int result, const char* what) {
  if (result < 0) leave(EXIT_SKIPPED, "SKIPPED: %s: %s", what, strerror(errno));
  return result;
}

static struct odd make_tcp(const char* port) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = need(socket(AF_INET, SOCK_STREAM, 0), "socket");
  if (connect(fd, (struct sockaddr*)&to, sizeof(to)) != 0) leave(1, "connect: %s", strerror(errno));
  return (struct odd){.fd = fd, .other = -1};
}

static struct odd make_inotify(const char* unused) {
  (void)unused;
  int fd = need(inotify_init1(0), "inotify_init1");
  need(inotify_add_watch(fd, ".", IN_CREATE), "inotify_add_watch");
  return (struct odd){.fd = fd, .other = -1};
}

static struct odd make_io_uring(const char* unused) {
  (void)unused;
  struct io_uring_params parameters = {0};
  return (struct odd){.fd = need((int)syscall(SYS_io_uring_setup, 4, &parameters), "io_uring_setup"), .other = -1};
}

static struct odd make_userfaultfd(const char* unused) {
  (void)unused;
  int fd = need((int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY), "userfaultfd");
  return (struct odd){.fd = fd, .other = -1};
}

static struct odd make_raw(const char* unused) {
  (void)unused;
  return (struct odd){.fd = need(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), "raw socket"), .other = -1};
}

static int lock_file(void) { return need(open("locked", O_RDWR | O_CREAT, 0600), "open"); }

static struct odd make_lease(const char* unused) {
  (void)unused;
  int fd = lock_file();
  need(fcntl(fd, F_SETLEASE, F_WRLCK), "fcntl(F_SETLEASE)");
  return (struct odd){.fd = fd, .other = -1};
}

static struct odd make_notification(const char* unused) {
  (void)unused;
  int fd = need(open(".", O_RDONLY | O_DIRECTORY), "open");
  signal(SIGIO, SIG_IGN);
  need(fcntl(fd, F_NOTIFY, DN_CREATE | DN_MULTISHOT), "fcntl(F_NOTIFY)");
  return (struct odd){.fd = fd, .other = -1};
}

/* Pages of a device, its descriptor closed: only the mapping is left. */
static struct odd make_device_mapping(const char* unused) {
  (void)unused;
  static const struct {
    const char* path;
    off_t offset;
  } kDevices[] = {{"/dev/mem", 0xf0000}, {"/dev/dri/card0", 0}};
  for (size_t i = 0; i < sizeof(kDevices) / sizeof(kDevices[0]); ++i) {
    int fd = open(kDevices[i].path, O_RDONLY);
    if (fd < 0) continue;
    void* mapping = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, kDevices[i].offset);
    close(fd);
    if (mapping != MAP_FAILED) return (struct odd){.fd = -1, .other = -1, .mapping = mapping};
  }
  /* The kernel's ring of performance events is as little a file as a NIC's doorbell page. */
  struct perf_event_attr attributes = {.type = PERF_TYPE_SOFTWARE,
                                       .size = sizeof(attributes),
                                       .config = PERF_COUNT_SW_CPU_CLOCK,
                                       .disabled = 1,
                                       .exclude_kernel = 1};
  int fd =
      need((int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0), "no device to map, and perf_event_open");
  void* mapping = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) need(-1, "mmap of a performance event");
  close(fd);
  return (struct odd){.fd = -1, .other = -1, .mapping = mapping};
}

/* A descriptor on its way: sent through a socket pair and not received. */
static struct odd make_in_flight(const char* unused) {
  (void)unused;
  int ends[2], passed = need(open("passed", O_RDWR | O_CREAT, 0600), "open");
  char byte = 1;
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
  } control;
  struct iovec data = {&byte, 1};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
  need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
  control.header.cmsg_level = SOL_SOCKET;
  control.header.cmsg_type = SCM_RIGHTS;
  control.header.cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(&control.header), &passed, sizeof(int));
  need((int)sendmsg(ends[0], &message, 0), "sendmsg");
  close(passed);
  return (struct odd){.fd = ends[1], .other = ends[0]};
}

/* A live child that `program` describes: static, or setuid to somebody else. */
static struct odd make_child(const char* program) {
  pid_t child = need(fork(), "fork");
  if (child == 0) {
    execl(program, program, (char*)NULL);
    _exit(126);
  }
  struct timespec moment = {0, 300000000};
  nanosleep(&moment, NULL);
  int status;
  if (waitpid(child, &status, WNOHANG) == child)
    leave(EXIT_SKIPPED, "SKIPPED: %s does not run (%d)", program, status);
  return (struct odd){.fd = -1, .other = -1, .child = child};
}

static struct odd make_open(const char* path) {
  return (struct odd){.fd = need(open(path, O_RDWR), path), .other = -1};
}

/* The tracer comes from outside and is gone before `close` appears. */
static struct odd make_nothing(const char* unused) {
  (void)unused;
  return (struct odd){.fd = -1, .other = -1};
}

static const struct {
  const char* kind;
  struct odd (*make)(const char* argument);
} kKinds[] = {{"tcp", make_tcp},
              {"inotify", make_inotify},
              {"io_uring", make_io_uring},
              {"userfaultfd", make_userfaultfd},
              {"raw", make_raw},
              {"lease", make_lease},
              {"notification", make_notification},
              {"device-mapping", make_device_mapping},
              {"in-flight", make_in_flight},
              {"child", make_child},
              {"open", make_open},
              {"nothing", make_nothing}};

static void undo(struct odd odd) {
  if (odd.fd >= 0) close(odd.fd);
  if (odd.other >= 0) close(odd.other);
  if (odd.mapping != NULL) munmap(odd.mapping, 4096);
  if (odd.child > 0) {
    kill(odd.child, SIGKILL);
    waitpid(odd.child, NULL, 0);
  }
}

static void trace(pid_t pid) {
  if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) != 0) leave(EXIT_SKIPPED, "SKIPPED: ptrace: %s", strerror(errno));
  printf("ready\n");
  fflush(stdout);
  for (int status; waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status);)
    ptrace(PTRACE_CONT, pid, NULL, (status >> 16) != 0 ? 0 : WSTOPSIG(status)); /* pass signals on */
  leave(0, "gone");
}

int main(int argc, char** argv) {
  const char *kind = argc > 1 ? argv[1] : "", *argument = argc > 2 ? argv[2] : "";
  if (strcmp(kind, "trace") == 0) trace(atoi(argument));
  for (size_t i = 0; i < sizeof(kKinds) / sizeof(kKinds[0]); ++i) {
    if (strcmp(kind, kKinds[i].kind) != 0) continue;
    join_job();
    struct odd odd = kKinds[i].make(argument);
    printf("ready fd=%d pid=%d child=%d\n", odd.fd, getpid(), odd.child);
    fflush(stdout);
    live_until("close");
    undo(odd);
    printf("closed\n");
    fflush(stdout);
    live_until("finish");
    leave(0, "finished");
  }
  leave(2, "odd_process: no such kind: %s", kind);
}
