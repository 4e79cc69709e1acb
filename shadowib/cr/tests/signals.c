/* SIGTERM comes while the threads are stopped (with SHADOWIB_FAULT=40:term), and the process ends by SIGKILL. */
#include <errno.h>
#include <signal.h>
#include <time.h>

#include "scenario.h"

/* It is not for the restarted process, which has come to nobody's notice yet. */
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

const struct scenario signal_scenarios[] = {{"terminated", terminated},
                                            {"handles_termination", handles_termination},
                                            {"awaits_termination", awaits_termination},
                                            {NULL, NULL}};
