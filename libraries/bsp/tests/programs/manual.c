/* A case for each sentence of the manual. Each checks itself; bsp_abort() names what is wrong.
 *
 *   bsprun -n P manual       prints "ok CASE" for each, by process 0
 * Compiled for BSPlib, and with -DBSP_MULTICORE. */
#include <bsp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) bsp_abort("%s, line %d: %s is false", __func__, __LINE__, #condition); \
  } while (0)

static int p, s;

static void puts_are_copied_when_called(void) {
  int* all = calloc(p, sizeof(int));
  bsp_push_reg(all, p * sizeof(int));
  bsp_sync();
  for (int i = 0; i < p; ++i) {
    int value = 100 * s + i;
    bsp_put(i, &value, all, s * sizeof(int), sizeof(int));
    value = -1;
    CHECK(all[s] == 0); /* nothing happens before the sync, in the own memory neither */
  }
  bsp_sync();
  for (int i = 0; i < p; ++i) CHECK(all[i] == 100 * i + s);
  bsp_pop_reg(all);
  bsp_sync();
  free(all);
}

static void the_last_put_wins(void) {
  int x = -1;
  bsp_push_reg(&x, sizeof(x));
  bsp_sync();
  for (int turn = 0; turn < 3; ++turn) {
    int value = 10 * s + turn;
    bsp_put(0, &value, &x, 0, sizeof(x));
  }
  bsp_sync();
  CHECK(s != 0 || x == 10 * (p - 1) + 2);
  bsp_pop_reg(&x);
  bsp_sync();
}

static void gets_come_before_puts(void) {
  int x = s, old = -1, kept = -1, value = 1000 + s;
  const int next = (s + 1) % p;
  bsp_push_reg(&x, sizeof(x));
  bsp_sync();
  bsp_put(next, &value, &x, 0, sizeof(x));
  bsp_get(next, &x, 0, &old, sizeof(x));
  bsp_get(s, &x, 0, &kept, sizeof(x));
  CHECK(old == -1);
  bsp_sync();
  CHECK(old == next && kept == s && x == 1000 + (s + p - 1) % p);
  bsp_pop_reg(&x);
  bsp_sync();
}

/* A get's destination is another get's source. */
static void gets_read_memory_at_rest(void) {
  int x = s;
  bsp_push_reg(&x, sizeof(x));
  bsp_sync();
  for (int turn = 0; turn < p; ++turn) {
    bsp_get((s + 1) % p, &x, 0, &x, sizeof(x));
    bsp_sync();
    CHECK(x == (s + turn + 1) % p);
  }
  bsp_pop_reg(&x);
  bsp_sync();
}

static void large_transfers(void) {
  const size_t words = 200000;
  uint32_t* target = calloc(words, 4);
  uint32_t* source = malloc(4 * words);
  const int next = (s + 1) % p, last = (s + p - 1) % p;
  bsp_push_reg(target, 4 * words);
  bsp_push_reg(source, 4 * words);
  bsp_sync();
  for (size_t bytes = 4; bytes <= 4 * words; bytes = bytes < 8000 ? bytes * 8 : bytes * 3) {
    for (size_t i = 0; i < words; ++i) source[i] = (uint32_t)(i * 7 + s + bytes);
    memset(target, 0, 4 * words);
    bsp_sync();
    bsp_put(next, source, target, 4 * words - bytes / 4 * 4, bytes / 4 * 4);
    bsp_sync();
    for (size_t i = 0; i < bytes / 4; ++i) CHECK(target[words - bytes / 4 + i] == (uint32_t)(i * 7 + last + bytes));
    bsp_sync(); /* from here on others may write to the target */
    bsp_hpput(next, source, target, 0, bytes / 4 * 4);
    bsp_sync();
    for (size_t i = 0; i < bytes / 4; ++i) CHECK(target[i] == (uint32_t)(i * 7 + last + bytes));
    memset(target, 0, 4 * words);
    bsp_hpget(next, source, 0, target, bytes / 4 * 4);
    bsp_sync();
    for (size_t i = 0; i < bytes / 4; ++i) CHECK(target[i] == (uint32_t)(i * 7 + next + bytes));
  }
  bsp_pop_reg(source);
  bsp_pop_reg(target);
  bsp_sync();
  free(target);
  free(source);
}

static void zero_bytes_are_allowed(void) {
  int x = 5;
  bsp_push_reg(&x, sizeof(x));
  bsp_push_reg(NULL, 0);
  bsp_sync();
  bsp_put((s + 1) % p, &x, &x, sizeof(x), 0);
  bsp_hpput((s + 1) % p, &x, &x, 0, 0);
  bsp_get((s + 1) % p, &x, 0, &x, 0);
  bsp_put((s + 1) % p, NULL, NULL, 0, 0);
  bsp_send((s + 1) % p, NULL, NULL, 0);
  bsp_sync();
  BSP_COUNT messages;
  BSP_SIZE bytes;
  bsp_qsize(&messages, &bytes);
  CHECK(x == 5 && messages == 1 && bytes == 0);
  bsp_pop_reg(NULL);
  bsp_pop_reg(&x);
  bsp_sync();
}

static void messages_have_tags(void) {
  BSP_SIZE tag_bytes = sizeof(int);
  bsp_set_tagsize(&tag_bytes);
  CHECK(tag_bytes == 0);
  bsp_sync();
  for (int i = 0; i < p; ++i) {
    char text[32];
    int tag = 10 * s + i;
    snprintf(text, sizeof(text), "from %d to %d", s, i);
    bsp_send(i, &tag, text, strlen(text) + 1);
    memset(text, 0, sizeof(text));
    tag = -1;
  }
  bsp_sync();
  BSP_COUNT messages;
  BSP_SIZE bytes, status;
  bsp_qsize(&messages, &bytes);
  CHECK((int)messages == p && bytes >= (BSP_SIZE)(12 * p));
  int seen = 0, tag;
  for (int i = 0; i < p; ++i) {
    char text[32], expected[32];
    bsp_get_tag(&status, &tag);
    CHECK(tag % 10 == s);
    snprintf(expected, sizeof(expected), "from %d to %d", tag / 10, s);
    CHECK(status == (BSP_SIZE)(strlen(expected) + 1));
    bsp_move(text, sizeof(text));
    CHECK(strcmp(text, expected) == 0);
    seen |= 1 << tag / 10;
  }
  CHECK(seen == (1 << p) - 1);
  bsp_get_tag(&status, &tag);
  CHECK(status == (BSP_SIZE)-1);
  tag_bytes = 0;
  bsp_set_tagsize(&tag_bytes);
  CHECK(tag_bytes == sizeof(int));
  bsp_sync();
}

static void unread_messages_are_gone(void) {
  BSP_COUNT messages;
  BSP_SIZE bytes;
  bsp_send(0, NULL, "x", 1);
  bsp_sync();
  bsp_qsize(&messages, &bytes);
  CHECK((int)messages == (s == 0 ? p : 0));
  bsp_sync();
  bsp_qsize(&messages, &bytes);
  CHECK(messages == 0 && bytes == 0);
}

/* Sent with the old size; the new one counts from the next superstep. */
static void a_new_tag_size_counts_later(void) {
  BSP_SIZE size = 3;
  bsp_set_tagsize(&size);
  bsp_send((s + 1) % p, NULL, "old", 3);
  bsp_sync();
  char tag[4] = "---";
  BSP_SIZE status;
  bsp_get_tag(&status, tag);
  CHECK(status == 3 && strcmp(tag, "---") == 0);
  bsp_send((s + 1) % p, "new", "payload", 7);
  size = 0;
  bsp_set_tagsize(&size);
  CHECK(size == 3);
  bsp_sync();
  void *tag_at, *payload_at;
  CHECK(bsp_hpmove(&tag_at, &payload_at) == 7);
  CHECK(memcmp(tag_at, "new", 3) == 0 && memcmp(payload_at, "payload", 7) == 0);
  CHECK(bsp_hpmove(&tag_at, &payload_at) == (BSP_SIZE)-1);
  bsp_sync();
}

static void a_move_cuts_to_its_capacity(void) {
  char text[4] = "zzz";
  bsp_send((s + 1) % p, NULL, "abcdef", 6);
  bsp_sync();
  bsp_move(text, 2);
  CHECK(memcmp(text, "abz", 3) == 0);
  BSP_COUNT messages;
  BSP_SIZE bytes;
  bsp_qsize(&messages, &bytes);
  CHECK(messages == 0);
}

static void many_large_messages(void) {
  enum { kBytes = 5000, kCount = 40 };
  static unsigned char text[kBytes];
  for (int n = 0; n < kCount; ++n)
    for (int i = 0; i < p; ++i) {
      memset(text, (s + n) & 0xff, kBytes);
      bsp_send(i, NULL, text, kBytes - n);
    }
  bsp_sync();
  BSP_COUNT messages;
  BSP_SIZE bytes;
  bsp_qsize(&messages, &bytes);
  CHECK((int)messages == kCount * p);
  int from = 0;
  for (int n = 0; n < kCount * p; ++n) { /* by process, then in the order of the calls */
    void *tag, *payload;
    const int turn = n % kCount;
    CHECK(bsp_hpmove(&tag, &payload) == (BSP_SIZE)(kBytes - turn));
    CHECK(((unsigned char*)payload)[kBytes - turn - 1] == ((from + turn) & 0xff));
    if (turn == kCount - 1) ++from;
  }
}

static void the_newest_registration_counts(void) {
  int x[4] = {-1, -1, -1, -1}, value = 7;
  bsp_push_reg(x, sizeof(int));
  bsp_sync();
  bsp_push_reg(x, sizeof(x));
  bsp_sync();
  bsp_put((s + 1) % p, &value, x, 3 * sizeof(int), sizeof(int));
  bsp_sync();
  CHECK(x[3] == 7);
  bsp_pop_reg(x);
  bsp_sync();
  value = 8;
  bsp_put((s + 1) % p, &value, x, 0, sizeof(int));
  bsp_sync();
  CHECK(x[0] == 8 && x[3] == 7);
  bsp_pop_reg(x);
  bsp_sync();
}

/* A put by an own address lands at the other's. */
static void addresses_and_sizes_may_differ(void) {
  int* memory = calloc(16 + 16 * s, sizeof(int));
  bsp_push_reg(memory + s, (4 + s) * sizeof(int));
  bsp_sync();
  const int to = (s + 1) % p, from = (s + p - 1) % p, value = 50 + s;
  bsp_put(to, &value, memory + s, (3 + to) * sizeof(int), sizeof(int));
  bsp_sync();
  CHECK(memory[s + 3 + s] == 50 + from);
  bsp_pop_reg(memory + s);
  bsp_sync();
  free(memory);
}

static void memory_that_may_only_be_read(void) {
  static const int kTable[3] = {11, 22, 33};
  int value = 0;
  bsp_push_reg(kTable, sizeof(kTable));
  bsp_sync();
  bsp_get((s + 1) % p, kTable, sizeof(int), &value, sizeof(int));
  bsp_sync();
  CHECK(value == 22);
  bsp_pop_reg(kTable);
  bsp_sync();
}

#ifdef BSP_MULTICORE
static void direct_gets_wait(void) {
  int x = 300 + s, value = -1;
  bsp_push_reg(&x, sizeof(x));
  bsp_sync();
  bsp_direct_get((s + 1) % p, &x, 0, &value, sizeof(value));
  CHECK(value == 300 + (s + 1) % p);
  bsp_hpsend((s + 1) % p, NULL, &x, sizeof(x));
  bsp_sync();
  bsp_move(&value, sizeof(value));
  CHECK(value == 300 + (s + p - 1) % p);
  bsp_pop_reg(&x);
  bsp_sync();
}
#endif

static void time_goes_on(void) {
  const double first = bsp_time();
  bsp_sync();
  CHECK(first >= 0 && bsp_time() >= first);
}

static void spmd(void) {
  bsp_begin(bsp_nprocs());
  p = (int)bsp_nprocs();
  s = (int)bsp_pid();
#define RUN(name)                         \
  do {                                    \
    name();                               \
    if (s == 0) printf("ok %s\n", #name); \
  } while (0)
  RUN(puts_are_copied_when_called);
  RUN(the_last_put_wins);
  RUN(gets_come_before_puts);
  RUN(gets_read_memory_at_rest);
  RUN(large_transfers);
  RUN(zero_bytes_are_allowed);
  RUN(messages_have_tags);
  RUN(unread_messages_are_gone);
  RUN(a_new_tag_size_counts_later);
  RUN(a_move_cuts_to_its_capacity);
  RUN(many_large_messages);
  RUN(the_newest_registration_counts);
  RUN(addresses_and_sizes_may_differ);
  RUN(memory_that_may_only_be_read);
#ifdef BSP_MULTICORE
  RUN(direct_gets_wait);
#endif
  RUN(time_goes_on);
  bsp_end();
}

int main(int argc, char** argv) {
  bsp_init(spmd, argc, argv);
  spmd();
  return 0;
}
