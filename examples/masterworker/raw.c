/*
 * The raw interface: tasks arise in the master's nested loops, which are no iterator. Multiplies all pairs of large
 * blocks, 256 KiB a message, and adds checksums. Usage: raw [BLOCKS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <topc.h>

enum { kWords = 65536 };
static int blocks = 8;
static unsigned sum = 0;
static long results = 0;

static TOPC_BUF do_task(unsigned* in) {
  static unsigned out[kWords];
  for (int i = 0; i < kWords; ++i) out[i] = in[i] * in[kWords - 1 - i] + (unsigned)i;
  return TOPC_MSG_PTR(out, sizeof(out));
}

static TOPC_ACTION check_task_result(unsigned* in, unsigned* out) {
  unsigned one = 0;
  for (int i = 0; i < kWords; ++i) {
    if (out[i] != in[i] * in[kWords - 1 - i] + (unsigned)i) {
      fprintf(stderr, "a result is wrong\n");
      exit(3);
    }
    one = one * 31u + out[i];
  }
  sum += one;
  ++results;
  return NO_ACTION;
}

int main(int argc, char** argv) {
  static unsigned in[kWords];
  TOPC_init(&argc, &argv);
  if (argc > 1) blocks = atoi(argv[1]);
  TOPC_raw_begin_master_slave(do_task, check_task_result, NULL);
  for (int a = 0; a < blocks; ++a) {
    for (int b = a; b < blocks; ++b) {
      for (int i = 0; i < kWords; ++i) in[i] = (unsigned)(a * 1000003 + b * 7919 + i * 31);
      TOPC_raw_submit_task_input(TOPC_MSG(in, sizeof(in)));
    }
    while (a % 3 == 0 && TOPC_raw_wait_for_task_result()) {
    }
  }
  TOPC_raw_end_master_slave();
  if (TOPC_is_master()) printf("%ld pairs, checksum %08x\n", results, sum);
  TOPC_finalize();
  return 0;
}
