// Shared memory of one process, with the table that tells of it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/semaphore_undo.h"
#include "hooks/imager/tests/subject.h"

using namespace shadowib::test;

namespace {

constexpr std::size_t kPage = 4096, kBig = 256 << 20;

char* map(int fd, std::size_t bytes, int protection, std::size_t offset = 0) {
  const int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  void* at = ::mmap(nullptr, bytes, protection, flags, fd, static_cast<off_t>(offset));
  CHECK_THAT(at != MAP_FAILED);
  return static_cast<char*>(at);
}

// True if no more pages of it are there than that; where there is swap it cannot be told and none are saved.
bool is_sparse(char* at, std::size_t bytes, unsigned pages) {
  struct sysinfo info {};
  std::vector<unsigned char> resident(bytes / kPage);
  CHECK_THAT(::sysinfo(&info) == 0 && ::mincore(at, bytes, resident.data()) == 0);
  return info.totalswap != 0 || std::accumulate(resident.begin(), resident.end(), 0u) <= pages;
}

bool says(const char* at, const char* text) { return std::strcmp(at, text) == 0; }

// Mapped twice, with a hole of pages that were never touched, and one that may not be.
SCENARIO(shared_anonymous) {
  with_table();
  char* memory = map(-1, kBig, PROT_READ | PROT_WRITE);
  std::strcpy(memory, "first");
  std::strcpy(memory + kBig - kPage, "last");
  auto* alias = reinterpret_cast<char*>(::syscall(SYS_mremap, memory, 0, kPage, MREMAP_MAYMOVE, 0));
  CHECK_THAT(alias != MAP_FAILED);
  CHECK_THAT(::mprotect(memory + kBig - kPage, kPage, PROT_NONE) == 0);
  CHECK_THAT(::munmap(memory + kPage, kPage) == 0);
  if (!save()) {
    CHECK_THAT(is_sparse(memory + 2 * kPage, kBig - 2 * kPage, 1));
    ::_exit(10);
  }
  CHECK_THAT(is_sparse(memory + 2 * kPage, kBig - 2 * kPage, 1));
  CHECK_THAT(says(memory, "first") && says(alias, "first"));
  std::strcpy(alias, "changed");
  CHECK_THAT(says(memory, "changed"));
  CHECK_THAT(::mprotect(memory + kBig - kPage, kPage, PROT_READ | PROT_WRITE) == 0);
  CHECK_THAT(says(memory + kBig - kPage, "last"));
  CHECK_THAT(::msync(memory + kPage, kPage, MS_ASYNC) != 0);
}

SCENARIO(shared_files) {
  with_table();
  // A part of a memfd, and only that: through it nobody can see what is before.
  int fd = ::memfd_create("part", 0);
  CHECK_THAT(::ftruncate(fd, kBig) == 0);
  char* part = map(fd, 2 * kPage, PROT_READ | PROT_WRITE, 4 * kPage);
  std::strcpy(part + kPage, "part");
  ::close(fd);
  // One that is read only, whatever the program tries.
  fd = ::memfd_create("sealed", MFD_ALLOW_SEALING);
  CHECK_THAT(::write(fd, "sealed", 7) == 7 && ::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) == 0);
  const int sealed = ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY);
  char* read_only = map(sealed, kPage, PROT_READ);
  ::close(sealed);
  // A file of a length that is no whole page, in a directory that is gone at the restart.
  const std::string directory = "/dev/shm/shadowib-imager-" + std::to_string(::getpid()), name = directory + "/file";
  CHECK_THAT(::mkdir(directory.c_str(), 0700) == 0);
  const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0440);
  CHECK_THAT(file >= 0 && ::ftruncate(file, kPage + 100) == 0 && ::write(file, "0123456789", 10) == 10);
  char* named = map(file, 2 * kPage, PROT_READ | PROT_WRITE);
  std::strcpy(named + kPage + 90, "at end");
  const int copy = ::dup(file);
  if (!save()) {
    ::unlink(name.c_str());
    ::rmdir(directory.c_str());
    ::_exit(10);
  }
  CHECK_THAT(says(part + kPage, "part") && part[0] == 0);
  CHECK_THAT(says(read_only, "sealed") && ::mprotect(read_only, kPage, PROT_READ | PROT_WRITE) != 0);
  CHECK_THAT(::fcntl(fd, F_GET_SEALS) == (F_SEAL_WRITE | F_SEAL_SEAL) && ::write(fd, "x", 1) != 1);
  CHECK_THAT(says(named + kPage + 90, "at end") && named[0] == '0');
  struct stat st {
  }, by_name{};
  CHECK_THAT(::fstat(file, &st) == 0 && ::stat(name.c_str(), &by_name) == 0 && st.st_ino == by_name.st_ino);
  CHECK_THAT(st.st_size == kPage + 100 && (st.st_mode & 07777) == 0440);
  CHECK_THAT(::lseek(copy, 0, SEEK_CUR) == 10 && (::fcntl(file, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK_THAT(::lseek(copy, 5, SEEK_SET) == 5 && ::lseek(file, 0, SEEK_CUR) == 5);
  CHECK_THAT(::pwrite(file, "!", 1, 0) == 1 && named[0] == '!');
  ::unlink(name.c_str());
  ::rmdir(directory.c_str());
}

SCENARIO(shared_segments) {
  with_table();
  const key_t key = 0x5c000000 + ::getpid();
  const int id = ::shmget(key, 3 * kPage + 1, IPC_CREAT | IPC_EXCL | 0600);
  CHECK_THAT(id >= 0);
  auto* whole = static_cast<char*>(::shmat(id, nullptr, 0));
  auto* again = static_cast<char*>(::shmat(id, nullptr, SHM_RDONLY));
  CHECK_THAT(whole != reinterpret_cast<char*>(-1) && again != reinterpret_cast<char*>(-1));
  std::strcpy(whole + 3 * kPage, "tail");
  std::strcpy(whole + kPage, "page");
  CHECK_THAT(::munmap(whole, kPage) == 0 && ::mprotect(whole + 2 * kPage, kPage, PROT_NONE) == 0);
  // Marked, and its number is known to nobody but this process.
  const int marked = ::shmget(IPC_PRIVATE, kBig, 0600);
  auto* doomed = static_cast<char*>(::shmat(marked, nullptr, 0));
  CHECK_THAT(::shmctl(marked, IPC_RMID, nullptr) == 0);
  std::strcpy(doomed + kBig / 2, "doomed");
  if (!save()) {
    ::shmctl(id, IPC_RMID, nullptr);
    CHECK_THAT(is_sparse(doomed, kBig, 1));
    ::_exit(10);
  }
  CHECK_THAT(says(whole + kPage, "page") && says(again + kPage, "page") && says(again + 3 * kPage, "tail"));
  std::strcpy(whole + kPage, "changed");
  CHECK_THAT(says(again + kPage, "changed") && ::mprotect(again, kPage, PROT_READ | PROT_WRITE) != 0);
  CHECK_THAT(is_sparse(doomed, kBig, 1));
  CHECK_THAT(::msync(whole, kPage, MS_ASYNC) != 0 && says(doomed + kBig / 2, "doomed"));
  shmid_ds info{};
  CHECK_THAT(::shmget(key, 1, 0) == id && ::shmctl(id, IPC_STAT, &info) == 0);
  CHECK_THAT(info.shm_segsz == 3 * kPage + 1 && info.shm_nattch == 4 && (info.shm_perm.mode & 0777) == 0600);
  CHECK_THAT(::shmctl(marked, IPC_STAT, &info) == 0 && (info.shm_perm.mode & SHM_DEST) != 0 && info.shm_nattch == 1);
  CHECK_THAT(::shmdt(whole) == 0 && ::shmdt(again) == 0 && ::shmdt(doomed) == 0);
  CHECK_THAT(::shmctl(id, IPC_STAT, &info) == 0 && info.shm_nattch == 0);
  CHECK_THAT(::shmctl(marked, IPC_STAT, &info) != 0 && ::shmctl(id, IPC_RMID, nullptr) == 0);
}

union SemctlArgument {
  int value;
  unsigned short* values;
};

SCENARIO(semaphores_and_queues) {
  with_table();
  const key_t key = 0x5d000000 + ::getpid();
  const int set = ::semget(key, 4, IPC_CREAT | IPC_EXCL | 0640), untouched = ::semget(IPC_PRIVATE, 2, 0600),
            removed = ::semget(IPC_PRIVATE, 1, 0600), queue = ::msgget(key, IPC_CREAT | IPC_EXCL | 0600),
            empty = ::msgget(IPC_PRIVATE, 0600), segment = ::shmget(key, 2 * kPage, IPC_CREAT | IPC_EXCL | 0600);
  CHECK_THAT(set >= 0 && untouched >= 0 && removed >= 0 && queue >= 0 && empty >= 0 && segment >= 0);
  CHECK_THAT(::semctl(removed, 0, IPC_RMID) == 0);
  unsigned short values[] = {5, 32767, 100, 0};
  SemctlArgument argument{};
  argument.values = values;
  CHECK_THAT(::semctl(set, 0, SETALL, argument) == 0);
  sembuf operations[] = {{0, -2, SEM_UNDO}, {1, -32767, SEM_UNDO}, {2, 32667, SEM_UNDO}};
  CHECK_THAT(::semop(set, operations, 3) == 0);
  const int expected[4][2] = {{3, 2}, {0, 32767}, {32767, -32667}, {0, 0}};
  const auto holds = [&] {
    for (int n = 0; n < 4; ++n) {
      const int value = ::semctl(set, n, GETVAL);
      if (value != expected[n][0] || shadowib::descriptors::undo_of_semaphore(set, n, value) != expected[n][1])
        return false;
    }
    return true;
  };
  CHECK_THAT(holds());
  struct {
    long type;
    char text[32];
  } message{7, "first"}, got{};
  CHECK_THAT(::msgsnd(queue, &message, 6, 0) == 0);
  message = {3, ""};
  CHECK_THAT(::msgsnd(queue, &message, 0, 0) == 0);
  message = {7, "second, with more"};
  CHECK_THAT(::msgsnd(queue, &message, 18, 0) == 0);
  // Less than the 24 bytes that it holds.
  constexpr msglen_t kCapacity = 10;
  msqid_ds narrow{};
  CHECK_THAT(::msgctl(queue, IPC_STAT, &narrow) == 0);
  narrow.msg_qbytes = kCapacity;
  CHECK_THAT(::msgctl(queue, IPC_SET, &narrow) == 0);
  // Filled, and attached by nobody.
  char* at = static_cast<char*>(::shmat(segment, nullptr, 0));
  std::strcpy(at + kPage, "left");
  CHECK_THAT(::shmdt(at) == 0);
  if (!save()) {
    CHECK_THAT(holds());
    CHECK_THAT(::semctl(set, 0, IPC_RMID) == 0 && ::semctl(untouched, 0, IPC_RMID) == 0 &&
               ::msgctl(queue, IPC_RMID, nullptr) == 0 && ::msgctl(empty, IPC_RMID, nullptr) == 0 &&
               ::shmctl(segment, IPC_RMID, nullptr) == 0);
    ::_exit(10);
  }
  CHECK_THAT(holds() && ::semget(key, 4, 0) == set && ::semctl(set, 4, GETVAL) < 0);
  CHECK_THAT(::semctl(untouched, 1, GETVAL) == 0 && ::semctl(removed, 0, GETVAL) < 0);
  semid_ds info{};
  CHECK_THAT(::semctl(set, 0, IPC_STAT, &info) == 0 && (info.sem_perm.mode & 0777) == 0640 && info.sem_otime != 0);
  CHECK_THAT(::semctl(untouched, 0, IPC_STAT, &info) == 0 && info.sem_otime == 0);
  CHECK_THAT(::msgctl(queue, IPC_STAT, &narrow) == 0 && narrow.msg_qbytes == kCapacity);
  CHECK_THAT(::msgget(key, 0) == queue && ::msgrcv(queue, &got, sizeof(got.text), 0, IPC_NOWAIT) == 6);
  CHECK_THAT(got.type == 7 && says(got.text, "first"));
  CHECK_THAT(::msgrcv(queue, &got, sizeof(got.text), 7, IPC_NOWAIT) == 18 && says(got.text, "second, with more"));
  CHECK_THAT(::msgrcv(queue, &got, sizeof(got.text), 0, IPC_NOWAIT) == 0 && got.type == 3);
  CHECK_THAT(::msgrcv(queue, &got, sizeof(got.text), 0, IPC_NOWAIT) < 0 && errno == ENOMSG);
  CHECK_THAT(::msgsnd(empty, &message, 1, IPC_NOWAIT) == 0);
  at = static_cast<char*>(::shmat(segment, nullptr, 0));
  CHECK_THAT(at != reinterpret_cast<char*>(-1) && says(at + kPage, "left"));
  // The end of a process gives back what it has taken.
  const pid_t child = ::fork();
  if (child == 0) {
    sembuf take{0, -1, SEM_UNDO};
    ::_exit(::semop(set, &take, 1));
  }
  int status = 1;
  CHECK_THAT(::waitpid(child, &status, 0) == child && status == 0 && holds());
}

SCENARIO(deleted_files) {
  with_table();
  const std::string name = "/tmp/shadowib-imager-deleted-" + std::to_string(::getpid());
  const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  CHECK_THAT(file >= 0 && ::pwrite(file, "far", 3, kBig) == 3 && ::write(file, "near", 4) == 4);
  const int writer = ::open(name.c_str(), O_WRONLY | O_APPEND);
  char* mapped = map(file, kPage, PROT_READ | PROT_WRITE);
  CHECK_THAT(::unlink(name.c_str()) == 0);
  const int temporary = ::open("/tmp", O_TMPFILE | O_RDWR, 0600);
  CHECK_THAT(temporary < 0 || ::write(temporary, "temporary", 9) == 9);
  // Mapped, and nothing else; the directory is gone, too.
  const std::string directory = name + "-directory", inner = directory + "/1", within = inner + "/file";
  CHECK_THAT(::mkdir(directory.c_str(), 0700) == 0 && ::mkdir(inner.c_str(), 0700) == 0);
  const int closed = ::open(within.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  CHECK_THAT(::ftruncate(closed, kPage) == 0 && ::unlink(within.c_str()) == 0);
  CHECK_THAT(::rmdir(inner.c_str()) == 0 && ::rmdir(directory.c_str()) == 0);
  char* only = map(closed, kPage, PROT_READ | PROT_WRITE);
  ::close(closed);
  std::strcpy(only, "only mapped");
  save_and_end();
  char text[16] = {};
  struct stat st {};
  CHECK_THAT(::fstat(file, &st) == 0 && st.st_nlink == 0 && st.st_size == kBig + 3 && st.st_blocks * 512 < 1 << 20);
  CHECK_THAT(::pread(file, text, 3, kBig) == 3 && says(text, "far") && std::memcmp(mapped, "near", 4) == 0);
  CHECK_THAT(::lseek(file, 0, SEEK_CUR) == 4 &&
             (::fcntl(writer, F_GETFL) & (O_ACCMODE | O_APPEND)) == (O_WRONLY | O_APPEND));
  CHECK_THAT(::write(writer, "more", 4) == 4 && ::fstat(file, &st) == 0 && st.st_size == kBig + 7);
  mapped[0] = 'N';
  CHECK_THAT(::pread(file, text, 4, 0) == 4 && text[0] == 'N');
  CHECK_THAT(temporary < 0 || (::pread(temporary, text, 9, 0) == 9 && says(text, "temporary")));
  CHECK_THAT(says(only, "only mapped"));
  // An output gets its name when it is whole.
  const std::string link = "/proc/self/fd/" + std::to_string(temporary), published = name + "-published";
  CHECK_THAT(temporary < 0 ||
             (::linkat(AT_FDCWD, link.c_str(), AT_FDCWD, published.c_str(), AT_SYMLINK_FOLLOW) == 0 &&
              ::stat(published.c_str(), &st) == 0 && st.st_size == 9 && (st.st_mode & 0777) == 0600 &&
              ::unlink(published.c_str()) == 0));
}

// A launcher's directory is gone at the restart, and ranks look for each other's files there by name.
SCENARIO(session_files) {
  with_table();
  const std::string session = "/tmp/shadowib-imager-session-" + std::to_string(::getpid());
  const std::string job = session + "/1", name = job + "/segment", other = job + "/open";
  CHECK_THAT(::mkdir(session.c_str(), 0700) == 0 && ::mkdir(job.c_str(), 0700) == 0);
  CHECK_THAT(shadowib::note_launcher_directory(session.c_str()));
  const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  CHECK_THAT(file >= 0 && ::ftruncate(file, 3 * kPage) == 0);
  char* mapped = map(file, 3 * kPage, PROT_READ | PROT_WRITE);
  ::close(file);
  std::strcpy(mapped + 2 * kPage, "session");
  const int open = ::open(other.c_str(), O_RDWR | O_CREAT | O_EXCL, 0640);
  CHECK_THAT(open >= 0 && ::write(open, "not mapped yet", 14) == 14);
  if (!save()) {
    ::unlink(name.c_str());
    ::unlink(other.c_str());
    ::rmdir(job.c_str());
    ::rmdir(session.c_str());
    ::_exit(10);
  }
  CHECK_THAT(says(mapped + 2 * kPage, "session"));
  const int again = ::open(name.c_str(), O_RDWR);
  struct stat st {};
  CHECK_THAT(::fstat(again, &st) == 0 && st.st_size == 3 * kPage && (st.st_mode & 07777) == 0600);
  CHECK_THAT(::pwrite(again, "S", 1, 2 * kPage) == 1 && mapped[2 * kPage] == 'S');
  char text[16] = {};
  struct stat by_name {};
  CHECK_THAT(::fstat(open, &st) == 0 && ::stat(other.c_str(), &by_name) == 0 && st.st_ino == by_name.st_ino);
  CHECK_THAT(::lseek(open, 0, SEEK_CUR) == 14 && ::pread(open, text, 14, 0) == 14 && says(text, "not mapped yet"));
  ::unlink(name.c_str());
  ::unlink(other.c_str());
  ::rmdir(job.c_str());
  ::rmdir(session.c_str());
}

}  // namespace
