/* Memory that processes share, in each way there is: the first makes it, the second attaches it, both are restarted.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scenario.h"

enum { kBytes = 1 << 20, kOdd = kBytes + 100, kSparse = 1 << 30 };

/* What each has of it. */
static struct {
  char *named, *ring, *sealed, *unlinked, *segment, *doomed;
  int ring_fd, sealed_fd, named_fd, segment_id, doomed_id;
} m;
static char name[64];
static key_t key;

static char* map(int fd, size_t bytes, int protection, off_t offset) {
  char* at = mmap(NULL, bytes, protection, fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, offset);
  CHECK(at != MAP_FAILED);
  return at;
}

static uint32_t told(const char* file) {
  int unused;
  uint32_t number;
  await(file, &unused, &number);
  return number;
}

static void make_all(void) {
  key = 0x5b000000 + getpid();
  snprintf(name, sizeof(name), "/shadowib-test-%d", getpid());
  m.named_fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0640);
  CHECK(m.named_fd >= 0 && ftruncate(m.named_fd, kOdd) == 0 && lseek(m.named_fd, 77, SEEK_SET) == 77);
  m.named = map(m.named_fd, kOdd, PROT_READ | PROT_WRITE, 0);
  m.ring_fd = memfd_create("ring", 0);
  CHECK(m.ring_fd >= 0 && ftruncate(m.ring_fd, kSparse) == 0);
  m.ring = map(m.ring_fd, kSparse, PROT_READ | PROT_WRITE, 0);
  m.sealed_fd = memfd_create("sealed", MFD_ALLOW_SEALING);
  CHECK(m.sealed_fd >= 0 && ftruncate(m.sealed_fd, kBytes) == 0);
  m.sealed = map(m.sealed_fd, kBytes, PROT_READ | PROT_WRITE, 0);
  strcpy(m.sealed, "sealed by the first");
  CHECK(fcntl(m.sealed_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0);
  m.segment_id = shmget(key, kOdd, IPC_CREAT | IPC_EXCL | 0600);
  CHECK(m.segment_id >= 0 && (m.segment = shmat(m.segment_id, NULL, 0)) != (void*)-1);
  m.doomed_id = shmget(IPC_PRIVATE, kBytes, 0600);
  CHECK(m.doomed_id >= 0 && (m.doomed = shmat(m.doomed_id, NULL, 0)) != (void*)-1);
  char once[72];
  snprintf(once, sizeof(once), "%s-once", name);
  const int fd = shm_open(once, O_CREAT | O_EXCL | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, kBytes) == 0);
  m.unlinked = map(fd, kBytes, PROT_READ | PROT_WRITE, 0);
  close(fd);
}

static void say(const char* who) {
  sprintf(m.named + kOdd - 40, "named by the %s", who);
  sprintf(m.ring + kSparse / 2, "ring by the %s", who);
  sprintf(m.unlinked, "unlinked by the %s", who);
  sprintf(m.segment + kOdd - 40, "segment by the %s", who);
  sprintf(m.doomed + kBytes / 2, "doomed by the %s", who);
}

static int says(const char* at, const char* what, const char* who) {
  char text[64];
  snprintf(text, sizeof(text), "%s by the %s", what, who);
  if (strcmp(at, text) != 0) fprintf(stderr, "\"%.40s\" is not \"%s\"\n", at, text);
  return strcmp(at, text) == 0;
}

static void hear(const char* who) {
  CHECK(says(m.named + kOdd - 40, "named", who));
  CHECK(says(m.ring + kSparse / 2, "ring", who));
  CHECK(says(m.unlinked, "unlinked", who));
  CHECK(says(m.segment + kOdd - 40, "segment", who));
  CHECK(says(m.doomed + kBytes / 2, "doomed", who));
  CHECK(strcmp(m.sealed, "sealed by the first") == 0);
}

/* What a program may ask the kernel of it. */
static void look(void) {
  struct stat st;
  struct shmid_ds info;
  CHECK(fstat(m.named_fd, &st) == 0 && st.st_size == kOdd && (st.st_mode & 0777) == 0640);
  CHECK(lseek(m.named_fd, 0, SEEK_CUR) == 77);
  const int again = shm_open(name, O_RDWR, 0);
  struct stat by_name;
  CHECK(fstat(again, &by_name) == 0 && by_name.st_ino == st.st_ino);
  close(again);
  CHECK(fstat(m.ring_fd, &st) == 0 && st.st_size == kSparse && st.st_blocks * 512 < 8 << 20);
  CHECK(fcntl(m.ring_fd, F_GET_SEALS) == F_SEAL_SEAL);
  CHECK(fcntl(m.sealed_fd, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE));
  CHECK(ftruncate(m.sealed_fd, 1) != 0);
  CHECK(shmget(key, 1, 0) == m.segment_id);
  CHECK(shmctl(m.segment_id, IPC_STAT, &info) == 0 && info.shm_nattch == 4 && info.shm_segsz == kOdd);
  CHECK(shmctl(m.doomed_id, IPC_STAT, &info) == 0 && info.shm_nattch == 2 && (info.shm_perm.mode & SHM_DEST) != 0);
}

static void memory_first(void) {
  join();
  make_all();
  say("first");
  tell("process", (uint32_t)getpid());
  tell("ring", (uint32_t)m.ring_fd);
  tell("sealed", (uint32_t)m.sealed_fd);
  tell("doomed", (uint32_t)m.doomed_id);
  told("attached");
  CHECK(shmctl(m.doomed_id, IPC_RMID, NULL) == 0);
  char once[72];
  snprintf(once, sizeof(once), "%s-once", name);
  CHECK(shm_unlink(once) == 0);
  hear("second");
  look();
  checkpoint_and_go_on();
  hear("second");
  look();
  for (int round = 0; round < 2; ++round) {
    checkpoint_and_kill();
    hear("second");
    look();
    say("first");
    tell(round == 0 ? "changed0" : "changed1", 0);
    told(round == 0 ? "changed back0" : "changed back1");
    hear("second");
  }
  CHECK(shmdt(m.segment) == 0 && shmdt(m.doomed) == 0);
  CHECK(shmctl(m.segment_id, IPC_RMID, NULL) == 0 && shm_unlink(name) == 0);
}

/* Attaches as UCX does, through the other's descriptors; of what it has a name for it keeps no descriptor. */
static void memory_second(void) {
  join();
  const uint32_t process = told("process");
  char path[64], once[72];
  snprintf(name, sizeof(name), "/shadowib-test-%u", process);
  snprintf(once, sizeof(once), "%s-once", name);
  snprintf(path, sizeof(path), "/proc/%u/fd/%u", process, told("ring"));
  int fd = open(path, O_RDWR);
  CHECK(fd >= 0);
  m.ring = map(fd, kSparse, PROT_READ | PROT_WRITE, 0);
  close(fd);
  snprintf(path, sizeof(path), "/proc/%u/fd/%u", process, told("sealed"));
  CHECK((fd = open(path, O_RDONLY)) >= 0);
  m.sealed = map(fd, kBytes, PROT_READ, 0);
  close(fd);
  CHECK((fd = shm_open(name, O_RDWR, 0)) >= 0);
  m.named = map(fd, kOdd, PROT_READ | PROT_WRITE, 0);
  close(fd);
  CHECK((fd = shm_open(once, O_RDWR, 0)) >= 0);
  m.unlinked = map(fd, kBytes, PROT_READ | PROT_WRITE, 0);
  close(fd);
  key = 0x5b000000 + (key_t)process;
  CHECK((m.segment = shmat(shmget(key, kOdd, 0), NULL, 0)) != (void*)-1);
  CHECK((m.doomed = shmat((int)told("doomed"), NULL, 0)) != (void*)-1);
  /* A part of it has another protection. */
  CHECK(mprotect(m.segment + kBytes / 2, 4096, PROT_READ) == 0 && mprotect(m.ring + 4096, 4096, PROT_NONE) == 0);
  hear("first");
  say("second");
  tell("attached", 0);
  for (int round = 0; round < 2; ++round) {
    told(round == 0 ? "changed0" : "changed1");
    hear("first");
    say("second");
    tell(round == 0 ? "changed back0" : "changed back1", 0);
  }
}

/* The first of an IPC namespace, as containers and restarts have their own. */
static void memory_of_id_zero(void) {
  struct shmid_ds info;
  join();
  const int id = shmget(IPC_PRIVATE, kBytes, 0600);
  CHECK(id == 0);
  char* at = shmat(id, NULL, 0);
  CHECK(at != (void*)-1);
  strcpy(at, "of id 0");
  for (int round = 0; round < 2; ++round) {
    checkpoint_and_kill();
    CHECK(strcmp(at, "of id 0") == 0 && shmctl(id, IPC_STAT, &info) == 0 && info.shm_nattch == 1);
  }
}

/* Between shm_open and mmap. */
static void memory_about_to_be_mapped(void) {
  snprintf(name, sizeof(name), "/shadowib-test-%d", getpid());
  join();
  const int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0640);
  CHECK(fd >= 0 && ftruncate(fd, kOdd) == 0 && pwrite(fd, "there", 5, kBytes) == 5);
  for (int round = 0; round < 2; ++round) {
    checkpoint_and_kill();
    const char* at = map(fd, kOdd, PROT_READ | PROT_WRITE, 0);
    CHECK(strcmp(at + kBytes, "there") == 0 && munmap((void*)at, kOdd) == 0);
  }
  CHECK(shm_unlink(name) == 0);
}

/* Two processes that have inherited a mapping; their parent, who is no member, has let go of it. */
static void memory_inherited(void) {
  char* shared = map(-1, kBytes, PROT_READ | PROT_WRITE, 0);
  pid_t children[2];
  for (int i = 0; i < 2; ++i) {
    children[i] = fork();
    CHECK(children[i] >= 0);
    if (children[i] > 0) continue;
    join();
    char *mine = shared + i * 4096, *others = shared + (1 - i) * 4096;
    strcpy(mine, "before");
    tell(i == 0 ? "first" : "second", 0);
    told(i == 0 ? "second" : "first");
    if (i == 0) checkpoint_and_kill();
    if (i == 0) strcpy(mine, "after");
    if (i == 0) tell("restarted", 0);
    if (i == 1) told("restarted");
    CHECK(strcmp(others, i == 0 ? "before" : "after") == 0);
    exit(0);
  }
  CHECK(munmap(shared, kBytes) == 0);
  for (int i = 0; i < 2; ++i) {
    int status;
    CHECK(waitpid(children[i], &status, 0) == children[i] && WIFSIGNALED(status));
  }
}

const struct scenario memory_scenarios[] = {
    {"memory_first", memory_first},           {"memory_second", memory_second},
    {"memory_of_id_zero", memory_of_id_zero}, {"memory_about_to_be_mapped", memory_about_to_be_mapped},
    {"memory_inherited", memory_inherited},   {NULL, NULL}};
