/* A member of a job with MEBIBYTES of memory, every page different. Orders are files in the working directory, which
 * it removes when they are done: `change` writes one page of a hundred again, others each time; `check` looks at
 * every word and prints so; `finish` does that and ends. With `halves` the second half of each page is of one word.
 * Usage: changes MEBIBYTES [halves] */
#include <stdint.h>
#include <sys/mman.h>

#include "member.h"

enum { kWords = 512, kShare = 100 };

static uint64_t* memory;
static uint64_t pages, rounds;
static int halves;

static uint64_t word_at(uint64_t page, uint64_t version, uint64_t word) {
  if (halves && word >= kWords / 2) return page / 16;
  uint64_t x = (page * kWords + word + 1) * 0x9e3779b97f4a7c15u + version * 0xff51afd7ed558ccdu;
  return x ^ (x >> 29);
}

static void write_page(uint64_t page, uint64_t version) {
  for (uint64_t word = 0; word < kWords; ++word) memory[page * kWords + word] = word_at(page, version, word);
}

/* The latest round that has written it; 0: none. */
static uint64_t version_of(uint64_t page) {
  const uint64_t own = page % kShare, latest = rounds - (rounds + kShare - own) % kShare;
  return rounds >= (rounds + kShare - own) % kShare && latest > 0 ? latest : 0;
}

static void check_all(void) {
  for (uint64_t page = 0; page < pages; ++page)
    for (uint64_t word = 0; word < kWords; ++word)
      if (memory[page * kWords + word] != word_at(page, version_of(page), word))
        leave(1, "word %lu of page %lu is wrong in round %lu", (unsigned long)word, (unsigned long)page,
              (unsigned long)rounds);
}

static int is_ordered(const char* file) { return access(file, F_OK) == 0; }
static void done(const char* file) {
  fflush(stdout);
  unlink(file);
}

int main(int argc, char** argv) {
  const uint64_t bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) << 20;
  halves = argc > 2 && strcmp(argv[2], "halves") == 0;
  pages = bytes / (kWords * sizeof(uint64_t));
  join_job();
  memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) leave(1, "mmap: %s", strerror(errno));
  for (uint64_t page = 0; page < pages; ++page) write_page(page, 0);
  printf("ready\n");
  fflush(stdout);
  for (;;) {
    const struct timespec pause = {0, 2000000};
    nanosleep(&pause, NULL);
    if (is_ordered("change")) {
      ++rounds;
      for (uint64_t page = rounds % kShare; page < pages; page += kShare) write_page(page, rounds);
      done("change");
    }
    if (is_ordered("check")) {
      check_all();
      printf("round %lu is right\n", (unsigned long)rounds);
      done("check");
    }
    if (is_ordered("finish")) break;
  }
  check_all();
  leave(0, "all of %lu pages are right in round %lu", (unsigned long)pages, (unsigned long)rounds);
}
