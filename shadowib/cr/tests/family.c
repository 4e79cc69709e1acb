/* Members whose children are members, too, and children that have ended and were not waited for. */
#include <errno.h>
#include <pty.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scenario.h"

static volatile sig_atomic_t ends_told;

static void note_end(int signal) {
  (void)signal;
  ++ends_told;
}

static int go[2], ready[2];

/* With an adapter of its own, as everybody here. */
static void work(uint64_t id) {
  char byte;
  make_pair(1 << 16);
  send_one(id);
  CHECK(write(ready[1], "r", 1) == 1);
  CHECK(read(go[0], &byte, 1) == 1);
  send_one(id + 1);
}

static void with_device(void) { work(10); }

static pid_t begin(void (*body)(void), int status) {
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid > 0) return pid;
  body();
  _exit(status);
}

static void expect_end(pid_t pid, int options, int expected) {
  int status;
  CHECK(waitpid(pid, &status, options) == pid && status == expected);
}

static void expect_childless(void) { CHECK(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD); }

/* Leads a session, and so its group. */
static void daemon_like(void) {
  const pid_t parent = getppid();
  int told = 0;
  CHECK(setsid() == getpid() && prctl(PR_SET_PDEATHSIG, SIGWINCH) == 0);
  work(20);
  CHECK(getppid() == parent && getsid(0) == getpid() && getpgrp() == getpid());
  CHECK(prctl(PR_GET_PDEATHSIG, &told) == 0 && told == SIGWINCH);
}

static void nothing(void) {}

/* As a shell's job: in a group of its own, with a child, and one that has ended. */
static void job_like(void) {
  const pid_t parent = getppid();
  CHECK(setpgid(0, 0) == 0);
  const pid_t ended = begin(nothing, 9), child = begin(daemon_like, 3);
  siginfo_t info;
  CHECK(waitid(P_PID, ended, &info, WEXITED | WNOWAIT) == 0);
  work(10);
  CHECK(getppid() == parent && getpgrp() == getpid());
  expect_end(ended, WNOHANG, 9 << 8);
  expect_end(child, 0, 3 << 8);
  expect_childless();
}

static void end_by_signal(void) {
  signal(SIGUSR2, SIG_DFL);
  raise(SIGUSR2);
}

static void family(void) {
  char byte;
  siginfo_t info;
  CHECK(pipe(go) == 0 && pipe(ready) == 0 && signal(SIGCHLD, note_end) != SIG_ERR);
  make_pair(1 << 16);
  const pid_t ended = begin(end_by_signal, 0), child = begin(job_like, 5);
  CHECK(waitid(P_PID, ended, &info, WEXITED | WNOWAIT) == 0);
  while (ends_told == 0) usleep(1000);
  for (int i = 0; i < 2; ++i) CHECK(read(ready[0], &byte, 1) == 1);
  checkpoint_and_kill();
  CHECK(ends_told == 1);
  send_one(1);
  checkpoint_and_kill();
  CHECK(ends_told == 1); /* nor are they told twice */
  int status;
  CHECK(waitpid(0, &status, WNOHANG) == ended && status == SIGUSR2); /* of its own group, that is */
  send_one(2);
  CHECK(write(go[1], "gg", 2) == 2);
  expect_end(child, 0, 5 << 8);
  CHECK(ends_told == 2);
  expect_childless();
}

/* A child on a terminal that its parent has made for it: what is typed reaches it, and Ctrl-C ends it. */
static void family_on_a_terminal(void) {
  char byte, line[8] = "";
  int master, status;
  CHECK(pipe(go) == 0 && pipe(ready) == 0);
  make_pair(1 << 16);
  const pid_t parent = getpid(), child = forkpty(&master, NULL, NULL, NULL);
  CHECK(child >= 0);
  if (child == 0) {
    make_pair(1 << 16);
    CHECK(write(ready[1], "r", 1) == 1);
    CHECK(read(0, line, sizeof(line)) == 6 && strcmp(line, "typed\n") == 0);
    CHECK(getppid() == parent && tcgetpgrp(0) == getpid() && getsid(0) == getpid());
    send_one(20);
    CHECK(write(ready[1], "r", 1) == 1);
    for (;;) pause();
  }
  CHECK(read(ready[0], &byte, 1) == 1);
  checkpoint_and_kill();
  CHECK(write(master, "typed\n", 6) == 6);
  CHECK(read(ready[0], &byte, 1) == 1);
  send_one(1);
  CHECK(write(master, "\003", 1) == 1);
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
}

/* What the parent's channels are made of has numbers that mean nothing in its child, which has the channels, too. */
static void family_with_channels(void) {
  enum { kChannels = 40 };
  struct ibv_comp_channel* channels[kChannels];
  char byte;
  CHECK(pipe(go) == 0 && pipe(ready) == 0);
  make_pair(1 << 16);
  for (int i = 0; i < kChannels; ++i) CHECK((channels[i] = ibv_create_comp_channel(context)) != NULL);
  struct ibv_cq* last = ibv_create_cq(context, 4, NULL, channels[kChannels - 1], 0);
  CHECK(last != NULL);
  const pid_t child = begin(with_device, 5);
  CHECK(read(ready[0], &byte, 1) == 1);
  for (int i = 0; i < 2; ++i) {
    checkpoint_and_kill();
    send_one(1 + i);
  }
  CHECK(write(go[1], "g", 1) == 1);
  expect_end(child, 0, 5 << 8);
  CHECK(readable(channels[kChannels - 1]->fd, 0) == 0 && ibv_destroy_cq(last) == 0);
  for (int i = 0; i < kChannels; ++i) CHECK(ibv_destroy_comp_channel(channels[i]) == 0);
}

/* A child that opens no device before the restart, and knows of them from its parent. */
static void later_device(void) {
  char byte;
  join();
  CHECK(write(ready[1], "r", 1) == 1);
  CHECK(read(go[0], &byte, 1) == 1);
  make_pair(1 << 16);
  send_one(10);
}

static void family_with_a_later_device(void) {
  char byte;
  struct ibv_device** list = ibv_get_device_list(NULL);
  CHECK(list != NULL && pipe(go) == 0 && pipe(ready) == 0);
  ibv_free_device_list(list);
  const pid_t child = begin(later_device, 5);
  make_pair(1 << 16);
  CHECK(read(ready[0], &byte, 1) == 1);
  checkpoint_and_kill();
  send_one(1);
  CHECK(write(go[1], "g", 1) == 1);
  expect_end(child, 0, 5 << 8);
}

/* Its child is a program that knows nothing of us. */
static void family_with_an_outsider(void) {
  const int patience = 10;
  open_device();
  const pid_t child = begin(nothing, 0);
  CHECK(waitpid(child, NULL, 0) == child);
  const pid_t outsider = fork();
  CHECK(outsider >= 0);
  if (outsider == 0) {
    execlp("sleep", "sleep", "100", NULL);
    _exit(127);
  }
  CHECK(take_checkpoint(0) != 0);
  CHECK(kill(outsider, SIGKILL) == 0 && waitpid(outsider, NULL, 0) == outsider);
  const pid_t passing = fork(); /* it has ended before the command gives up */
  if (passing == 0) {
    execlp("sleep", "sleep", "0.3", NULL);
    _exit(127);
  }
  alarm(patience * 6);
  checkpoint_and_go_on();
  expect_end(passing, 0, 0);
}

const struct scenario family_scenarios[] = {{"family", family},
                                            {"family_on_a_terminal", family_on_a_terminal},
                                            {"family_with_a_later_device", family_with_a_later_device},
                                            {"family_with_channels", family_with_channels},
                                            {"family_with_an_outsider", family_with_an_outsider},
                                            {NULL, NULL}};
