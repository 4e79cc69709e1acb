// The part of the restorer that replaces the address space by the image's.
#include <linux/mman.h>
#include <linux/prctl.h>

#include "hooks/imager/restorer/steps.h"

#ifndef __NR_mseal
#define __NR_mseal 462
#endif
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif

namespace shadowib::restorer {
namespace {

constexpr std::uint64_t kAddressEnd = 0x7ffffffff000;

void unmap_between(RestorerArgs* args, std::uint64_t start, std::uint64_t end) {
  if (start < end) check(args, RestoreStep::kUnmap, raw::invoke(__NR_munmap, start, end - start), start);
}

// Moves the kernel's own pages first into the region, so that nothing is in the way of anything, then to their place.
void clear_address_space(RestorerArgs* args) {
  for (std::uint32_t i = 0; i < args->vdso_count; ++i) {
    const RestorerVdsoPiece& v = args->vdso[i];
    const long result = raw::invoke(__NR_mremap, v.from, v.length, v.length, 1 | 2 /* MAYMOVE | FIXED */, v.staging);
    check(args, RestoreStep::kMoveVdso, result, v.from);
  }
  unmap_between(args, 0, args->region_start);
  unmap_between(args, args->region_start + args->region_bytes, kAddressEnd);
  for (std::uint32_t i = 0; i < args->vdso_count; ++i) {
    const RestorerVdsoPiece& v = args->vdso[i];
    if (v.to == v.staging) continue;
    const long result = raw::invoke(__NR_mremap, v.staging, v.length, v.length, 1 | 2, v.to);
    check(args, RestoreStep::kMoveVdso, result, v.to);
  }
  if (args->vdso_copy == nullptr) return;
  const std::uint64_t at = args->vdso_copy_at;
  check(args, RestoreStep::kMoveVdso,
        raw::invoke(__NR_mmap, at, args->vdso_copy_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
        at);
  for (std::uint64_t i = 0; i < args->vdso_copy_bytes; ++i)
    reinterpret_cast<volatile std::uint8_t*>(at)[i] = args->vdso_copy[i];
  check(args, RestoreStep::kMoveVdso, raw::invoke(__NR_mprotect, at, args->vdso_copy_bytes, PROT_READ | PROT_EXEC),
        at);
}

bool same_attachment(const RestorerMapping& a, const RestorerMapping& b) {
  return b.is_system_v != 0 && a.shmid == b.shmid &&
         a.record.start - a.record.offset == b.record.start - b.record.offset;
}

// All pieces that the program had of one attachment, at the first of them: shmdt finds those that were made together.
void attach(RestorerArgs* args, const RestorerMapping* first) {
  constexpr std::uint32_t kReadOnly = 010000, kExecute = 0100000;  // SHM_RDONLY, SHM_EXEC
  const RestorerMapping *begin = args->mappings, *end = begin + args->mapping_count;
  for (const RestorerMapping* m = begin; m < first; ++m)
    if (same_attachment(*first, *m)) return;
  std::uint32_t flags = kReadOnly;
  for (const RestorerMapping* m = first; m < end; ++m) {
    if (!same_attachment(*first, *m)) continue;
    if (m->record.file_mode != 0) flags &= ~kReadOnly;
    if ((m->record.protection & PROT_EXEC) != 0) flags |= kExecute;
  }
  const std::uint64_t whole = args->attach_at;
  check(args, RestoreStep::kMap, raw::invoke(__NR_shmat, first->shmid, whole, flags), first->record.start);
  for (const RestorerMapping* m = first; m < end; ++m) {
    const MappingRecord& r = m->record;
    if (!same_attachment(*first, *m)) continue;
    const long at =
        raw::invoke(__NR_mremap, whole + r.offset, r.length, r.length, 1 | 2 /* MAYMOVE | FIXED */, r.start);
    check(args, RestoreStep::kMap, at, r.start);
    check(args, RestoreStep::kProtect, raw::invoke(__NR_mprotect, r.start, r.length, r.protection), r.start);
  }
  unmap_between(args, whole, whole + first->segment_bytes);
}

void map_one(RestorerArgs* args, const RestorerMapping& m) {
  const MappingRecord& r = m.record;
  if (m.is_system_v != 0) return attach(args, &m);
  std::uint32_t protection = r.protection;
  std::uint32_t flags = (r.flags & (MAP_SHARED | MAP_PRIVATE | MAP_NORESERVE | MAP_GROWSDOWN)) | MAP_FIXED_NOREPLACE;
  if (m.fd < 0) flags |= MAP_ANONYMOUS;
  if ((r.advice & kAdviceDroppable) != 0) flags = (flags & ~(MAP_PRIVATE | MAP_SHARED)) | MAP_DROPPABLE;
  if (m.has_content != 0) protection = PROT_READ | PROT_WRITE;
  const long at = raw::invoke(__NR_mmap, r.start, r.length, protection, flags, m.fd, m.fd < 0 ? 0 : r.offset);
  check(args, RestoreStep::kMap, at, r.start);
  if (static_cast<std::uint64_t>(at) != r.start) fail(args, RestoreStep::kMap, -17 /* EEXIST */, r.start);
  // Before the content comes, so that it comes into pages of the right size.
  const std::uint32_t pages = r.advice & (kAdviceHugePage | kAdviceNoHugePage);
  if (pages != 0)
    raw::invoke(__NR_madvise, r.start, r.length, pages == kAdviceHugePage ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

// The kernel marks the mapping first and fills it then. A mark without filling fails by limits alone. Filling cannot
// reach memory behind no protection, guard regions and the end of a file: the mark stays.
void lock_mapping(RestorerArgs* args, const MappingRecord& r) {
  constexpr int kOnFault = 1;         // MLOCK_ONFAULT
  constexpr long kUnreachable = -12;  // ENOMEM
  if ((r.advice & kAdviceLocked) == 0) return;
  check(args, RestoreStep::kLock, raw::invoke(__NR_mlock2, r.start, r.length, kOnFault), r.start);
  if ((r.advice & kAdviceLockOnFault) != 0) return;
  const long filled = raw::invoke(__NR_mlock2, r.start, r.length, 0);
  if (filled != kUnreachable) check(args, RestoreStep::kLock, filled, r.start);
}

// Once it has its content: what a mapping cannot be given while it is filled.
void settle_mapping(RestorerArgs* args, const RestorerMapping& m) {
  const MappingRecord& r = m.record;
  if (m.has_content != 0 && r.protection != (PROT_READ | PROT_WRITE))
    check(args, RestoreStep::kProtect, raw::invoke(__NR_mprotect, r.start, r.length, r.protection), r.start);
  const auto advise = [args, &r](std::uint32_t bit, int advice, bool matters) {
    if ((r.advice & bit) == 0) return;
    const long result = raw::invoke(__NR_madvise, r.start, r.length, advice);
    if (matters) check(args, RestoreStep::kAdvise, result, r.start);
  };
  advise(kAdviceDontFork, MADV_DONTFORK, true);
  advise(kAdviceDontDump, MADV_DONTDUMP, true);
  advise(kAdviceWipeOnFork, MADV_WIPEONFORK, true);
  // A kernel that does not know the others does as well without them.
  advise(kAdviceMergeable, MADV_MERGEABLE, false);
  advise(kAdviceSequential, MADV_SEQUENTIAL, false);
  advise(kAdviceRandom, MADV_RANDOM, false);
  lock_mapping(args, r);
}

// Last: a sealed mapping takes no other change.
void seal_memory(RestorerArgs* args) {
  for (std::uint32_t i = 0; i < args->mapping_count; ++i) {
    const MappingRecord& r = args->mappings[i].record;
    if ((r.advice & kAdviceSealed) != 0)
      check(args, RestoreStep::kSeal, raw::invoke(__NR_mseal, r.start, r.length, 0), r.start);
  }
}

}  // namespace

void restore_memory(RestorerArgs* args) {
  clear_address_space(args);
  for (std::uint32_t i = 0; i < args->mapping_count; ++i) map_one(args, args->mappings[i]);
  read_content(args);
  for (std::uint32_t i = 0; i < args->patch_count; ++i) {
    const RestorerPatch& p = args->patches[i];
    auto* to = reinterpret_cast<volatile std::uint8_t*>(p.address);
    for (std::uint64_t byte = 0; byte < p.bytes; ++byte) to[byte] = p.from[byte];
  }
  for (std::uint32_t i = 0; i < args->mapping_count; ++i) {
    settle_mapping(args, args->mappings[i]);
    if (args->mappings[i].fd >= 0) raw::invoke(__NR_close, args->mappings[i].fd);
  }
  check(args, RestoreStep::kMemoryLayout,
        raw::invoke(__NR_prctl, PR_SET_MM, PR_SET_MM_MAP, &args->memory_map, sizeof(args->memory_map), 0), 0);
  seal_memory(args);
}

}  // namespace shadowib::restorer
