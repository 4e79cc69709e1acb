/* Signals that come when a checkpoint is taken, and signals that ask for one. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "scenario.h"

/* SIGTERM comes while the threads are stopped (with SHADOWIB_FAULT=40:term), and the process ends by SIGKILL. It is
 * not for the restarted process, which has come to nobody's notice yet. */
static void terminated(void) {
  make_pair(1 << 16);
  checkpoint_and_kill();
  send_one(1);
  checkpoint_and_kill();
  send_one(2);
}

static volatile sig_atomic_t handled;

static void handle(int signal) {
  (void)signal;
  ++handled;
}

/* But it is, if the program has an ear for it. */
static void handles_termination(void) {
  make_pair(1 << 16);
  CHECK(signal(SIGTERM, handle) != SIG_ERR);
  checkpoint_and_kill();
  CHECK(handled == 1);
  send_one(1);
}

static void awaits_termination(void) {
  const struct timespec at_once = {0, 0};
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
  make_pair(1 << 16);
  checkpoint_and_kill();
  CHECK(sigtimedwait(&set, NULL, &at_once) == SIGTERM);
  CHECK(sigtimedwait(&set, NULL, &at_once) == -1 && errno == EAGAIN);
  send_one(1);
}

static void ended_well(pid_t child) {
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* What the terminal of a restart command sends: to a group of the program's own, with a child that came later. */
static void foreground(void) {
  int signal = 0;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGWINCH);
  CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0 && setpgid(0, 0) == 0);
  make_pair(1 << 16);
  checkpoint_and_kill();
  CHECK(getpgrp() == getpid());
  const pid_t child = fork();
  sigdelset(&set, SIGWINCH);
  if (child == 0) _exit(sigwait(&set, &signal) == 0 && signal == SIGINT ? 0 : 1);
  sigaddset(&set, SIGWINCH);
  tell("waits", 0);
  CHECK(sigwait(&set, &signal) == 0 && signal == SIGWINCH);
  tell("resized", 0);
  CHECK(sigwait(&set, &signal) == 0 && signal == SIGINT);
  ended_well(child);
  send_one(1);
}

/* A terminal of the program's own, with what was typed and put out, over a checkpoint and a restart. */
static void terminal(void) {
  int master = -1, slave = -1;
  char text[64];
  CHECK(openpty(&master, &slave, NULL, NULL, NULL) == 0 && setsid() == getpid() && ioctl(slave, TIOCSCTTY, 0) == 0);
  char* name = ttyname(slave);
  make_pair(1 << 16);
  CHECK(write(master, "typed\nrest", 10) == 10 && readable(slave, 5000));
  checkpoint_and_go_on();
  CHECK(read(master, text, sizeof(text)) == 11 && memcmp(text, "typed\r\nrest", 11) == 0);
  checkpoint_and_kill();
  CHECK(!readable(master, 0) && read(slave, text, sizeof(text)) == 6 && memcmp(text, "typed\n", 6) == 0);
  CHECK(!readable(slave, 0) && write(master, "\n", 1) == 1 && readable(slave, 5000));
  CHECK(read(slave, text, sizeof(text)) == 5 && memcmp(text, "rest\n", 5) == 0);
  CHECK(strcmp(name, ttyname(slave)) == 0 && tcgetpgrp(slave) == getpgrp() && open("/dev/tty", O_RDWR) >= 0);
  send_one(1);
}

static void* make_it(void* unused) {
  make_pair(1 << 16);
  return unused;
}

/* To ignore one, to handle it again, to block it. */
static void old_ways(void) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  CHECK(sigignore(SIGUSR1) == 0);
  CHECK(ssignal(SIGUSR1, handle) == SIG_IGN);
  CHECK(sighold(SIGUSR1) == 0);
#pragma GCC diagnostic pop
}

/* Goes on until a file tells it to end. Where SIGUSR1 and SIGTERM are taken from it (SHADOWIB_CHECKPOINT_ON,
 * SHADOWIB_KILL_ON) it sees nothing of them, whatever it has for them, but its children do. */
static void asked_by_signals(const char* self) {
  struct sigaction seen;
  struct timespec moment = {0, 20000000};
  sigset_t set;
  pthread_t thread;
  CHECK(signal(SIGUSR1, handle) != SIG_ERR);
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGTERM);
  if (strcmp(self, "one") == 0) {
    make_pair(1 << 16);
  } else { /* the thread that becomes a member ends, and the other has them blocked */
    CHECK(pthread_create(&thread, NULL, make_it, NULL) == 0);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0 && pthread_join(thread, NULL) == 0);
  }
  old_ways();
  CHECK(sigaction(SIGUSR1, NULL, &seen) == 0 && seen.sa_handler == handle);
  CHECK(signal(SIGTERM, handle) == SIG_DFL && signal(SIGTERM, handle) == handle);
  CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
  pid_t child = fork();
  if (child == 0) {
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    raise(SIGUSR1);
    raise(SIGTERM);
    _exit(handled == 2 ? 0 : 1);
  }
  ended_well(child);
  CHECK(handled == 0);
  child = vfork();
  if (child == 0) {
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    kill(getpid(), SIGUSR1);
    _exit(0);
  }
  ended_well(child);
  CHECK(handled == 1); /* by the child, in our memory */
  tell(self, 0);
  for (uint64_t n = 0; access("finish", F_OK) != 0; ++n) {
    CHECK(poll(NULL, 0, 20) == 0);
    CHECK(nanosleep(&moment, NULL) == 0);
    send_one(n);
  }
  CHECK(handled == 1);
}
static void asked_by_signals_one(void) { asked_by_signals("one"); }
static void asked_by_signals_two(void) { asked_by_signals("two"); }

const struct scenario signal_scenarios[] = {{"terminated", terminated},
                                            {"handles_termination", handles_termination},
                                            {"awaits_termination", awaits_termination},
                                            {"foreground", foreground},
                                            {"terminal", terminal},
                                            {"asked_by_signals_one", asked_by_signals_one},
                                            {"asked_by_signals_two", asked_by_signals_two},
                                            {NULL, NULL}};
