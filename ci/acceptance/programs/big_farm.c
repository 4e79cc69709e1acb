/* A task farm whose master has MEBIBYTES of memory, every page different. Its tasks take some milliseconds; no more
 * come once a file `finish` appears. Prints "ready" at its first result. Usage: big_farm MEBIBYTES */
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
static TOPC_BUF work(int* task) {
  struct timespec pause = {0, 5000000};
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
  TOPC_master_slave(generate, work, check, NULL);
  TOPC_finalize();
  for (uint64_t i = 0; i < words; ++i)
    if (memory[i] != (i + 1) * 0x9e3779b97f4a7c15u) return 1;
  return 0;
}
