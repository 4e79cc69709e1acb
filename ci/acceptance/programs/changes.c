/* A member of a job with MEBIBYTES of memory, every page different. Orders are files in the working directory, which
 * it removes when they are done: `change` writes one page of a hundred again, others each time; `check` looks at
 * every word and prints so; `finish` does that and ends. With `halves` the second half of each page is of one word.
 * With `written` it changes nothing: a peer does, that has the same memory, `writes`, and is told to `change`. They
 * find each other by files in DIR. Usage: changes MEBIBYTES [halves | written DIR | writes DIR] */
#include <stdint.h>
#include <sys/mman.h>

#include "member.h"
#include "peer.h"

enum { kWords = 512, kShare = 100, kPageBytes = 4096 };

static uint64_t* memory;
static uint64_t pages;
static volatile uint64_t* rounds; /* behind the pages, so that a peer may write it, too */
static int halves;
static struct peer peer; /* of one that writes, and of one that is written */

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
  const uint64_t own = page % kShare, latest = *rounds - (*rounds + kShare - own) % kShare;
  return *rounds >= (*rounds + kShare - own) % kShare && latest > 0 ? latest : 0;
}

static void check_all(void) {
  for (uint64_t page = 0; page < pages; ++page)
    for (uint64_t word = 0; word < kWords; ++word)
      if (memory[page * kWords + word] != word_at(page, version_of(page), word))
        leave(1, "word %lu of page %lu is wrong in round %lu", (unsigned long)word, (unsigned long)page,
              (unsigned long)*rounds);
}

static void change(int of_peer) {
  ++*rounds;
  for (uint64_t page = *rounds % kShare; page < pages; page += kShare) {
    write_page(page, *rounds);
    if (of_peer) write_to_peer(&peer, page * kPageBytes, kPageBytes);
  }
  if (of_peer) write_to_peer(&peer, pages * kPageBytes, sizeof(*rounds));
}

static int is_ordered(const char* file) { return access(file, F_OK) == 0; }
static void done(const char* file) {
  fflush(stdout);
  unlink(file);
}

int main(int argc, char** argv) {
  const uint64_t bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) << 20;
  const char* kind = argc > 2 ? argv[2] : "";
  const int writes = strcmp(kind, "writes") == 0, written = strcmp(kind, "written") == 0;
  halves = strcmp(kind, "halves") == 0;
  pages = bytes / kPageBytes;
  join_job();
  memory = mmap(NULL, bytes + kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) leave(1, "mmap: %s", strerror(errno));
  rounds = memory + pages * kWords;
  for (uint64_t page = 0; page < pages; ++page) write_page(page, 0);
  printf("ready\n");
  fflush(stdout);
  if (writes || written) {
    meet_peer(&peer, memory, bytes + kPageBytes, argc > 3 ? argv[3] : ".", kind, writes ? "written" : "writes");
    printf("connected\n");
    fflush(stdout);
  }
  for (;;) {
    const struct timespec pause = {0, 2000000};
    nanosleep(&pause, NULL);
    if (is_ordered("change")) {
      change(writes);
      done("change");
    }
    if (is_ordered("check")) {
      check_all();
      printf("round %lu is right\n", (unsigned long)*rounds);
      done("check");
    }
    if (is_ordered("finish")) break;
  }
  check_all();
  leave(0, "all of %lu pages are right in round %lu", (unsigned long)pages, (unsigned long)*rounds);
}
