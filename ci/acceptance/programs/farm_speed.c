/* A task farm of null tasks with 64 bytes each way. Prints the microseconds of a task, from the 1000th result to the
 * last. With --TOPC-num-slaves=1 and no tasks ahead that is a round trip. Usage: farm_speed TASKS */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <topc.h>

enum { kWarm = 1000 };
static long tasks, made, results;
static struct timespec begun;
static char message[64];

static TOPC_BUF generate(void) { return made++ < tasks + kWarm ? TOPC_MSG(message, sizeof(message)) : NOTASK; }
static TOPC_BUF work(void* input) { return TOPC_MSG(input, sizeof(message)); }
static TOPC_ACTION check(void* input, void* output) {
  (void)input;
  (void)output;
  if (++results == kWarm) clock_gettime(CLOCK_MONOTONIC, &begun);
  return NO_ACTION;
}

int main(int argc, char** argv) {
  struct timespec ended;
  TOPC_init(&argc, &argv);
  tasks = argc > 1 ? atol(argv[1]) : 100000;
  TOPC_master_slave(generate, work, check, NULL);
  clock_gettime(CLOCK_MONOTONIC, &ended);
  if (TOPC_is_master())
    printf("%.3f us a task\n",
           ((double)(ended.tv_sec - begun.tv_sec) * 1e9 + (double)(ended.tv_nsec - begun.tv_nsec)) / 1e3 /
               (double)tasks);
  TOPC_finalize();
  return 0;
}
