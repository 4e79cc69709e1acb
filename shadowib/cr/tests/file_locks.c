/* Files across a restart: locks of several members on one file, of memory they share, and a thread that waits for
 * one; offsets.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "scenario.h"

static int set_lock(int fd, int command, short type, off_t start, off_t length) {
  struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
  return fcntl(fd, command, &l);
}

/* "POSIX WRITE 8 15;", of all that the kernel lists for the descriptor. */
static const char* locks_of(int fd) {
  static char text[256];
  char path[64], line[128], kind[16], mode[16], start[24], end[24];
  snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
  FILE* info = fopen(path, "r");
  CHECK(info != NULL);
  text[0] = '\0';
  while (fgets(line, sizeof(line), info) != NULL)
    if (sscanf(line, "lock: %*s %15s %*s %15s %*s %*s %23s %23s", kind, mode, start, end) == 4)
      snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s %s %s %s;", kind, mode, start, end);
  fclose(info);
  return text;
}

static void expect_locks(int fd, const char* expected) {
  const char* found = locks_of(fd);
  if (strcmp(found, expected) != 0) fprintf(stderr, "\"%s\" is not \"%s\"\n", found, expected);
  CHECK(strcmp(found, expected) == 0);
}

static int file, memory_file, flocked, results;

static void* wait_for_record(void* waiting) {
  __atomic_store_n((int*)waiting, 1, __ATOMIC_RELEASE);
  CHECK(set_lock(file, F_SETLKW, F_WRLCK, 100, 8) == 0); /* the other member's */
  return NULL;
}

static void open_files(const char* memory_path) {
  file = open("records", O_RDWR | O_CREAT, 0600);
  memory_file = open(memory_path, O_RDWR | O_CREAT, 0600);
  flocked = open("flocked", O_RDONLY | O_CREAT, 0600);
  results = open("results", O_RDWR | O_CREAT, 0600); /* alike in both, and each has its own offset */
  CHECK(file >= 0 && memory_file >= 0 && flocked >= 0 && results >= 0 && ftruncate(memory_file, 4096) == 0);
  /* A file that is mapped, as LMDB's and SQLite's are. */
  CHECK(ftruncate(file, 4096) == 0);
  CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) != MAP_FAILED);
  CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory_file, 0) != MAP_FAILED);
}

static void locks_first(void) {
  static int waiting;
  int unused;
  uint32_t peer;
  char memory_path[64];
  pthread_t thread;
  make_pair(1 << 16);
  snprintf(memory_path, sizeof(memory_path), "/dev/shm/shadowib-test-%d", (int)getpid());
  open_files(memory_path);
  CHECK(set_lock(file, F_SETLK, F_WRLCK, 8, 8) == 0 && set_lock(file, F_SETLK, F_RDLCK, 32, 8) == 0);
  CHECK(set_lock(memory_file, F_SETLK, F_WRLCK, 0, 8) == 0 && flock(flocked, LOCK_EX) == 0);
  tell("process", (uint32_t)getpid());
  await("locked", &unused, &peer);
  CHECK(pthread_create(&thread, NULL, wait_for_record, &waiting) == 0);
  while (!__atomic_load_n(&waiting, __ATOMIC_ACQUIRE)) usleep(100);
  usleep(20000); /* until it most likely sleeps: right either way */
  for (int times = 0; times < 4; ++times) {
    if (times % 2 == 0)
      checkpoint_and_go_on();
    else
      checkpoint_and_kill();
    expect_locks(file, "POSIX WRITE 8 15;POSIX READ 32 39;");
    expect_locks(memory_file, "POSIX WRITE 0 7;");
    expect_locks(flocked, "FLOCK WRITE 0 EOF;");
    CHECK(set_lock(file, F_SETLK, F_RDLCK, 104, 1) < 0 && (errno == EAGAIN || errno == EACCES));
    CHECK(set_lock(memory_file, F_SETLK, F_WRLCK, 8, 8) < 0);
  }
  CHECK(lseek(results, 100, SEEK_SET) == 100);
  tell("unlock", 0);
  CHECK(pthread_join(thread, NULL) == 0);
  expect_locks(file, "POSIX WRITE 8 15;POSIX READ 32 39;POSIX WRITE 100 107;");
  send_one(1);
  tell("seen", 0);
}

static void locks_second(void) {
  int unused;
  uint32_t peer;
  char memory_path[64];
  join();
  await("process", &unused, &peer);
  snprintf(memory_path, sizeof(memory_path), "/dev/shm/shadowib-test-%u", peer);
  open_files(memory_path);
  CHECK(set_lock(file, F_SETLK, F_WRLCK, 100, 8) == 0 && set_lock(file, F_SETLK, F_RDLCK, 32, 8) == 0);
  CHECK(set_lock(memory_file, F_SETLK, F_WRLCK, 8, 8) == 0);
  tell("locked", 0);
  await("unlock", &unused, &peer);
  expect_locks(file, "POSIX READ 32 39;POSIX WRITE 100 107;");
  CHECK(lseek(results, 0, SEEK_CUR) == 0);
  CHECK(flock(flocked, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK);
  CHECK(set_lock(file, F_SETLK, F_UNLCK, 100, 8) == 0);
  await("seen", &unused, &peer);
}

/* Holds one of each kind, for a restart that finds somebody else there. */
static void locks_held(void) {
  make_pair(1 << 16);
  file = open("records", O_RDWR | O_CREAT, 0600);
  flocked = open("flocked", O_RDWR | O_CREAT, 0600);
  CHECK(set_lock(file, F_SETLK, F_WRLCK, 8, 8) == 0 && flock(flocked, LOCK_EX) == 0);
  checkpoint_and_kill();
  expect_locks(file, "POSIX WRITE 8 15;");
  expect_locks(flocked, "FLOCK WRITE 0 EOF;");
  send_one(1);
}

/* A log, whose lines tell how often each was written, and words on standard output. */
static void appends(void) {
  make_pair(1 << 16);
  const int log = open("appended", O_WRONLY | O_CREAT | O_APPEND, 0600);
  CHECK(log >= 0 && write(log, "1\n", 2) == 2);
  CHECK(dprintf(1, "says 1\n") > 0);
  CHECK(take_checkpoint(0) >= 0); /* a restart comes from here, too */
  CHECK(write(log, "2\n", 2) == 2 && dprintf(1, "says 2\n") > 0);
  checkpoint_and_kill();
  CHECK(write(log, "3\n", 2) == 2 && dprintf(1, "says 3\n") > 0);
  send_one(1);
}

const struct scenario file_lock_scenarios[] = {{"locks_first", locks_first},
                                               {"locks_second", locks_second},
                                               {"locks_held", locks_held},
                                               {"appends", appends},
                                               {NULL, NULL}};
