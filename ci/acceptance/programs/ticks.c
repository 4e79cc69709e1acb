/* A member of a job with MEBIBYTES of memory in pages of KIND: 4k, 2m, or registered, which are of 4k, and registered
 * with the first device. It ticks every 100 us and takes orders from files in the working directory, which it removes
 * when they are done: `clone` prints how long bare clones of it take, `copy` how long memcpy of its memory does,
 * `mark` begins to look for the longest gap between two ticks, `tell` prints that, `rewrite` writes all memory again,
 * `finish` checks it and ends. Usage: ticks MEBIBYTES KIND */
#include <infiniband/verbs.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "member.h"

static uint64_t* memory;
static uint64_t words;

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* One word of each page. */
static void write_all(uint64_t generation) {
  for (uint64_t i = 0; i < words; i += 512) memory[i] = i ^ generation << 48;
}

static int is_ordered(const char* file) { return access(file, F_OK) == 0; }
static void done(const char* file) {
  fflush(stdout);
  unlink(file);
}

static void time_clones(void) {
  printf("clones");
  for (int i = 0; i < 5; ++i) {
    const int64_t begin = now_ns();
    const long pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0) syscall(SYS_exit_group, 0);
    printf(" %ld", (long)(now_ns() - begin));
    if (pid > 0) waitpid((pid_t)pid, NULL, 0);
  }
  printf("\n");
}

/* To memory that is there. */
static void time_copies(uint64_t bytes) {
  void* to = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (to == MAP_FAILED) leave(1, "mmap: %s", strerror(errno));
  printf("copies");
  for (int i = 0; i < 5; ++i) {
    const int64_t begin = now_ns();
    memcpy(to, memory, bytes);
    printf(" %ld", (long)(now_ns() - begin));
  }
  printf("\n");
  munmap(to, bytes);
}

static void register_all(uint64_t bytes) {
  struct ibv_device** devices = ibv_get_device_list(NULL);
  struct ibv_context* context = devices != NULL && devices[0] != NULL ? ibv_open_device(devices[0]) : NULL;
  struct ibv_pd* pd = context != NULL ? ibv_alloc_pd(context) : NULL;
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  if (pd == NULL || ibv_reg_mr(pd, memory, bytes, access) == NULL) leave(1, "cannot register the memory");
}

int main(int argc, char** argv) {
  uint64_t bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) << 20, generation = 1;
  const int large = argc > 2 && strcmp(argv[2], "2m") == 0;
  words = bytes / sizeof(uint64_t);
  join_job();
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) leave(1, "mmap: %s", strerror(errno));
  madvise(memory, bytes, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  write_all(generation);
  if (argc > 2 && strcmp(argv[2], "registered") == 0) register_all(bytes);
  printf("ready\n");
  fflush(stdout);
  int64_t last = now_ns(), longest = 0, looked = last;
  for (;;) {
    const struct timespec tick = {0, 100000};
    nanosleep(&tick, NULL);
    const int64_t now = now_ns();
    if (now - last > longest) longest = now - last;
    last = now;
    if (now - looked < 5000000) continue; /* orders, now and then */
    looked = now;
    if (is_ordered("clone")) time_clones(), done("clone");
    if (is_ordered("copy")) time_copies(bytes), done("copy");
    if (is_ordered("mark")) longest = 0, done("mark");
    if (is_ordered("tell")) printf("gap %ld\n", (long)longest), done("tell");
    if (is_ordered("rewrite"))
      write_all(++generation), printf("generation %lu\n", (unsigned long)generation), done("rewrite");
    if (is_ordered("finish")) break;
    last = now_ns();
  }
  for (uint64_t i = 0; i < words; i += 512)
    if (memory[i] != (i ^ generation << 48)) leave(1, "word %lu is wrong", (unsigned long)i);
  leave(0, "all of %lu words are right", (unsigned long)words);
}
