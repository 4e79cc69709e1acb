/*
 * Dataflow: a worker keeps private data of its task, and REDO computes only what an UPDATE has changed. Prefix sums
 * of blocks: the sum inside a block needs nothing else; the offset of block b needs the totals of all blocks before.
 * A first round computes the expensive part and keeps it; REDO adds the offset to it. Usage: dataflow [BLOCKS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <topc.h>

enum { kPerBlock = 1000 };
static int blocks = 60;
static int next = 0, known = 0; /* known: shared; blocks below have their total */
static double* total;           /* shared */
static int kept_block = -1;     /* private to a worker */
static double kept_inside;
static unsigned long reused = 0;

typedef struct {
  int block, known, reused;
  double inside, end;
} Sum;

static TOPC_BUF generate_task_input(void) {
  int block = next;
  if (next == blocks) return NOTASK;
  ++next;
  return TOPC_MSG(&block, sizeof(block));
}

static double inside(int block) {
  double sum = 0;
  for (int i = 0; i < kPerBlock; ++i) sum += (double)((block * 7919 + i * 104729) % 1000);
  return sum;
}

static TOPC_BUF do_task(int* block) {
  Sum sum;
  memset(&sum, 0, sizeof(sum));
  sum.block = *block;
  sum.reused = TOPC_is_REDO() && kept_block == *block;
  if (TOPC_is_REDO() && kept_block != *block) {
    fprintf(stderr, "a REDO of block %d finds data of block %d\n", *block, kept_block);
    exit(4);
  }
  if (!sum.reused) {
    kept_inside = inside(*block);
    kept_block = *block;
  }
  sum.inside = sum.end = kept_inside;
  sum.known = known;
  for (int b = 0; b < *block && b < known; ++b) sum.end += total[b];
  return TOPC_MSG(&sum, sizeof(sum));
}

static TOPC_ACTION check_task_result(int* block, Sum* sum) {
  reused += (unsigned long)sum->reused;
  return *block == known && sum->known >= *block ? UPDATE : REDO;
}

static void update_shared_data(int* block, Sum* sum) {
  total[*block] = sum->inside;
  ++known;
}

int main(int argc, char** argv) {
  TOPC_init(&argc, &argv);
  if (argc > 1) blocks = atoi(argv[1]);
  total = calloc((size_t)blocks, sizeof(*total));
  TOPC_master_slave(generate_task_input, do_task, check_task_result, update_shared_data);
  if (TOPC_is_master()) {
    double end = 0;
    for (int b = 0; b < blocks; ++b) end += total[b];
    printf("%d blocks, the last prefix sum is %.0f\n", blocks, end);
    fprintf(stderr, "%lu rounds used the worker's private data\n", reused);
  }
  free(total);
  TOPC_finalize();
  return 0;
}
