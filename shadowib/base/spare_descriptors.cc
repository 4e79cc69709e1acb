#include "shadowib/base/spare_descriptors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

std::atomic<int> g_source{-1};  // what spare descriptors are duplicates of
std::atomic<int> g_spares[kSpareDescriptors] = {-1, -1};
std::atomic<int> g_missing{0};  // of a pool that was filled once
std::atomic<ino_t> g_inode{0};

// The program may have closed the number by a system call of its own and opened something else there.
bool is_spare(int fd) {
  struct stat now {};
  return fd >= 0 && ::fstat(fd, &now) == 0 && now.st_ino == g_inode.load() && now.st_size == 0 && now.st_nlink == 0;
}

}  // namespace

void reserve_spare_descriptors() {
  if (g_source.load() >= 0) return;
  UnownedDescriptors unowned;
  constexpr unsigned kNoExec = 8;  // MFD_NOEXEC_SEAL, which vm.memfd_noexec may ask for; Linux 6.3
  int made = -1;
  for (const unsigned flags : {MFD_CLOEXEC | kNoExec, MFD_CLOEXEC})
    if (made < 0) made = static_cast<int>(::syscall(SYS_memfd_create, "shadowib-spare", flags));
  if (made < 0) return;
  const int source = unowned.own(made);
  struct stat identity {};
  if (source < 0 || ::fstat(source, &identity) != 0) return raw_close(made);
  g_inode.store(identity.st_ino);
  int missing = 0;
  for (std::atomic<int>& spare : g_spares) {
    const int copy = ::fcntl(source, F_DUPFD_CLOEXEC, 3);
    const int owned = copy < 0 ? -1 : unowned.own(copy);
    if (copy >= 0 && owned < 0) raw_close(copy);
    spare.store(owned);
    if (owned < 0) ++missing;
  }
  g_source.store(source);
  g_missing.store(missing);
}

bool give_up_spare_descriptor() {
  for (std::atomic<int>& spare : g_spares) {
    const int fd = spare.exchange(-1);
    if (fd < 0) continue;
    g_missing.fetch_add(1);
    if (!is_spare(fd)) continue;
    disown_descriptor(fd);
    raw_close(fd);
    return true;
  }
  return false;
}

bool keep_as_spare_descriptor(int fd) {
  if (g_missing.load(std::memory_order_relaxed) == 0) return false;
  const int source = g_source.load();
  if (fd == source || !is_spare(source)) return false;
  for (std::atomic<int>& spare : g_spares) {
    int none = -1;
    if (!spare.compare_exchange_strong(none, fd)) continue;
    if (::syscall(SYS_dup3, source, fd, O_CLOEXEC) != fd) {  // at RLIMIT_NOFILE or above
      spare.store(-1);
      return false;
    }
    g_missing.fetch_sub(1);
    return true;
  }
  return false;
}

void forget_spare_descriptors() {
  g_source.store(-1);
  for (std::atomic<int>& spare : g_spares) spare.store(-1);
  g_missing.store(0);
}

}  // namespace shadowib
