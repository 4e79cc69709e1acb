/*
 * Trivial parallelism: independent tasks, NO_ACTION only. Counts the primes below a bound, a range per task.
 * Usage: trivial [BOUND [RANGES]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <topc.h>

typedef struct {
  long begin, end;
} Range;

static long bound = 200000, ranges = 40, next = 0, primes = 0;
static long* counts;

static TOPC_BUF generate_task_input(void) {
  Range range;
  if (next == ranges) return NOTASK;
  range.begin = bound / ranges * next;
  range.end = next + 1 == ranges ? bound : bound / ranges * (next + 1);
  ++next;
  return TOPC_MSG(&range, sizeof(range));
}

static TOPC_BUF do_task(Range* range) {
  long found = 0;
  for (long n = range->begin < 2 ? 2 : range->begin; n < range->end; ++n) {
    long d = 2;
    while (d * d <= n && n % d != 0) ++d;
    found += d * d > n;
  }
  return TOPC_MSG(&found, sizeof(found));
}

static TOPC_ACTION check_task_result(Range* range, long* found) {
  const long which = range->begin / (bound / ranges);
  if (counts[which] != -1) {
    fprintf(stderr, "range %ld came twice\n", which);
    exit(3);
  }
  counts[which] = *found;
  primes += *found;
  return NO_ACTION;
}

int main(int argc, char** argv) {
  TOPC_init(&argc, &argv);
  if (argc > 1) bound = atol(argv[1]);
  if (argc > 2) ranges = atol(argv[2]);
  if (ranges < 1 || bound < ranges) {
    fprintf(stderr, "Usage: trivial [BOUND [RANGES]], with BOUND >= RANGES >= 1\n");
    return 2;
  }
  counts = malloc((size_t)ranges * sizeof(*counts));
  for (long i = 0; i < ranges; ++i) counts[i] = -1;
  TOPC_master_slave(generate_task_input, do_task, check_task_result, NULL);
  if (TOPC_is_master()) {
    for (long i = 0; i < ranges; ++i)
      if (counts[i] == -1) printf("range %ld is missing\n", i);
    printf("%ld primes below %ld\n", primes, bound);
  }
  free(counts);
  TOPC_finalize();
  return 0;
}
