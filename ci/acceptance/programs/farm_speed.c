/* A task farm of null tasks with 64 bytes each way. Prints the microseconds of a task, from the 1000th result to the
 * last: the mean, and the median of the means of ten in a row. With --TOPC-num-slaves=1 and no tasks ahead that is a
 * round trip. Usage: farm_speed TASKS, a multiple of ten */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <topc.h>

enum { kWarm = 1000, kEach = 10 };
static long tasks, made, results;
static double *times, begun, last;
static char message[64];

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}
static TOPC_BUF generate(void) { return made++ < tasks + kWarm ? TOPC_MSG(message, sizeof(message)) : NOTASK; }
static TOPC_BUF work(void* input) { return TOPC_MSG(input, sizeof(message)); }
static TOPC_ACTION check(void* input, void* output) {
  (void)input;
  (void)output;
  // A look at the clock takes 60 ns, those of perftest 10: only where it counts.
  if (++results < kWarm || results % kEach != 0) return NO_ACTION;
  if (results > kWarm && results < kWarm + tasks && TOPC_OPT_aggregated_tasks > 1) return NO_ACTION;
  const double now = now_us();
  if (results == kWarm)
    begun = now;
  else
    times[(results - kWarm) / kEach - 1] = (now - last) / kEach;
  last = now;
  return NO_ACTION;
}
static int longer(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  TOPC_init(&argc, &argv);
  tasks = argc > 1 ? atol(argv[1]) : 100000;
  times = calloc((size_t)tasks, sizeof(*times));
  if (tasks < kEach || tasks % kEach != 0 || times == NULL) return 1;
  TOPC_master_slave(generate, work, check, NULL);
  if (TOPC_is_master()) {
    qsort(times, (size_t)(tasks / kEach), sizeof(*times), longer);
    printf("%.3f us a task", (last - begun) / (double)tasks);
    if (TOPC_OPT_aggregated_tasks > 1)
      printf("\n");
    else
      printf(", median %.3f us\n", times[tasks / kEach / 2]);
  }
  TOPC_finalize();
  return 0;
}
