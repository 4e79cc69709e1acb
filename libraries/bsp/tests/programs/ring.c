/* Uses all of BSPlib over many supersteps. Prints a number of each process that depends on all that was put, got and
 * sent. At each sync there is memory of all kinds registered, and messages are unread. */
#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { kSteps = 150 };
static long seen, everywhere[4];

static void mix(long value) { seen = (seen * 31 + value) % 1000003; }

/* RING_PAUSE_US gives a test time to save the job. With RING_HOLD it comes to no end, superstep by superstep, until
 * that file is there; a restart without it goes on. */
static void rest(void) {
  const char* pause_us = getenv("RING_PAUSE_US");
  if (pause_us) nanosleep(&(struct timespec){0, atol(pause_us) * 1000}, NULL);
}

static void hold(void) {
  while (getenv("RING_HOLD")) {
    const int end = bsp_pid() == 0 && !access(getenv("RING_HOLD"), F_OK), tag = 0;
    for (int i = 0; end && i < bsp_nprocs(); i++) bsp_send(i, &tag, &tag, 0);
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    bsp_sync();
    int count, bytes;
    bsp_qsize(&count, &bytes);
    if (count) break;
  }
}

static void read_messages(void) {
  int count, bytes;
  bsp_qsize(&count, &bytes);
  while (count--) {
    long values[3];
    int size, tag = 0;
    bsp_get_tag(&size, &tag);
    bsp_move(values, sizeof values);
    for (int i = 0; i < size / (int)sizeof(long); i++) mix(values[i] + tag);
  }
}

static void step_of(int step, long* ring, double* local) {
  const int p = bsp_nprocs(), s = bsp_pid();
  long mine[3] = {seen, s - step, step};
  for (int i = 0; i < p; i++) bsp_put(i, mine, ring, s * (int)sizeof(long), sizeof(long));
  const double half = step * 0.5 + s;
  bsp_hpput((s + 1) % p, &half, local, (step % 4) * (int)sizeof half, sizeof half);
  long got = 0;
  bsp_get((s + 2) % p, everywhere, (step % 4) * (int)sizeof(long), &got, sizeof got);
  for (int i = 0; i < step % 4; i++) {
    const int tag = step + i;
    bsp_send((s + 1 + i) % p, &tag, mine, (1 + i % 3) * (int)sizeof(long));
  }
  bsp_sync();
  mix(got);
  for (int i = 0; i < p; i++) mix(ring[i]);
  everywhere[step % 4] = seen;
  mix((long)(2 * local[step % 4]));
  read_messages();
}

static void spmd(void) {
  bsp_begin(bsp_nprocs());
  const int p = bsp_nprocs();
  long* ring = calloc(p, sizeof *ring);
  double local[4] = {0};
  int tag_bytes = sizeof(int);
  bsp_set_tagsize(&tag_bytes);
  bsp_push_reg(everywhere, sizeof everywhere);
  bsp_push_reg(ring, p * (int)sizeof *ring);
  bsp_push_reg(local, sizeof local);
  bsp_sync();
  for (int step = 0; step < kSteps; step++) {
    if (step % 10 == 7) { /* a registration that goes, and comes again as the newest */
      bsp_pop_reg(ring);
      bsp_push_reg(ring, p * (int)sizeof *ring);
    }
    step_of(step, ring, local);
    rest();
    if (step == kSteps - 30) hold();
  }
  printf("process %d: %ld\n", bsp_pid(), seen);
  bsp_end();
}

int main(int argc, char** argv) {
  bsp_init(spmd, argc, argv);
  spmd();
  return 0;
}
