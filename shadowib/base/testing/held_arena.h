/* The lock of malloc's main arena, held by a test. glibc offers nothing for that; but the first free block of a list
 * points to the list's head, which is in the arena, whose first word the lock is. C and C++. */
#pragma once

#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kHeldArenaList = 96, kHeldArenaBlock = 50000 }; /* glibc 2.26 on, 64 bit: malloc_state.top */

/* Called by the main thread while it is the only one that allocates. */
static inline unsigned* lock_of_main_arena(void) {
  char** volatile block = (char**)malloc(kHeldArenaBlock); /* volatile: what a free block says is the point */
  void* behind = malloc(kHeldArenaBlock);                  /* keeps it from joining the top */
  unsigned* lock;
  free(block);
  lock = (unsigned*)(*block - kHeldArenaList);
  if (*lock != 0) {
    fprintf(stderr, "malloc's arena is not where it was in glibc 2.36\n");
    abort();
  }
  free(behind);
  return lock;
}

static inline void hold_arena(unsigned* lock) {
  while (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE) != 0) usleep(100);
}

static inline void release_arena(unsigned* lock) {
  if (__atomic_exchange_n(lock, 0, __ATOMIC_RELEASE) > 1)
    syscall(SYS_futex, lock, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}
