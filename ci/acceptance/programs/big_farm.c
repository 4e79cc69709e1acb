/* A task farm whose master has MEBIBYTES of memory, every page different. Its tasks take some milliseconds; no more
 * come once a file `finish` appears. Prints "ready" at its first result, or at once if it has no workers.
 * CLOCKS: a directory, where each worker keeps a clock, a file named by its process. A thread of it appends the time
 * in ns of CLOCK_MONOTONIC every 10 ms, whether there is a task or not. Usage: big_farm MEBIBYTES [CLOCKS] */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <topc.h>
#include <unistd.h>

static uint64_t* memory;
static uint64_t words;
static long results;

static TOPC_BUF generate(void) {
  static int task;
  ++task;
  return access("finish", F_OK) == 0 ? NOTASK : TOPC_MSG(&task, sizeof(task));
}
static const char* clocks;
static void* keep_clock(void* file) {
  const struct timespec pause = {0, 10000000};
  for (;;) {
    char line[40];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int length = snprintf(line, sizeof(line), "%lld%09ld\n", (long long)now.tv_sec, now.tv_nsec);
    if (write((int)(intptr_t)file, line, (size_t)length) != length) abort();
    nanosleep(&pause, NULL);
  }
}
static void start_clock(void) {
  static pthread_t thread;
  char path[4096];
  snprintf(path, sizeof(path), "%s/%d", clocks, (int)getpid());
  const intptr_t file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0 || pthread_create(&thread, NULL, keep_clock, (void*)file) != 0) abort();
  clocks = NULL;
}
static TOPC_BUF work(int* task) {
  struct timespec pause = {0, 5000000};
  if (clocks != NULL) start_clock();
  nanosleep(&pause, NULL);
  return TOPC_MSG(task, sizeof(*task));
}
static TOPC_ACTION check(int* task, int* result) {
  if (*task != *result) exit(1);
  if (results++ == 0) {
    printf("ready\n");
    fflush(stdout);
  }
  return NO_ACTION;
}

int main(int argc, char** argv) {
  words = (argc > 1 ? strtoull(argv[1], NULL, 10) : 64) << 17;
  memory = malloc(words * sizeof(uint64_t));
  if (memory == NULL) return 1;
  for (uint64_t i = 0; i < words; ++i) memory[i] = (i + 1) * 0x9e3779b97f4a7c15u;
  TOPC_init(&argc, &argv);
  clocks = argc > 2 ? argv[2] : NULL;
  if (TOPC_OPT_num_slaves == 0) {
    printf("ready\n");
    fflush(stdout);
  }
  TOPC_master_slave(generate, work, check, NULL);
  TOPC_finalize();
  for (uint64_t i = 0; i < words; ++i)
    if (memory[i] != (i + 1) * 0x9e3779b97f4a7c15u) return 1;
  return 0;
}
