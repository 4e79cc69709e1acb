/* What /proc has of processes and threads, open across a restart. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "scenario.h"

static struct {
  pthread_t thread;
  pid_t tid;
  int name, status, status_again, directory, peer, pipe[2];
} f;

/* Has the signals of a pipe that is written to. */
static void* be_looked_at(void* ready) {
  sigset_t io;
  int signal = 0;
  f.tid = (pid_t)syscall(SYS_gettid);
  __atomic_store_n((int*)ready, 1, __ATOMIC_RELEASE);
  sigemptyset(&io);
  sigaddset(&io, SIGIO);
  CHECK(sigwait(&io, &signal) == 0 && signal == SIGIO);
  return NULL;
}

static int open_proc(const char* of, pid_t number, const char* file, int flags) {
  char path[64];
  snprintf(path, sizeof(path), of, (int)number, file);
  const int fd = open(path, flags);
  CHECK(fd >= 0);
  return fd;
}

static void open_all(pid_t peer) {
  /* As pthread_setname_np does. */
  f.name = open_proc("/proc/self/task/%d/%s", f.tid, "comm", O_RDWR);
  CHECK(write(f.name, "named", 5) == 5);
  f.status = open_proc("/proc/%d/%s", f.tid, "status", O_RDONLY | O_CLOEXEC);
  f.status_again = dup(f.status);
  CHECK(lseek(f.status, 1, SEEK_SET) == 1);
  f.directory = open_proc("/proc/self/task/%d%s", f.tid, "", O_RDONLY | O_DIRECTORY);
  f.peer = open_proc("/proc/%d/%s", peer, "status", O_RDONLY);
  const struct f_owner_ex owner = {F_OWNER_TID, f.tid};
  CHECK(pipe(f.pipe) == 0 && fcntl(f.pipe[0], F_SETOWN_EX, &owner) == 0);
  CHECK(fcntl(f.pipe[0], F_SETFL, O_ASYNC) == 0);
}

static int reads(int fd, const char* text) {
  char bytes[16] = "";
  const ssize_t n = read(fd, bytes, strlen(text));
  if (n == (ssize_t)strlen(text) && memcmp(bytes, text, strlen(text)) == 0) return 1;
  fprintf(stderr, "\"%.*s\" is not \"%s\"\n", (int)n, bytes, text);
  return 0;
}

static void look_at_all(void) {
  char name[16];
  CHECK(reads(f.status, "ame:") && reads(f.status_again, "\tnamed\n"));
  CHECK(write(f.name, "renamed", 7) == 7);
  CHECK(pthread_getname_np(f.thread, name, sizeof(name)) == 0 && strcmp(name, "renamed") == 0);
  CHECK((fcntl(f.status, F_GETFD) & FD_CLOEXEC) != 0 && (fcntl(f.status_again, F_GETFD) & FD_CLOEXEC) == 0);
  const int comm = openat(f.directory, "comm", O_RDONLY);
  CHECK(comm >= 0 && reads(comm, "renamed\n"));
  CHECK(reads(f.peer, "Name:"));
  CHECK(write(f.pipe[1], "x", 1) == 1 && pthread_join(f.thread, NULL) == 0);
  /* The same thread, and not one that has come to its number. */
  CHECK(pread(f.name, name, sizeof(name), 0) < 0 && errno == ESRCH);
}

static void files_first(void) {
  static int ready;
  int unused;
  uint32_t peer;
  sigset_t io;
  sigemptyset(&io);
  sigaddset(&io, SIGIO);
  CHECK(pthread_sigmask(SIG_BLOCK, &io, NULL) == 0);
  make_pair(1 << 16);
  CHECK(pthread_create(&f.thread, NULL, be_looked_at, &ready) == 0);
  while (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) usleep(100);
  await("process", &unused, &peer);
  open_all((pid_t)peer);
  checkpoint_and_kill();
  checkpoint_and_kill(); /* of what a restart has opened */
  look_at_all();
  send_one(1);
  tell("seen", 0);
}

static void files_second(void) {
  int unused;
  uint32_t number;
  join();
  tell("process", (uint32_t)getpid());
  await("seen", &unused, &number);
}

const struct scenario process_file_scenarios[] = {
    {"files_first", files_first}, {"files_second", files_second}, {NULL, NULL}};
