#include "ib2tcp/pinned.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "ib2tcp/engine.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/memory.h"
#include "ib2tcp/memory_window.h"

namespace shadowib::ib2tcp {

RegionFilter g_regions;

ChangedMemory::Parts::const_iterator ChangedMemory::first_at(std::uintptr_t begin) const {
  auto it = parts_.upper_bound(begin);
  if (it != parts_.begin() && std::prev(it)->second.end > begin) --it;
  return it;
}

bool ChangedMemory::touches(std::uintptr_t begin, std::uintptr_t end) const {
  auto it = first_at(begin);
  return it != parts_.end() && it->first < end;
}

bool ChangedMemory::has_gone(std::uintptr_t begin, std::uintptr_t end) const {
  for (auto it = first_at(begin); it != parts_.end() && it->first < end; ++it)
    if (it->second.state >= State::kGoing) return true;
  return false;
}

// Forgets [begin, end).
void ChangedMemory::cut(std::uintptr_t begin, std::uintptr_t end) {
  auto it = parts_.lower_bound(begin);
  if (it != parts_.begin()) {
    if (auto before = std::prev(it); before->second.end > begin) {
      if (before->second.end > end) parts_[end] = before->second;
      before->second.end = begin;
    }
  }
  while (it != parts_.end() && it->first < end) {
    if (it->second.end > end) parts_[end] = it->second;
    it = parts_.erase(it);
  }
}

ChangedMemory::State ChangedMemory::after(State state, MemoryChange change) {
  switch (change) {
    case MemoryChange::kGone:
      return std::max(state, State::kGoing);
    case MemoryChange::kWent:
      return state == State::kGoing ? State::kGone : state;
    case MemoryChange::kKept:
      return state == State::kGoing ? State::kCareful : state;
    case MemoryChange::kUsable:
      return state == State::kCareful ? State::kPlain : state;
    default:
      return std::max(state, State::kCareful);
  }
}

void ChangedMemory::change(std::uintptr_t begin, std::uintptr_t end, MemoryChange change) {
  while (begin < end) {
    const auto part = first_at(begin);
    const bool is_inside = part != parts_.end() && part->first <= begin;
    const State state = is_inside ? part->second.state : State::kPlain;
    const std::uintptr_t stop =
        part == parts_.end() ? end : std::min(end, is_inside ? part->second.end : part->first);
    if (const State next = after(state, change); next != state) set(begin, stop, next);
    begin = stop;
  }
}

// Adjacent parts of one state become one: a program may protect many pages one by one.
void ChangedMemory::set(std::uintptr_t begin, std::uintptr_t end, State state) {
  cut(begin, end);
  if (state == State::kPlain) return;
  auto after = parts_.lower_bound(begin);
  if (after != parts_.end() && after->first == end && after->second.state == state) {
    end = after->second.end;
    after = parts_.erase(after);
  }
  if (after != parts_.begin())
    if (auto before = std::prev(after); before->second.end == begin && before->second.state == state) {
      before->second.end = end;
      return;
    }
  parts_[begin] = {end, state};
}

void RegionFilter::count(const void* address, std::size_t bytes, std::int32_t step) {
  if (bytes == 0) return;
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t from = first >> kGranuleBits, to = (first + bytes - 1) >> kGranuleBits;
  const std::uintptr_t granules = std::min<std::uintptr_t>(to - from + 1, kSlots);
  for (std::uintptr_t i = 0; i < granules; ++i) counts_[(from + i) % kSlots].fetch_add(step);
}

bool RegionFilter::may_touch(const void* address, std::size_t bytes) const {
  if (bytes == 0) return false;
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t from = first >> kGranuleBits, to = (first + bytes - 1) >> kGranuleBits;
  const std::uintptr_t granules = std::min<std::uintptr_t>(to - from + 1, kSlots);
  for (std::uintptr_t i = 0; i < granules; ++i)
    if (counts_[(from + i) % kSlots].load() != 0) return true;
  return false;
}

Reach reach(const Mr& mr, void* memory, std::uint64_t bytes) {
  if (mr.changed == nullptr) return {memory, false};
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  if (mr.changed->has_gone(begin, begin + bytes)) return {nullptr, false};
  return {memory, mr.changed->touches(begin, begin + bytes)};
}

namespace {

// Opened at the first need: few programs have one.
int memory_file() {
  static int file = -1;
  if (file >= 0) return file;
  UnownedDescriptors unowned;
  const int low = ::open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  if (low >= 0) file = unowned.own(low);
  return file;
}

// What <linux/fs.h> has from Linux 6.11 on. Source: Documentation/filesystems/proc.rst, PROCMAP_QUERY.
struct MapQuery {
  std::uint64_t size, flags, address;
  std::uint64_t start, end, found, page_size, offset, inode;
  std::uint32_t major, minor, name_size, build_id_size;
  std::uint64_t name, build_id;
};
static_assert(sizeof(MapQuery) == 104);
constexpr unsigned long kMapQuery = _IOWR('f', 17, MapQuery);
constexpr std::uint64_t kReadable = 1, kWritable = 2, kThisOrNext = 0x10;

// Opened once; -1 if the kernel does not know the query.
int maps_file() {
  static int file = -2;
  if (file != -2) return file;
  UnownedDescriptors unowned;
  const int low = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  file = low < 0 ? -1 : unowned.own(low);
  MapQuery query{};
  query.size = sizeof(query);
  query.flags = kThisOrNext;
  if (file >= 0 && ::ioctl(file, kMapQuery, &query) != 0 && errno == ENOTTY) {
    g_host->close_descriptor(file);
    file = -1;
  }
  return file;
}

// The file ignores protections. Where it is not to be had, the other call at least answers an error.
bool copy_by_kernel(void* own, const void* memory, std::size_t bytes, bool writes) {
  const int file = memory_file();
  auto* at = static_cast<char*>(own);
  auto place = reinterpret_cast<std::uintptr_t>(memory);
  while (bytes > 0) {
    ssize_t n;
    if (file >= 0) {
      const auto offset = static_cast<off_t>(place);
      n = writes ? ::pwrite(file, at, bytes, offset) : ::pread(file, at, bytes, offset);
    } else {
      const iovec here{at, bytes}, there{reinterpret_cast<void*>(place), bytes};
      n = writes ? ::process_vm_writev(::getpid(), &here, 1, &there, 1, 0)
                 : ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0);
    }
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    place += static_cast<std::uintptr_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

void change_region(Mr& mr, std::uintptr_t begin, std::uintptr_t end, MemoryChange change) {
  const auto first = reinterpret_cast<std::uintptr_t>(mr.verbs.addr);
  begin = std::max(begin, first);
  end = std::min(end, first + mr.verbs.length);
  const bool takes_away =
      change != MemoryChange::kUsable && change != MemoryChange::kKept && change != MemoryChange::kWent;
  if (begin >= end || (mr.changed == nullptr && !takes_away)) return;
  // Nobody writes to a region without that right, so read-only memory serves it.
  if (change == MemoryChange::kReadOnly && (mr.access & IBV_ACCESS_LOCAL_WRITE) == 0) return;
  if (mr.changed == nullptr) mr.changed = std::make_unique<ChangedMemory>();
  mr.changed->change(begin, end, change);
  if (mr.changed->empty()) mr.changed.reset();
  mr.note_plain();
}

}  // namespace

void note_protections(Mr& mr) {
  const int file = maps_file();
  if (file < 0) return;
  const auto end = reinterpret_cast<std::uintptr_t>(mr.verbs.addr) + mr.verbs.length;
  for (auto at = reinterpret_cast<std::uintptr_t>(mr.verbs.addr); at < end;) {
    MapQuery query{};
    query.size = sizeof(query);
    query.flags = kThisOrNext;
    query.address = at;
    if (::ioctl(file, kMapQuery, &query) != 0) return;
    const std::uint64_t rights = query.found & (kReadable | kWritable);
    if (rights != (kReadable | kWritable))
      change_region(mr, query.start, query.end,
                    (rights & kReadable) != 0 ? MemoryChange::kReadOnly : MemoryChange::kProtected);
    at = query.end;
  }
}

bool read_carefully(void* to, const void* memory, std::size_t bytes) {
  return copy_by_kernel(to, memory, bytes, false);
}
bool write_carefully(void* memory, const void* from, std::size_t bytes) {
  return copy_by_kernel(const_cast<void*>(from), memory, bytes, true);
}

void memory_changes(const void* address, std::size_t bytes, MemoryChange change) {
  constexpr std::uintptr_t kPage = 4096;
  if (!g_regions.may_touch(address, bytes)) return;
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(address) & ~(kPage - 1);
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(address) + bytes + kPage - 1) & ~(kPage - 1);
  LockOrLoan lock(*g_engine);
  // First what is half done, by the memory as it still is.
  if (change != MemoryChange::kUsable && change != MemoryChange::kKept && change != MemoryChange::kWent) {
    std::vector<Link*>& links = g_engine->connected();
    for (std::size_t i = 0; i < links.size(); ++i)
      links[i]->memory_changes(reinterpret_cast<const char*>(begin), end - begin);
  }
  g_engine->regions.for_each_touching(begin, end, [=](Mr& mr) { change_region(mr, begin, end, change); });
}

}  // namespace shadowib::ib2tcp
