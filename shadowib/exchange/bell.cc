#include "shadowib/exchange/bell.h"

#include <linux/futex.h>
#include <sys/mman.h>

#include <cerrno>
#include <climits>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr std::size_t kBytes = 4096;

std::string bell_in(const std::string& directory) { return directory + "/@"; }

// No part of an image, and of no child.
void* map(int file) {
  const long mapped = ::syscall(SYS_mmap, nullptr, kBytes, PROT_READ, MAP_SHARED, file, 0L);
  if (mapped == -1) return nullptr;
  auto* const at = reinterpret_cast<void*>(mapped);
  if (::syscall(SYS_madvise, at, kBytes, MADV_DONTFORK) == 0 && own_mapping(at, kBytes)) return at;
  ::syscall(SYS_munmap, at, kBytes);
  return nullptr;
}

void unmap(void* at) {
  disown_mapping(at);
  ::syscall(SYS_munmap, at, kBytes);
}

bool has_word(int file) {
  std::uint32_t word = 0;
  return ::syscall(SYS_pread64, file, &word, sizeof(word), static_cast<loff_t>(0)) == sizeof(word);
}

// A number that another ringing hardly writes, too. Who sleeps nevertheless looks again after a while.
bool write_word(int file) {
  const auto word = static_cast<std::uint32_t>(monotonic_ns());
  return ::syscall(SYS_pwrite64, file, &word, sizeof(word), static_cast<loff_t>(0)) == sizeof(word);
}

}  // namespace

void ring_bell(int root, const std::string& directory) {
  const OwnedFd file = open_owned(root, bell_in(directory).c_str(), O_RDWR | O_NOFOLLOW);
  if (!file || !write_word(file.get())) return;
  void* const at = map(file.get());
  if (at == nullptr) return;
  ::syscall(SYS_futex, at, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  unmap(at);
}

bool Bell::attend(int root, const std::string& directory) {
  if (attends(directory)) return true;
  drop();
  const std::string name = bell_in(directory);
  const auto open = [&](int flags) { return open_owned(root, name.c_str(), O_RDWR | O_NOFOLLOW | flags, 0600); };
  OwnedFd file = open(0);
  if (!file && errno == ENOENT) {
    file = open(O_CREAT);
    if (!file && errno == ENOENT && make_directories(root, directory) == 0) file = open(O_CREAT);
    if (!file || ::syscall(SYS_fchmod, file.get(), 0600) != 0) return false;
  }
  // The word must be there to be slept on, whoever made the file: a sleep on an empty file ends at once.
  if (!file || (!has_word(file.get()) && !write_word(file.get())) || (at_ = map(file.get())) == nullptr) return false;
  file_ = std::move(file);
  directory_ = directory;
  return true;
}

std::uint32_t Bell::rung() const {
  std::uint32_t word = 0;
  (void)::syscall(SYS_pread64, file_.get(), &word, sizeof(word), static_cast<loff_t>(0));
  return word;
}

void Bell::sleep(std::uint32_t before, std::int64_t timeout_ns) const {
  const timespec limit{timeout_ns / 1000000000, timeout_ns % 1000000000};
  ::syscall(SYS_futex, at_, FUTEX_WAIT, before, &limit, nullptr, 0);
}

void Bell::drop() {
  if (at_ != nullptr) unmap(at_);
  at_ = nullptr;
  file_.reset(-1);
  directory_.clear();
}

}  // namespace shadowib
