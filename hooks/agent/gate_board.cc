#include "hooks/agent/gate_board.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

template <typename T>
T load(const T& value) {
  return *const_cast<const volatile T*>(&value);
}

bool write_at(int fd, std::size_t at, const void* from, std::size_t bytes) {
  const ssize_t n = ::pwrite(fd, from, bytes, static_cast<off_t>(at));
  std::atomic_thread_fence(std::memory_order_seq_cst);  // who writes looks at what others have written, and they do
  return n == static_cast<ssize_t>(bytes);
}

}  // namespace

struct GateBoard::Place {
  // The first value stands there twice, the second time inverted, so that half of one is none.
  struct Cell {
    std::uint64_t earliest, inverted, awaits;
  };
  Cell cells[federation::kMaxClusters];
  std::uint32_t wakings;
  std::uint32_t reserved[15];
};

GateBoard::GateBoard(const std::string& file, std::uint32_t own, std::uint32_t members) : own_(own) {
  UnownedDescriptors unowned;  // nor has a child the mapping
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return;
  fd_ = unowned.own(fd);
  if (fd_ < 0)
    raw_close(fd);
  else
    open_places(fd_, std::max(members, own + 1));
}

void GateBoard::open_places(int fd, std::uint32_t members) {
  struct stat file;
  const std::size_t needed = members * sizeof(Place);
  if (::fstat(fd, &file) != 0) return;
  if (static_cast<std::size_t>(file.st_size) < needed) {
    // Others do this, too, with other lengths: so that the file grows only.
    const std::uint32_t last = 0;
    if (!write_at(fd, needed - sizeof(last), &last, sizeof(last)) || ::fstat(fd, &file) != 0) return;
  }
  const std::size_t bytes = static_cast<std::size_t>(file.st_size) / sizeof(Place) * sizeof(Place);
  const long mapped = ::syscall(SYS_mmap, nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0L);
  if (mapped == -1) return;
  auto* const at = reinterpret_cast<void*>(mapped);
  if (::syscall(SYS_madvise, at, bytes, MADV_DONTFORK) != 0 || !own_mapping(at, bytes)) {
    ::syscall(SYS_munmap, at, bytes);
    return;
  }
  places_ = static_cast<const Place*>(at);
  bytes_ = bytes;
  members_ = static_cast<std::uint32_t>(bytes / sizeof(Place));
  if (wakings(own_) == 0) wake(own_);
}

GateBoard::~GateBoard() {
  if (places_ != nullptr) {
    auto* const at = const_cast<Place*>(places_);
    disown_mapping(at);
    ::syscall(SYS_munmap, at, bytes_);
  }
  if (fd_ >= 0) close_owned_descriptor(fd_);
}

std::uint64_t GateBoard::earliest(std::uint32_t member, unsigned cluster) const {
  const Place::Cell& cell = places_[member].cells[cluster];
  const std::uint64_t value = load(cell.earliest);
  return value == ~load(cell.inverted) ? value : 0;
}

void GateBoard::write(unsigned cluster, std::uint64_t earliest, std::uint64_t awaits) {
  if (places_ == nullptr) return;
  const std::size_t at = own_ * sizeof(Place) + offsetof(Place, cells) + cluster * sizeof(Place::Cell);
  const std::uint64_t before = this->earliest(own_, cluster);
  earliest = std::max(earliest, before);
  if (earliest == before && awaits == load(places_[own_].cells[cluster].awaits)) return;
  const Place::Cell cell{earliest, ~earliest, awaits};
  // One that is not written is heard of by the exchange.
  if (!write_at(fd_, at, &cell, sizeof(cell))) return;
  std::uint64_t least = kNothing, second = kNothing;
  std::uint32_t who = own_;
  for (std::uint32_t member = 0; member < members_; ++member) {
    const std::uint64_t value = this->earliest(member, cluster);
    if (value == 0) continue;  // it is waited for by the exchange, or not at all
    if (value < least)
      second = least, least = value, who = member;
    else
      second = std::min(second, value);
  }
  for (std::uint32_t member = 0; member < members_; ++member) {
    if (wakings(member) == 0) continue;  // it was never here
    const std::uint64_t awaited = load(places_[member].cells[cluster].awaits);
    const bool may_go = awaited != 0 && awaited <= (who == member ? second : least);
    const bool waits_for_each = awaited == 0 && before != earliest;
    if (member == own_ ? may_go : waits_for_each || (may_go && before < awaited)) wake(member);
  }
}

GateBoard::Values GateBoard::read(std::uint32_t member) const {
  Values values{};
  if (member < members_)
    for (unsigned i = 0; i < values.size(); ++i) values[i] = earliest(member, i);
  return values;
}

std::uint32_t GateBoard::wakings(std::uint32_t member) const {
  return member < members_ ? load(places_[member].wakings) : 0;
}

void GateBoard::wake(std::uint32_t member) {
  const std::uint32_t next = std::max(wakings(member) + 1, 1u);
  const std::size_t at = member * sizeof(Place) + offsetof(Place, wakings);
  if (write_at(fd_, at, &next, sizeof(next)))
    ::syscall(SYS_futex, &places_[member].wakings, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void GateBoard::sleep(std::uint32_t seen, std::int64_t timeout_ns) const {
  if (places_ == nullptr || timeout_ns <= 0) return;
  const timespec limit{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  ::syscall(SYS_futex, &places_[own_].wakings, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

}  // namespace shadowib
