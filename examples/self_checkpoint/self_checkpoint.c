/* A program that asks for its own checkpoint and is told when it happens.
 *
 *   shadowib run --job demo -- ./self_checkpoint [--kill] [STEPS]
 *   shadowib restart shadowib-ckpt/sets/demo.0001          after --kill, or at any later time
 *
 * It sums 1..STEPS, checkpoints itself half way, and prints what it saw. Exits with 0 if the sum and the order of the
 * hooks are right, in the original process as in a restarted one. */
#include <shadowib/shadowib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int g_before, g_resume, g_restart;

static void on_event(int event, void* arg) {
  int* counter = arg;
  *counter += 1;
  if (event == SHADOWIB_BEFORE_CHECKPOINT) ++g_before;
  if (event == SHADOWIB_RESUME) ++g_resume;
  if (event == SHADOWIB_RESTART) ++g_restart;
}

static int fail(const char* what) {
  fprintf(stderr, "self_checkpoint: %s: %s\n", what, shadowib_last_error());
  return 1;
}

int main(int argc, char** argv) {
  unsigned flags = 0;
  int at = 1;
  if (at < argc && strcmp(argv[at], "--kill") == 0) {
    flags = SHADOWIB_CHECKPOINT_KILL;
    ++at;
  }
  const long steps = at < argc ? atol(argv[at]) : 1000;
  printf("self_checkpoint with shadowib %s\n", shadowib_version());
  if (shadowib_join() != 0) return fail("cannot join a job");

  int events = 0;
  if (shadowib_add_hook(on_event, &events) < 0) return fail("cannot add a hook");

  char set[4096] = "";
  int outcome = -1;
  long sum = 0;
  for (long i = 1; i <= steps; ++i) {
    sum += i;
    if (i != steps / 2) continue;
    fflush(stdout);
    outcome = shadowib_checkpoint(flags, 0, set, sizeof(set));
    if (outcome < 0) return fail("no checkpoint");
  }
  if (outcome == 0) printf("resumed from %s; ", set);
  if (outcome == 1) printf("restarted; ");
  printf("hooks: %d before, %d resume, %d restart; sum %ld\n", g_before, g_resume, g_restart, sum);
  const int right = sum == steps * (steps + 1) / 2 && g_before == 1 && events == 2 &&
                    (outcome == 1 ? g_restart == 1 && g_resume == 0 : g_resume == 1 && g_restart == 0);
  if (!right) fprintf(stderr, "self_checkpoint: not what was expected\n");
  return right ? 0 : 1;
}
