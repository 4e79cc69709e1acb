#include "shadowib/base/descriptors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>

#include "shadowib/base/lock.h"
#include "shadowib/base/spare_descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

extern "C" void __sanitizer_syscall_pre_impl_close(long fd) __attribute__((weak));

namespace shadowib {
namespace {

std::atomic<std::uint64_t> g_owned[kMaxOwnedDescriptors / 64];
// Numbers that were owned already when they were owned: the earlier descriptor was closed past the guard.
std::atomic<std::uint64_t> g_replaced[kMaxOwnedDescriptors / 64];
std::atomic<int> g_lowest{INT_MAX};

struct Mapping {
  std::uintptr_t start;
  std::size_t length;
};
SpinLock g_mappings_lock;
Mapping g_mappings[kMaxOwnedMappings] SHADOWIB_GUARDED_BY(g_mappings_lock);
int g_mapping_count SHADOWIB_GUARDED_BY(g_mappings_lock) = 0;

void mark(int fd) {
  const std::uint64_t bit = 1ull << (fd % 64);
  if ((g_owned[fd / 64].fetch_or(bit, std::memory_order_acq_rel) & bit) != 0) g_replaced[fd / 64].fetch_or(bit);
  int low = g_lowest.load();
  while (fd < low && !g_lowest.compare_exchange_weak(low, fd)) {
  }
}

}  // namespace

void raw_close(int fd) {
  // A sanitizer that has seen the descriptor opened is told: it would take its next owner for a thread that races.
  if (&__sanitizer_syscall_pre_impl_close != nullptr) __sanitizer_syscall_pre_impl_close(fd);
  ::syscall(SYS_close, fd);
}

int UnownedDescriptors::own(int fd) const {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  int top = limit.rlim_cur > kMaxOwnedDescriptors ? kMaxOwnedDescriptors : static_cast<int>(limit.rlim_cur);
  int moved = -1;
  for (int floor = top - kOwnedDescriptorWindow; moved < 0; floor /= 2) {
    if (floor < 3) floor = 3;
    moved = ::fcntl(fd, F_DUPFD_CLOEXEC, floor);
    if (moved >= kMaxOwnedDescriptors) {  // where more descriptors are allowed than we can note
      raw_close(moved);
      moved = -1, errno = EMFILE;
    }
    if (moved < 0 && (floor == 3 || (errno != EMFILE && errno != EINVAL))) return -1;
  }
  mark(moved);
  raw_close(fd);
  return moved;
}

int UnownedDescriptors::own_in_place(int fd) const {
  if (fd >= kMaxOwnedDescriptors) return -1;
  mark(fd);
  return fd;
}

void close_owned_descriptor(int fd) {
  if (fd < 0 || !is_owned_descriptor(fd) || keep_as_spare_descriptor(fd)) return;
  UnownedDescriptors unowned;
  disown_descriptor(fd);
  raw_close(fd);
}

void disown_descriptor(int fd) {
  const std::uint64_t bit = 1ull << (fd % 64);
  g_replaced[fd / 64].fetch_and(~bit);
  g_owned[fd / 64].fetch_and(~bit);
}

// Another thread may close and own the same number between two looks, so each is taken twice.
static bool is_closed(int fd) {
  for (int look = 0; look < 2; ++look)
    if (!is_owned_descriptor(fd) || ::syscall(SYS_fcntl, fd, F_GETFD) >= 0 || errno != EBADF) return false;
  return is_owned_descriptor(fd);
}

bool is_still_the_owned_descriptor(int fd) {
  return is_owned_descriptor(fd) && (g_replaced[fd / 64].load() >> (fd % 64) & 1) == 0 && !is_closed(fd);
}

int forget_closed_descriptors(int* first) {
  int count = 0;
  const int low = lowest_owned_descriptor();
  for (int word = low / 64; low != INT_MAX && word < kMaxOwnedDescriptors / 64; ++word)
    for (std::uint64_t bits = g_owned[word].load(); bits != 0; bits &= bits - 1) {
      const int fd = word * 64 + __builtin_ctzll(bits);
      if (!is_closed(fd)) continue;
      disown_descriptor(fd);
      if (count++ == 0) *first = fd;
    }
  return count;
}

bool is_owned_descriptor(int fd) {
  if (fd < 0 || fd >= kMaxOwnedDescriptors) return false;
  return (g_owned[fd / 64].load(std::memory_order_acquire) >> (fd % 64)) & 1;
}

int lowest_owned_descriptor() { return g_lowest.load(std::memory_order_relaxed); }

void forget_owned_descriptors(bool close) {
  forget_spare_descriptors();
  int low = g_lowest.exchange(INT_MAX);
  if (low == INT_MAX) return;
  for (int word = low / 64; word < kMaxOwnedDescriptors / 64; ++word) {
    std::uint64_t bits = g_owned[word].load(std::memory_order_relaxed);
    if (bits == 0) continue;
    g_owned[word].store(0, std::memory_order_relaxed);
    for (; close && bits != 0; bits &= bits - 1) raw_close(word * 64 + __builtin_ctzll(bits));
  }
}

bool own_mapping(void* address, std::size_t bytes) {
  SpinGuard guard(g_mappings_lock);
  if (g_mapping_count == kMaxOwnedMappings) return false;
  g_mappings[g_mapping_count++] = {reinterpret_cast<std::uintptr_t>(address), bytes};
  return true;
}

void disown_mapping(void* address) {
  SpinGuard guard(g_mappings_lock);
  for (int i = 0; i < g_mapping_count; ++i)
    if (g_mappings[i].start == reinterpret_cast<std::uintptr_t>(address)) {
      g_mappings[i] = g_mappings[--g_mapping_count];
      return;
    }
}

bool find_owned_mapping(std::uintptr_t address, std::size_t bytes, std::uintptr_t* start, std::size_t* length) {
  SpinGuard guard(g_mappings_lock);
  bool found = false;
  for (int i = 0; i < g_mapping_count; ++i) {
    const Mapping& m = g_mappings[i];
    if (m.start >= address + bytes || m.start + m.length <= address) continue;
    if (found && m.start >= *start) continue;
    *start = m.start;
    *length = m.length;
    found = true;
  }
  return found;
}

void forget_owned_mappings(bool unmap) {
  g_mappings_lock.reset();  // in a forked child its holder may not be there
  SpinGuard guard(g_mappings_lock);
  for (int i = 0; unmap && i < g_mapping_count; ++i)
    ::munmap(reinterpret_cast<void*>(g_mappings[i].start), g_mappings[i].length);
  g_mapping_count = 0;
}

}  // namespace shadowib
