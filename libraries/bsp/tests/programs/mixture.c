/* Puts, gets and sends values of all types that processes of several architectures may share, for many supersteps.
 * Prints a number of each process that depends on all of them, and is the same wherever the processes run. */
#include <bsp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { kSteps = 60, kNames = 8, kSmall = 5 };

struct part {
  short kind;
  double weight[2];
  char name[kNames];
  int count;
};

struct whole {
  unsigned char flag;
  struct part parts[3];
  long long sum;
  float rate;
  unsigned long edge;
};

static struct whole wholes[4];
static char text[64];
static long seen;

static void mix(long value) { seen = (seen * 31 + value) % 1000003; }

static void mix_part(const struct part* part) {
  mix(part->kind);
  mix((long)(part->weight[0] * 4));
  mix((long)(part->weight[1] * 4));
  for (int i = 0; i < kNames; i++) mix(part->name[i]);
  mix(part->count);
}

static struct part made_part(int step, int which) {
  struct part part = {
      (short)(-step * 3 - which), {step * 0.5 + which, -step - 0.25}, "abcdefg", step * 100003 + which};
  part.name[0] = (char)('a' + (step + which) % 26);
  return part;
}

static struct whole made_whole(int step, int which) {
  struct whole whole = {(unsigned char)(step + which),
                        {{0}},
                        -(long long)step << 33 | which,
                        step * 0.125f + which,
                        (unsigned long)step << 40 | (unsigned)which};
  for (int i = 0; i < 3; i++) whole.parts[i] = made_part(step + i, which);
  return whole;
}

static void rest(int step) {
  const char* pause_us = getenv("RING_PAUSE_US");
  if (pause_us) nanosleep(&(struct timespec){0, atol(pause_us) * 1000}, NULL);
  while (step == kSteps - 10 && getenv("RING_HOLD")) { /* no end before that file is there */
    const int end = bsp_pid() == 0 && !access(getenv("RING_HOLD"), F_OK), tag = 0;
    for (int i = 0; end && i < bsp_nprocs(); i++) bsp_send(i, &tag, &tag, 0);
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    bsp_sync();
    int count, bytes;
    bsp_qsize(&count, &bytes);
    if (count) break;
  }
}

static void send_all(int step, int to) {
  const int tag = step * 65537 + bsp_pid();
  const short shorts[3] = {(short)step, (short)-step, 258};
  const unsigned natural = 4000000000u - step;
  const long longs[2] = {-(long)step << 35, step};
  const float rates[2] = {step * 0.5f, -1.25f};
  const double weight = step / 8.0;
  bsp_send(to, &tag, shorts, sizeof shorts);
  bsp_send(to, &tag, &natural, sizeof natural);
  bsp_send(to, &tag, longs, sizeof longs);
  bsp_send(to, &tag, rates, sizeof rates);
  bsp_send(to, &tag, &weight, sizeof weight);
  bsp_send(to, &tag, NULL, 0);
}

/* In the order in which send_all sends, from each process. Some are left in the queue. */
static void read_all(int step) {
  int count, bytes, size, tag;
  bsp_qsize(&count, &bytes);
  if (step % 3 == 1) count /= 2;
  for (int i = 0; i < count; i++) {
    bsp_get_tag(&size, &tag);
    mix(tag);
    mix(size);
    union {
      short shorts[3];
      unsigned natural;
      long longs[2];
      float rates[2];
      double weight;
    } payload;
    bsp_move(&payload, sizeof payload);
    if (i % 6 == 0) mix(payload.shorts[0] + 3 * payload.shorts[1] + payload.shorts[2]);
    if (i % 6 == 1) mix(payload.natural % 65521);
    if (i % 6 == 2) mix(payload.longs[0] / 1024 + payload.longs[1]);
    if (i % 6 == 3) mix((long)(4 * payload.rates[0] + payload.rates[1] * 8));
    if (i % 6 == 4) mix((long)(8 * payload.weight));
  }
}

int main(void) {
  bsp_begin(bsp_nprocs());
  const int p = bsp_nprocs(), s = bsp_pid(), next = (s + 1) % p, other = (s + 2) % p;
  struct part* parts = calloc(4, sizeof *parts);
  float* rates = calloc(kSmall, sizeof *rates);
  unsigned short* edges = calloc(kSmall, sizeof *edges);
  double grid[2][3] = {{0}};
  struct part own = made_part(s, s);
  const int has = s == 1 % p; /* one process has memory that the others get from */
  int tag_bytes = sizeof(int);
  bsp_set_tagsize(&tag_bytes);
  bsp_push_reg(wholes, sizeof wholes);
  bsp_push_reg(parts, 4 * sizeof *parts);
  bsp_push_reg(rates, kSmall * sizeof *rates);
  bsp_push_reg(has ? edges : NULL, has ? kSmall * (int)sizeof *edges : 0);
  bsp_push_reg(grid, sizeof grid);
  bsp_push_reg(&own, sizeof own);
  bsp_push_reg(text, sizeof text);
  bsp_push_reg(&seen, sizeof seen);
  bsp_sync();
  for (int step = 0; step < kSteps; step++) {
    const struct whole whole = made_whole(step, s);
    struct part got[2] = {{0}};
    unsigned short edge[2] = {0};
    long others = 0;
    char word[4] = {0};
    own.count = step + s;
    for (int i = 0; i < kSmall; i++) edges[i] = (unsigned short)(step * 513 + i);
    bsp_put(next, &whole, wholes, s % 4 * (int)sizeof whole, sizeof whole);
    /* A part of a record, then some of its members. */
    bsp_put(other, &whole.parts[1], parts, s % 3 * (int)sizeof *parts, sizeof *parts);
    bsp_put(other, whole.parts[2].weight, parts, 3 * (int)sizeof *parts + (int)offsetof(struct part, weight),
            sizeof own.weight);
    bsp_hpput(next, &whole.rate, rates, step % kSmall * (int)sizeof whole.rate, sizeof whole.rate);
    bsp_put(next, &whole.parts[0].weight[1], grid, step % 6 * (int)sizeof(double), sizeof(double));
    bsp_put(next, "xyz", text, step % 16 * 4, 4);
    bsp_get(other, parts, sizeof *parts, got, sizeof got);
    bsp_get(1 % p, has ? edges : NULL, 2, edge, sizeof edge);
    bsp_get(other, &seen, 0, &others, sizeof others);
    bsp_get(next, text, 8, word, sizeof word);
    send_all(step, step % p);
    bsp_sync();
    mix_part(&got[0]);
    mix_part(&got[1]);
    mix(edge[0] + edge[1]);
    mix(others);
    for (int i = 0; i < 4; i++) mix(word[i]);
    struct part theirs;
    bsp_get(next, &own, 0, &theirs, sizeof theirs);
    read_all(step);
    bsp_sync();
    mix_part(&theirs);
    for (int i = 0; i < 4; i++) {
      mix(wholes[i].flag);
      for (int k = 0; k < 3; k++) mix_part(&wholes[i].parts[k]);
      mix((long)(wholes[i].sum % 65521));
      mix((long)(8 * wholes[i].rate));
      mix((long)(wholes[i].edge % 65521));
      mix_part(&parts[i]);
    }
    for (int i = 0; i < kSmall; i++) mix((long)(8 * rates[i]));
    for (int i = 0; i < 6; i++) mix((long)(4 * grid[i / 3][i % 3]));
    for (int i = 0; i < 64; i++) mix(text[i]);
    rest(step);
  }
  printf("process %d: %ld\n", s, seen);
  bsp_end();
  return 0;
}
