// Calls that change the program's mappings. The backend hears about registered memory first (base/memory_watch.h).
//
// Without a backend that wants to know, a guard costs a load and a compare. Calls that libc makes itself do not come
// by here: free() of a large block unmaps it unseen.
#include "shadowib/base/mappings.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>
#include <cstring>

#include "hooks/threads/stop.h"
#include "shadowib/base/memory_watch.h"
#include "shadowib/entry/guards/guard.h"

using shadowib::Mapping;
using shadowib::MemoryChange;
using shadowib::MemoryWatch;
using shadowib::Next;

namespace {

Next<int(void*, std::size_t)> g_munmap{"munmap"};
Next<int(void*, std::size_t, int)> g_mprotect{"mprotect"};
Next<int(void*, std::size_t, int, int)> g_pkey_mprotect{"pkey_mprotect"};
Next<void*(void*, std::size_t, int, int, int, off_t)> g_mmap{"mmap"};
Next<void*(void*, std::size_t, int, int, int, off64_t)> g_mmap64{"mmap64"};
Next<void*(void*, std::size_t, std::size_t, int, void*)> g_mremap{"mremap"};
Next<int(const void*)> g_shmdt{"shmdt"};
Next<void*(int, const void*, int)> g_shmat{"shmat"};

constexpr int kReadWrite = PROT_READ | PROT_WRITE;

// nullptr: nobody wants to know. A call of the shim's own is about memory of its own.
MemoryWatch* watch() {
  MemoryWatch* const watch = shadowib::g_memory_watch.load(std::memory_order_acquire);
  if (__builtin_expect(watch == nullptr, 1)) return nullptr;
  return shadowib::t_depth.depth == 0 ? watch : nullptr;
}

void tell(MemoryWatch* watch, const void* address, std::size_t bytes, MemoryChange change) {
  const int saved = errno;
  shadowib::Inside inside;
  watch(address, bytes, change);
  errno = saved;
}

int visit_carefully(bool (*visit)(const Mapping&, void*), void* arg) {
  const int saved = errno;
  shadowib::Inside inside;
  const int error = shadowib::visit_mappings(shadowib::MappingsOf::kAll, shadowib::kOwnMaps, visit, arg);
  errno = saved;
  return error;
}

struct Range {
  MemoryWatch* told;
  std::uintptr_t begin, end;
};

// After a call that has failed: it may have unmapped the memory before that.
void tell_kept(MemoryWatch* told, const void* address, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  Range range{told, begin, begin + bytes};
  visit_carefully(
      [](const Mapping& m, void* arg) {
        const auto* r = static_cast<Range*>(arg);
        const std::uintptr_t from = m.start > r->begin ? m.start : r->begin, to = m.end < r->end ? m.end : r->end;
        if (from < to) tell(r->told, reinterpret_cast<void*>(from), to - from, MemoryChange::kKept);
        return m.end < r->end;
      },
      &range);
}

// Runs a call that takes [address, address + bytes) away.
template <typename Call>
auto taking(const void* address, std::size_t bytes, Call call) {
  MemoryWatch* const told = watch();
  if (told == nullptr) return call();
  tell(told, address, bytes, MemoryChange::kGone);
  auto result = call();
  if (reinterpret_cast<std::intptr_t>(reinterpret_cast<void*>(result)) == -1) tell_kept(told, address, bytes);
  tell(told, address, bytes, MemoryChange::kWent);
  return result;
}

template <typename Call>
int protecting(void* address, std::size_t bytes, int protection, Call call) {
  MemoryWatch* const told = watch();
  if (told == nullptr) return call();
  const bool usable = (protection & kReadWrite) == kReadWrite;
  const bool readable = (protection & PROT_READ) != 0;
  if (!usable) tell(told, address, bytes, readable ? MemoryChange::kReadOnly : MemoryChange::kProtected);
  const int result = call();
  if (usable && result == 0) tell(told, address, bytes, MemoryChange::kUsable);
  return result;
}

template <typename Call>
void* mapping(void* address, std::size_t bytes, int flags, Call call) {
  const bool replaces = (flags & MAP_FIXED) != 0 && (flags & MAP_FIXED_NOREPLACE) != MAP_FIXED_NOREPLACE;
  return __builtin_expect(replaces, 0) ? taking(address, bytes, call) : call();
}

// A segment that shmdt(2) detaches: all of its pieces that lie where they were attached. The program may have split
// the mapping, or unmapped the first part.
struct Attachment {
  MemoryWatch* told;
  MemoryChange change;
  std::uintptr_t at;
  std::uint64_t id;
  bool found;
  std::uintptr_t begin, end;  // of the pieces found, and what lies between them
};

Attachment tell_of_attachment(MemoryWatch* told, const void* address, MemoryChange change) {
  Attachment attachment{told, change, reinterpret_cast<std::uintptr_t>(address), 0, false, 0, 0};
  visit_carefully(
      [](const Mapping& m, void* arg) {
        auto* a = static_cast<Attachment*>(arg);
        const bool segment = std::strncmp(m.name, "/SYSV", 5) == 0 && m.start >= a->at && m.start - a->at == m.offset;
        if (!segment || (a->found && m.inode != a->id)) return true;
        if (!a->found) a->begin = m.start;
        a->end = m.end;
        a->found = true;
        a->id = m.inode;
        tell(a->told, reinterpret_cast<void*>(m.start), m.end - m.start, a->change);
        return true;
      },
      &attachment);
  return attachment;
}

}  // namespace

SHADOWIB_GUARD int munmap(void* address, std::size_t bytes) noexcept {
  return taking(address, bytes, [=] { return g_munmap(address, bytes); });
}

SHADOWIB_GUARD int mprotect(void* address, std::size_t bytes, int protection) noexcept {
  return protecting(address, bytes, protection, [=] { return g_mprotect(address, bytes, protection); });
}

SHADOWIB_GUARD int pkey_mprotect(void* address, std::size_t bytes, int protection, int key) noexcept {
  return protecting(address, bytes, protection, [=] { return g_pkey_mprotect(address, bytes, protection, key); });
}

SHADOWIB_GUARD void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd, off_t at) noexcept {
  return mapping(address, bytes, flags, [=] { return g_mmap(address, bytes, protection, flags, fd, at); });
}

SHADOWIB_GUARD void* mmap64(void* address, std::size_t bytes, int protection, int flags, int fd,
                            off64_t at) noexcept {
  return mapping(address, bytes, flags, [=] { return g_mmap64(address, bytes, protection, flags, fd, at); });
}

// The pages move along, and an adapter would follow them. A region stays at its address, where nothing is any more.
SHADOWIB_GUARD void* mremap(void* old, std::size_t old_bytes, std::size_t bytes, int flags, ...) noexcept {
  va_list arguments;
  va_start(arguments, flags);
  void* const wanted = (flags & MREMAP_FIXED) != 0 ? va_arg(arguments, void*) : nullptr;
  va_end(arguments);
  const auto call = [=] { return g_mremap(old, old_bytes, bytes, flags, wanted); };
  MemoryWatch* const told = watch();
  if (told == nullptr) return call();
  if (wanted != nullptr) tell(told, wanted, bytes, MemoryChange::kGone);
  tell(told, old, old_bytes, MemoryChange::kGone);
  void* const result = call();
  if (result == MAP_FAILED) tell_kept(told, old, old_bytes);
  if (result == MAP_FAILED && wanted != nullptr) tell_kept(told, wanted, bytes);
  if (result == old) tell(told, old, bytes < old_bytes ? bytes : old_bytes, MemoryChange::kKept);
  if (wanted != nullptr) tell(told, wanted, bytes, MemoryChange::kWent);
  tell(told, old, old_bytes, MemoryChange::kWent);
  return result;
}

SHADOWIB_GUARD int shmdt(const void* address) noexcept {
  MemoryWatch* const told = watch();
  if (told == nullptr) return g_shmdt(address);
  const Attachment taken = tell_of_attachment(told, address, MemoryChange::kGone);
  const int result = g_shmdt(address);
  if (result != 0) tell_of_attachment(told, address, MemoryChange::kKept);
  // Only what this call has taken changes by it.
  if (taken.found) tell(told, reinterpret_cast<void*>(taken.begin), taken.end - taken.begin, MemoryChange::kWent);
  return result;
}

SHADOWIB_GUARD void* shmat(int id, const void* address, int flags) noexcept {
  shmid_ds segment{};
  if ((flags & SHM_REMAP) == 0 || watch() == nullptr || ::shmctl(id, IPC_STAT, &segment) != 0)
    return g_shmat(id, address, flags);
  return taking(address, segment.shm_segsz, [=] { return g_shmat(id, address, flags); });
}
