/* A member of a job with a device open and COUNT things of one kind: threads, descriptors, mappings, regions. Prints
 * "ready", lives until a file `finish` appears, then checks every thing and exits with 0 if all is well.
 *
 * many KIND COUNT
 * many bare KIND COUNT: no job; prints the microseconds of processor time that the kernel's own calls take for each.
 */
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/kcmp.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "member.h"

enum { PAGE = 4096 };

static long g_count;
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t g_changed = PTHREAD_COND_INITIALIZER;
static long g_sleeping;
static int g_end;
static pthread_t* g_threads;
static int* g_descriptors;
static char* g_memory;
static struct ibv_mr** g_regions;

static void* sleeper(void* number) {
  pthread_mutex_lock(&g_lock);
  ++g_sleeping;
  pthread_cond_broadcast(&g_changed);
  while (!g_end) pthread_cond_wait(&g_changed, &g_lock);
  pthread_mutex_unlock(&g_lock);
  return number;
}

static void make_threads(void) {
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 64 << 10);
  g_threads = calloc((size_t)g_count, sizeof(*g_threads));
  for (long i = 0; i < g_count; ++i)
    if (pthread_create(&g_threads[i], &small, sleeper, (void*)i) != 0) leave(EXIT_SKIPPED, "no %ld threads", g_count);
  pthread_mutex_lock(&g_lock);
  while (g_sleeping < g_count) pthread_cond_wait(&g_changed, &g_lock);
  pthread_mutex_unlock(&g_lock);
}

static void end_threads(void) {
  pthread_mutex_lock(&g_lock);
  g_end = 1;
  pthread_cond_broadcast(&g_changed);
  pthread_mutex_unlock(&g_lock);
  for (long i = 0; i < g_count; ++i) {
    void* number = NULL;
    if (pthread_join(g_threads[i], &number) != 0 || (long)number != i) leave(1, "thread %ld is another", i);
  }
}

/* Half of them devices, which are alike; half of them counters, each with its number. */
static void make_descriptors(void) {
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  g_descriptors = calloc((size_t)g_count, sizeof(*g_descriptors));
  for (long i = 0; i < g_count; ++i) {
    g_descriptors[i] = i % 2 == 0 ? open("/dev/null", O_RDWR) : eventfd((unsigned)i, 0);
    if (g_descriptors[i] < 0) leave(EXIT_SKIPPED, "no %ld descriptors: %s", g_count, strerror(errno));
  }
}

static void check_descriptors(void) {
  for (long i = 1; i < g_count; i += 2) {
    uint64_t count = 0;
    if (read(g_descriptors[i], &count, sizeof(count)) != sizeof(count) || count != (uint64_t)i)
      leave(1, "counter %ld has %lu", i, (unsigned long)count);
  }
}

/* Of a page each: every second one may not be written to. */
static void make_mappings(void) {
  g_memory = mmap(NULL, (size_t)g_count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (g_memory == MAP_FAILED) leave(EXIT_SKIPPED, "no memory for %ld mappings", g_count);
  for (long i = 0; i < g_count; ++i) g_memory[i * PAGE] = (char)(1 + i % 100);
  for (long i = 0; i < g_count; i += 2)
    if (mprotect(g_memory + i * PAGE, PAGE, PROT_READ) != 0)
      leave(EXIT_SKIPPED, "no %ld mappings: raise vm.max_map_count", g_count);
}

static void check_mappings(void) {
  for (long i = 0; i < g_count; ++i)
    if (g_memory[i * PAGE] != (char)(1 + i % 100)) leave(1, "page %ld has other content", i);
}

static struct ibv_pd* open_device(void) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  struct ibv_context* context = list != NULL && list[0] != NULL ? ibv_open_device(list[0]) : NULL;
  if (context == NULL) leave(1, "no device");
  ibv_free_device_list(list);
  return ibv_alloc_pd(context);
}

static void make_regions(struct ibv_pd* pd) {
  g_memory = mmap(NULL, (size_t)g_count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  g_regions = calloc((size_t)g_count, sizeof(*g_regions));
  for (long i = 0; i < g_count; ++i)
    if ((g_regions[i] = ibv_reg_mr(pd, g_memory + i * PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE)) == NULL)
      leave(1, "region %ld: %s", i, strerror(errno));
}

static void check_regions(void) {
  for (long i = 0; i < g_count; ++i)
    if (ibv_dereg_mr(g_regions[i]) != 0) leave(1, "region %ld cannot be deregistered", i);
}

/* --- the kernel's own calls --- */

static double processor_us(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

/* A thread made, seen asleep, woken and ended. */
static void bare_threads(void) {
  make_threads();
  end_threads();
}

/* What the checkpoint has to ask of each descriptor: listed twice, text, kind, owner, and whether it shares. */
static void bare_descriptors(void) {
  char path[32], text[PAGE];
  const long self = getpid();
  for (int pass = 0; pass < 2; ++pass) {
    const int list = open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
    while (syscall(SYS_getdents64, list, text, sizeof(text)) > 0) {
    }
    close(list);
  }
  const int infos = open("/proc/self/fdinfo", O_PATH | O_DIRECTORY);
  for (long i = 0; i < g_count; ++i) {
    struct stat st;
    struct f_owner_ex owner;
    snprintf(path, sizeof(path), "%d", g_descriptors[i]);
    const int info = openat(infos, path, O_RDONLY);
    if (read(info, text, sizeof(text)) <= 0) leave(1, "no text of descriptor %ld", i);
    close(info);
    fstat(g_descriptors[i], &st);
    fstat(g_descriptors[i], &st); /* once for the sockets among them */
    fcntl(g_descriptors[i], F_GETOWN_EX, &owner);
    fcntl(g_descriptors[i], F_GETSIG);
    if (i > 0) syscall(SYS_kcmp, self, self, KCMP_FILE, g_descriptors[i], g_descriptors[i - 1]);
  }
  close(infos);
}

/* The flags of each mapping once, the list of them as often as it may have changed, and its page written. */
static void bare_mappings(void) {
  static char text[64 << 10];
  const char* files[] = {"/proc/self/smaps", "/proc/self/maps", "/proc/self/maps", "/proc/self/maps"};
  for (int i = 0; i < 4; ++i) {
    const int file = open(files[i], O_RDONLY);
    while (read(file, text, sizeof(text)) > 0) {
    }
    close(file);
  }
  const int image = open("bare", O_RDWR | O_CREAT | O_TRUNC, 0600);
  for (long i = 0; i < g_count; i += 255) {
    const long pages = g_count - i < 255 ? g_count - i : 255;
    if (write(image, g_memory + i * PAGE, (size_t)pages * PAGE) < 0) leave(1, "write: %s", strerror(errno));
  }
  close(image);
  unlink("bare");
}

static int run_bare(const char* kind) {
  if (strcmp(kind, "descriptors") == 0) make_descriptors();
  if (strcmp(kind, "mappings") == 0) make_mappings();
  const double began = processor_us(CLOCK_PROCESS_CPUTIME_ID);
  if (strcmp(kind, "threads") == 0) bare_threads();
  if (strcmp(kind, "descriptors") == 0) bare_descriptors();
  if (strcmp(kind, "mappings") == 0) bare_mappings();
  printf("%.3f\n", (processor_us(CLOCK_PROCESS_CPUTIME_ID) - began) / (double)g_count);
  return 0;
}

int main(int argc, char** argv) {
  const int bare = argc == 4 && strcmp(argv[1], "bare") == 0;
  if (argc != 3 && !bare) leave(2, "usage: many [bare] threads|descriptors|mappings|regions COUNT");
  const char* kind = argv[bare ? 2 : 1];
  g_count = strtol(argv[bare ? 3 : 2], NULL, 10);
  if (bare) return run_bare(kind);
  struct ibv_pd* pd = open_device();
  if (strcmp(kind, "threads") == 0) make_threads();
  if (strcmp(kind, "descriptors") == 0) make_descriptors();
  if (strcmp(kind, "mappings") == 0) make_mappings();
  if (strcmp(kind, "regions") == 0) make_regions(pd);
  printf("ready\n");
  fflush(stdout);
  live_until("finish");
  if (g_threads != NULL) end_threads();
  if (g_descriptors != NULL) check_descriptors();
  if (strcmp(kind, "mappings") == 0) check_mappings();
  if (g_regions != NULL) check_regions();
  leave(0, "all of %ld %s are right", g_count, kind);
}
