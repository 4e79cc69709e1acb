/* A member of a job with MEBIBYTES of memory, every page different, or all written with zeros. Prints "ready", lives
 * until a file `finish` appears, then checks every word and exits with 0 if all is well.
 * Usage: big_process MEBIBYTES [zeros] */
#include <stdint.h>
#include <sys/mman.h>

#include "member.h"

static int zeros;

static uint64_t word_at(uint64_t index) {
  if (zeros) return 0;
  uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u;
  return x ^ (x >> 29);
}

int main(int argc, char** argv) {
  uint64_t bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 64) << 20, words = bytes / sizeof(uint64_t);
  zeros = argc > 2 && strcmp(argv[2], "zeros") == 0;
  join_job();
  uint64_t* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) leave(1, "mmap: %s", strerror(errno));
  for (uint64_t i = 0; i < words; ++i) memory[i] = word_at(i);
  printf("ready\n");
  fflush(stdout);
  live_until("finish");
  for (uint64_t i = 0; i < words; ++i)
    if (memory[i] != word_at(i)) leave(1, "word %lu of %lu is wrong", (unsigned long)i, (unsigned long)words);
  leave(0, "all of %lu words are right", (unsigned long)words);
}
