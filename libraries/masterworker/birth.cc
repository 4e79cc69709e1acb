#include "libraries/masterworker/birth.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "libraries/masterworker/guard.h"
#include "libraries/masterworker/messages.h"

namespace shadowib::masterworker {
namespace {

// A worker that shares something with its master after all would do silent harm: it ends instead.
[[noreturn]] void cannot(const char* what) { give_up("a worker cannot %s: %s; it ends", what, std::strerror(errno)); }

std::vector<int> open_descriptors() {
  std::vector<int> found;
  DIR* directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) cannot("list its descriptors");
  while (const dirent* entry = ::readdir(directory)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != ::dirfd(directory)) found.push_back(fd);
  }
  ::closedir(directory);
  return found;
}

// An own open file description of the same file, at the same offset. Where the file may be read no more: `nowhere`.
void reopen(int fd, int flags, int nowhere) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  const off_t at = ::lseek(fd, 0, SEEK_CUR);
  const int own = ::open(path, flags & (O_ACCMODE | O_NONBLOCK | O_APPEND | O_NOATIME));
  if (own >= 0 && at > 0) ::lseek(own, at, SEEK_SET);
  const int close_on_exec = ::fcntl(fd, F_GETFD) & FD_CLOEXEC;
  if (::dup3(own >= 0 ? own : nowhere, fd, close_on_exec != 0 ? O_CLOEXEC : 0) < 0) cannot("let go of a file");
  if (own >= 0) ::close(own);
}

// False: some of it cannot be read.
bool copy_piece(char* to, const char* from, std::size_t bytes) {
  const iovec here{to, bytes}, there{const_cast<char*>(from), bytes};
  const ssize_t got = ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0);
  if (got < 0 && errno != EFAULT) cannot("copy its shared memory (process_vm_readv)");
  return got == static_cast<ssize_t>(bytes);
}

// Leaves zeroes for pages that nobody can read: a mapping may reach beyond the end of its file, where a load is
// SIGBUS.
void copy_memory(char* to, const char* from, std::size_t bytes) {
  constexpr std::size_t kPage = 4096, kPiece = 256 * kPage;
  for (std::size_t at = 0; at < bytes; at += kPiece) {
    const std::size_t piece = std::min(kPiece, bytes - at);
    if (copy_piece(to + at, from + at, piece)) continue;
    for (std::size_t page = at; page < at + piece; page += kPage) copy_piece(to + page, from + page, kPage);
  }
}

void close_both(const int ends[2]) {
  for (int i = 0; i < 2; ++i)
    if (ends[i] >= 0) ::close(ends[i]);
}

// In the master: 0, or the errno of why the process between has made no worker. Its exit status may go elsewhere: a
// program may ignore SIGCHLD, or wait for any child.
int hear_of(pid_t between, int* write_end, int read_end, pid_t* worker) {
  while (::waitpid(between, nullptr, 0) < 0 && errno == EINTR) {
  }
  ::close(std::exchange(*write_end, -1));
  pid_t told = 0;
  if (::read(read_end, &told, sizeof(told)) != sizeof(told)) return EINTR;  // a signal has ended it
  if (told < 0) return -told;
  *worker = told;
  return 0;
}

}  // namespace

bool is_gone(pid_t process) {
  char path[32], text[512] = "";
  std::snprintf(path, sizeof(path), "/proc/%d/stat", process);
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ::kill(process, 0) != 0 && errno == ESRCH;
  const ssize_t got = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  const char* name_ends = std::strrchr(text, ')');  // "PID (NAME) STATE ..."
  return got <= 0 || (name_ends != nullptr && (name_ends[2] == 'Z' || name_ends[2] == 'X'));
}

void separate_descriptors() {
  const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nowhere < 0) cannot("open /dev/null");
  for (const int fd : open_descriptors()) {
    if (fd == nowhere) continue;
    struct stat facts {};
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fstat(fd, &facts) != 0) continue;
    const bool read_only = (flags & O_ACCMODE) == O_RDONLY;
    if (S_ISREG(facts.st_mode) && read_only)
      reopen(fd, flags, nowhere);
    else if (fd > 2 && !(S_ISDIR(facts.st_mode)) && (flags & O_PATH) == 0)
      // The number stays taken: the program may still use or close it.
      if (::dup3(nowhere, fd, O_CLOEXEC) < 0) cannot("let go of a descriptor");
  }
  if (nowhere > 2) ::close(nowhere);
}

void separate_mappings() {
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) cannot("list its mappings");
  struct Shared {
    std::uintptr_t begin, end;
    int protection;
  };
  std::vector<Shared> all;
  char line[4400];
  while (std::fgets(line, sizeof(line), maps) != nullptr) {
    std::uintptr_t begin = 0, end = 0;
    char rights[5] = "", path[4096] = "";
    if (std::sscanf(line, "%lx-%lx %4s %*s %*s %*s %4095[^\n]", &begin, &end, rights, path) < 3) continue;
    // Only what can be changed. A device's pages are no memory.
    if (rights[3] != 's' || rights[1] != 'w' || std::strncmp(path, "/dev/infiniband", 15) == 0) continue;
    all.push_back({begin, end, (rights[0] == 'r' ? PROT_READ : 0) | PROT_WRITE | (rights[2] == 'x' ? PROT_EXEC : 0)});
  }
  std::fclose(maps);
  for (const Shared& shared : all) {
    const std::size_t bytes = shared.end - shared.begin;
    void* old = reinterpret_cast<void*>(shared.begin);
    void* copy = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (copy == MAP_FAILED) give_up("a worker has no memory for its copy of %zu shared bytes", bytes);
    if ((shared.protection & PROT_READ) == 0 && ::mprotect(old, bytes, shared.protection | PROT_READ) != 0)
      cannot("read a shared mapping");
    copy_memory(static_cast<char*>(copy), static_cast<const char*>(old), bytes);
    if (::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, old) == MAP_FAILED)
      cannot("make a shared mapping its own");
    if (shared.protection != (PROT_READ | PROT_WRITE) && ::mprotect(old, bytes, shared.protection) != 0)
      cannot("protect a mapping");
  }
}

Born fork_worker(pid_t* worker) {
  if (guarded(Guard::kFlushStreams)) std::fflush(nullptr);
  // The program may have a handler that waits for any child.
  sigset_t child, before;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  ::sigaddset(&child, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &child, &before);
  int number[2] = {-1, -1};  // a pipe on which the worker's number comes, or a negative errno
  const pid_t between = ::pipe2(number, O_CLOEXEC) == 0 ? ::fork() : -1;
  if (between != 0) {
    const int error = between < 0 ? errno : hear_of(between, &number[1], number[0], worker);
    close_both(number);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    errno = error;
    return error == 0 ? Born::kMaster : Born::kFailed;
  }
  if (const pid_t made = ::fork(); made != 0) {
    const pid_t told = made < 0 ? -errno : made;
    ::_exit(::write(number[1], &told, sizeof(told)) == sizeof(told) ? 0 : 1);
  }
  close_both(number);
  ::setsid();
  ::sigaddset(&before, SIGTERM);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (guarded(Guard::kOwnDescriptors)) separate_descriptors();
  if (guarded(Guard::kPrivateMappings)) separate_mappings();
  return Born::kWorker;
}

}  // namespace shadowib::masterworker
