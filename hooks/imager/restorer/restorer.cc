// The restorer: a flat, position-independent piece of code that runs alone in the address space of the process to be.
//
// No libc, no relocations, no static data. It replaces everything but its own region by the image's memory, makes the
// threads, and lets each jump into its ThreadContext. It is entered once per process with all signals blocked.
#include <asm/prctl.h>
#include <asm/signal.h>
#include <linux/aio_abi.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <linux/mman.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/sched/types.h>
#include <linux/securebits.h>
#include <linux/time.h>
#include <linux/uio.h>

#include "hooks/imager/content_hash.h"
#include "hooks/imager/restorer/restorer_args.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "hooks/threads/thread_context.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#ifndef __NR_mseal
#define __NR_mseal 462
#endif
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif
#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif
#ifndef PR_TIMER_CREATE_RESTORE_IDS
#define PR_TIMER_CREATE_RESTORE_IDS 77
#endif

using namespace shadowib;

// The compiler may call these.
extern "C" void* memcpy(void* to, const void* from, unsigned long bytes) {
  void* result = to;
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
  return result;
}
extern "C" void* memset(void* to, int value, unsigned long bytes) {
  void* result = to;
  __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
  return result;
}

namespace {

constexpr std::uint64_t kAddressEnd = 0x7ffffffff000;
constexpr std::uint64_t kAllSignals = ~0ull;

[[noreturn]] void fail(RestorerArgs* args, RestoreStep step, long error, std::uint64_t object) {
  std::uint32_t expected = 0;
  if (__atomic_compare_exchange_n(&args->failed, &expected, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    args->report.step = step;
    args->report.error = static_cast<std::int32_t>(-error);
    args->report.object = object;
    raw::invoke(__NR_write, args->status_fd, &args->report, sizeof(args->report));
  }
  for (;;) raw::call(__NR_exit_group, 127);
}

inline void check(RestorerArgs* args, RestoreStep step, long result, std::uint64_t object) {
  if (raw::failed(result)) fail(args, step, result, object);
}

// --- memory ---

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

void install_guards(RestorerArgs* args, const RestorerBatch& batch) {
  for (std::uint32_t i = 0; i < batch.run_count; ++i)
    check(args, RestoreStep::kAdvise,
          raw::invoke(__NR_madvise, batch.runs[i].address, batch.runs[i].length, MADV_GUARD_INSTALL),
          batch.runs[i].address);
}

// Memory comes to be by one call for adjacent runs, in place of a fault for each page. A kernel before 5.14 refuses,
// and the read takes the faults.
void populate(const RestorerBatch& batch) {
  for (std::uint32_t i = 0; i < batch.run_count;) {
    const std::uint64_t start = batch.runs[i].address;
    std::uint64_t end = start;
    for (; i < batch.run_count && batch.runs[i].address == end; ++i) end += batch.runs[i].length;
    raw::invoke(__NR_madvise, start, end - start, MADV_POPULATE_WRITE);
  }
}

// One of the buffers for records being read.
struct ReadBuffer {
  std::uint8_t* page;  // gets the first page of the record, which has its header
  iovec* vectors;
};
ReadBuffer read_buffer(RestorerArgs* args, std::uint32_t which) {
  std::uint8_t* at = args->page_buffers + which * 2 * kPage;
  return {at, reinterpret_cast<iovec*>(at + kPage)};
}

// The first page goes to the buffer, and the others to their places.
std::uint32_t fill_vectors(const ReadBuffer& buffer, const RestorerBatch& batch) {
  buffer.vectors[0] = {buffer.page, kPage};
  for (std::uint32_t i = 0; i < batch.run_count; ++i)
    buffer.vectors[i + 1] = {reinterpret_cast<void*>(batch.runs[i].address), batch.runs[i].length};
  return batch.run_count + 1;
}

void read_in_place(RestorerArgs* args, const ReadBuffer& buffer, const RestorerBatch& batch) {
  iovec* vectors = buffer.vectors;
  const std::uint32_t count = fill_vectors(buffer, batch);
  std::uint64_t offset = batch.data_offset;
  for (std::uint32_t first = 0; first < count;) {
    const long n = raw::invoke(__NR_preadv, args->image_fd, vectors + first, count - first, offset, 0);
    if (n == -4) continue;
    if (n <= 0)
      fail(args, RestoreStep::kRead, n < 0 ? n : -5, reinterpret_cast<std::uint64_t>(vectors[first].iov_base));
    offset += static_cast<std::uint64_t>(n);
    for (auto left = static_cast<std::uint64_t>(n); left > 0 && first < count;) {
      iovec& v = vectors[first];
      const std::uint64_t step = left < v.iov_len ? left : v.iov_len;
      v.iov_base = static_cast<std::uint8_t*>(v.iov_base) + step;
      v.iov_len -= step;
      left -= step;
      if (v.iov_len == 0) ++first;
    }
  }
}

void check_content(RestorerArgs* args, const ReadBuffer& buffer, const RestorerBatch& batch) {
  if (args->checks_content == 0) return;
  constexpr std::uint64_t kHead = sizeof(RecordHeader);
  const bool avx2 = args->has_avx2 != 0;
  ContentHash hash;
  begin_hash(avx2, &hash);
  add_to_hash(avx2, &hash, buffer.page + kHead, kPage - kHead);
  for (std::uint32_t i = 0; i < batch.run_count; ++i)
    add_to_hash(avx2, &hash, reinterpret_cast<const void*>(batch.runs[i].address), batch.runs[i].length);
  if (end_hash(avx2, &hash) != batch.xxh3) fail(args, RestoreStep::kDamaged, 0, batch.data_offset);
}

void read_batch(RestorerArgs* args, const RestorerBatch& batch) {
  const ReadBuffer buffer = read_buffer(args, 0);
  populate(batch);
  read_in_place(args, buffer, batch);
  check_content(args, buffer, batch);
}

// Several records at once, past the page cache, by native asynchronous I/O.
class DirectReads {
 public:
  explicit DirectReads(RestorerArgs* args) : args_(args) {
    for (auto& batch : reading_) batch = nullptr;
  }

  // Once all mappings are there: the kernel's ring is one, and lies where there is room.
  bool start() { return args_->direct_fd >= 0 && !raw::failed(raw::invoke(__NR_io_setup, kReadsAtOnce, &context_)); }

  void read(const RestorerBatch& batch) {
    populate(batch);
    std::uint32_t free = 0;
    while (free < kReadsAtOnce && reading_[free] != nullptr) ++free;
    if (free == kReadsAtOnce) free = await();
    const ReadBuffer buffer = read_buffer(args_, free);
    iocb request{};
    request.aio_data = free;
    request.aio_lio_opcode = IOCB_CMD_PREADV;
    request.aio_fildes = static_cast<std::uint32_t>(args_->direct_fd);
    request.aio_nbytes = fill_vectors(buffer, batch);
    request.aio_buf = reinterpret_cast<std::uint64_t>(buffer.vectors);
    request.aio_offset = static_cast<std::int64_t>(batch.data_offset);
    iocb* list = &request;
    reading_[free] = &batch;
    if (raw::invoke(__NR_io_submit, context_, 1, &list) != 1) take(free, -1);
  }

  void finish() {
    for (const auto& batch : reading_)
      while (batch != nullptr) await();
    raw::invoke(__NR_io_destroy, context_);
  }

 private:
  // Takes the result of one read, and returns its buffer.
  std::uint32_t await() {
    io_event event{};
    long n;
    do n = raw::invoke(__NR_io_getevents, context_, 1, 1, &event, nullptr);
    while (n == -4);
    if (n != 1) fail(args_, RestoreStep::kRead, n, 0);
    take(static_cast<std::uint32_t>(event.data), event.res);
    return static_cast<std::uint32_t>(event.data);
  }

  // A read that got less than all is done again through the cache, and tells why if it cannot.
  void take(std::uint32_t which, long result) {
    const RestorerBatch& batch = *reading_[which];
    const ReadBuffer buffer = read_buffer(args_, which);
    if (result != static_cast<long>(batch.bytes)) read_in_place(args_, buffer, batch);
    check_content(args_, buffer, batch);
    reading_[which] = nullptr;
  }

  RestorerArgs* args_;
  std::uint64_t context_ = 0;  // aio_context_t
  const RestorerBatch* reading_[kReadsAtOnce];
};

void read_all(RestorerArgs* args) {
  DirectReads direct(args);
  const bool directly = direct.start();
  for (std::uint32_t i = 0; i < args->batch_count; ++i) {
    const RestorerBatch& b = args->batches[i];
    if ((b.flags & kPagesGuard) != 0)
      install_guards(args, b);
    else if (directly)
      direct.read(b);
    else
      read_batch(args, b);
  }
  if (directly) direct.finish();
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

void restore_memory(RestorerArgs* args) {
  clear_address_space(args);
  for (std::uint32_t i = 0; i < args->mapping_count; ++i) map_one(args, args->mappings[i]);
  read_all(args);
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

// --- the state of one thread ---

// Setting them to what they are gives the thread credentials of its own; see capabilities_are_right.
void restore_file_system_ids(const ProcessRecord& p) {
  if (p.gid[3] != p.gid[1]) raw::invoke(__NR_setfsgid, p.gid[3]);
  if (p.uid[3] != p.uid[1]) raw::invoke(__NR_setfsuid, p.uid[3]);
}

void restore_identity(RestorerArgs* args) {
  const ProcessRecord& p = *args->process;
  if (args->set_identity == 0) return restore_file_system_ids(p);
  check(args, RestoreStep::kIdentity, raw::invoke(__NR_prctl, PR_SET_KEEPCAPS, 1, 0, 0, 0), 0);
  check(args, RestoreStep::kIdentity, raw::invoke(__NR_setgroups, p.group_count, p.groups), 0);
  check(args, RestoreStep::kIdentity, raw::invoke(__NR_setresgid, p.gid[0], p.gid[1], p.gid[2]), p.gid[0]);
  check(args, RestoreStep::kIdentity, raw::invoke(__NR_setresuid, p.uid[0], p.uid[1], p.uid[2]), p.uid[0]);
  restore_file_system_ids(p);
}

std::uint64_t both(std::uint32_t low, std::uint32_t high) { return low | static_cast<std::uint64_t>(high) << 32; }

// Threads share one set of credentials in the kernel until one of them changes its own, even to the same, and then
// others may not write to what it has opened (/dev/infiniband/uverbsN asks for the very set). So what is right is
// left alone, and what is not is changed before there are other threads, if that can be.
bool capabilities_are_right(const ProcessRecord& p, const __user_cap_data_struct (&data)[2]) {
  const std::uint64_t permitted = both(data[0].permitted, data[1].permitted);
  const std::uint64_t keep = permitted & p.capabilities[1];
  if (keep != permitted || both(data[0].effective, data[1].effective) != (keep & p.capabilities[2]) ||
      both(data[0].inheritable, data[1].inheritable) != (keep & p.capabilities[0]) ||
      p.secure_bits != static_cast<std::uint32_t>(raw::invoke(__NR_prctl, PR_GET_SECUREBITS, 0, 0, 0, 0)))
    return false;
  for (unsigned cap = 0; cap < 64; ++cap) {
    const std::uint64_t bit = 1ull << cap;
    if ((p.capabilities[3] & bit) == 0 && raw::invoke(__NR_prctl, PR_CAPBSET_READ, cap, 0, 0, 0) == 1) return false;
    if ((p.capabilities[4] & keep & p.capabilities[0] & bit) != 0 &&
        raw::invoke(__NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, cap, 0, 0) != 1)
      return false;
  }
  return true;
}

// Drops to the recorded sets; never gains.
void restore_capabilities(RestorerArgs* args) {
  const ProcessRecord& p = *args->process;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  check(args, RestoreStep::kCapabilities, raw::invoke(__NR_capget, &header, data), 0);
  if (capabilities_are_right(p, data)) return;
  const std::uint64_t permitted = both(data[0].permitted, data[1].permitted);
  // After a change of user the permitted set is kept and the effective one is empty: take it up to drop bounds.
  data[0].effective = data[0].permitted;
  data[1].effective = data[1].permitted;
  raw::invoke(__NR_capset, &header, data);
  for (unsigned cap = 0; cap < 64; ++cap)
    if ((p.capabilities[3] & 1ull << cap) == 0) raw::invoke(__NR_prctl, PR_CAPBSET_DROP, cap, 0, 0, 0);
  const std::uint64_t keep = permitted & p.capabilities[1];
  const std::uint64_t effective = keep & p.capabilities[2], inheritable = keep & p.capabilities[0];
  for (int half = 0; half < 2; ++half) {
    data[half].permitted = static_cast<std::uint32_t>(keep >> (32 * half));
    data[half].effective = static_cast<std::uint32_t>(effective >> (32 * half));
    data[half].inheritable = static_cast<std::uint32_t>(inheritable >> (32 * half));
  }
  if (p.secure_bits != static_cast<std::uint32_t>(raw::invoke(__NR_prctl, PR_GET_SECUREBITS, 0, 0, 0, 0)))
    raw::invoke(__NR_prctl, PR_SET_SECUREBITS, p.secure_bits, 0, 0, 0);
  check(args, RestoreStep::kCapabilities, raw::invoke(__NR_capset, &header, data), 0);
  const std::uint32_t keeps = (p.secure_bits & SECBIT_KEEP_CAPS) != 0;
  if (static_cast<std::uint32_t>(raw::invoke(__NR_prctl, PR_GET_KEEPCAPS, 0, 0, 0, 0)) != keeps)
    raw::invoke(__NR_prctl, PR_SET_KEEPCAPS, keeps, 0, 0, 0);
  for (unsigned cap = 0; cap < 64; ++cap)
    if ((p.capabilities[4] & inheritable & 1ull << cap) != 0)
      raw::invoke(__NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0);
}

bool credentials_are_right(const RestorerArgs& args) {
  const ProcessRecord& p = *args.process;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  return args.set_identity == 0 && p.gid[3] == p.gid[1] && p.uid[3] == p.uid[1] &&
         raw::invoke(__NR_capget, &header, data) == 0 && capabilities_are_right(p, data);
}

// Asked once, so that a thread need not set what it has.
void note_inherited(RestorerInherited* i) {
  for (int which = 0; which < 3; ++which)
    i->speculation[which] =
        static_cast<std::uint32_t>(raw::invoke(__NR_prctl, PR_GET_SPECULATION_CTRL, which, 0, 0, 0));
  const long bytes = raw::invoke(__NR_sched_getaffinity, 0, sizeof(i->affinity), i->affinity);
  i->affinity_bytes = raw::failed(bytes) ? 0 : static_cast<std::uint32_t>(bytes);
  const long slack = raw::invoke(__NR_prctl, PR_GET_TIMERSLACK, 0, 0, 0, 0);
  i->timer_slack_ns = raw::failed(slack) ? 0 : static_cast<std::uint64_t>(slack);
}

bool same_affinity(const RestorerInherited& i, const ThreadContext& c) {
  if (i.affinity_bytes != c.affinity_bytes) return false;
  for (std::uint32_t byte = 0; byte < c.affinity_bytes; ++byte)
    if (i.affinity[byte] != c.affinity[byte]) return false;
  return true;
}

void restore_scheduling(RestorerArgs* args, const ThreadContext& c) {
  const RestorerInherited& inherited = args->inherited;
  if (c.affinity_bytes != 0 && !same_affinity(inherited, c))
    raw::invoke(__NR_sched_setaffinity, 0, c.affinity_bytes, c.affinity);
  if (c.timer_slack_ns != 0 && c.timer_slack_ns != inherited.timer_slack_ns)
    raw::invoke(__NR_prctl, PR_SET_TIMERSLACK, c.timer_slack_ns, 0, 0, 0);
  constexpr std::uint64_t kResetOnFork = 1, kDeadlineFlags = 1 | 2 | 4, kUtilizationFlags = 0x60;
  constexpr int kDeadline = 6;
  const bool newer = c.magic == kThreadContextMagic;
  // A kernel without utilization limits tells 0 and 0, one with them 0 and 1,024.
  const bool limited = newer && (c.utilization_limits[0] != 0 || c.utilization_limits[1] % 1024 != 0);
  if (c.scheduler_policy == 0 && c.nice == 0 && (c.scheduler_flags & kResetOnFork) == 0 && !limited) return;
  sched_attr attr{};
  attr.size = limited ? 56 : 48;
  attr.sched_policy = c.scheduler_policy;
  attr.sched_nice = c.nice;
  attr.sched_priority = c.scheduler_priority;
  attr.sched_flags = c.scheduler_flags & kResetOnFork;
  if (newer && c.scheduler_policy == kDeadline) {
    attr.sched_flags = c.scheduler_flags & kDeadlineFlags;
    attr.sched_runtime = c.scheduler_runtime_ns;
    attr.sched_deadline = c.scheduler_deadline_ns;
    attr.sched_period = c.scheduler_period_ns;
  }
  if (limited) {
    attr.sched_flags |= kUtilizationFlags;
    attr.sched_util_min = c.utilization_limits[0];
    attr.sched_util_max = c.utilization_limits[1];
  }
  long result = raw::invoke(__NR_sched_setattr, 0, &attr, 0);
  if (limited && raw::failed(result)) {  // a kernel may have no utilization limits, which are hints
    attr.size = 48;
    attr.sched_flags &= ~kUtilizationFlags;
    result = raw::invoke(__NR_sched_setattr, 0, &attr, 0);
  }
  // A better priority than this user may have is not worth a refusal; any other failure is.
  if (raw::failed(result) && result != -1 /* EPERM */) fail(args, RestoreStep::kSchedule, result, c.tid);
}

// Hints and protections that another kernel or machine may not have: what it refuses stays as it is.
void restore_options(RestorerArgs* args, const ThreadContext& c) {
  constexpr int kThisThread = 1;          // IOPRIO_WHO_PROCESS
  constexpr std::uint32_t kCanBeSet = 1;  // PR_SPEC_PRCTL
  if (c.io_priority >> 13 != 0) raw::invoke(__NR_ioprio_set, kThisThread, 0, c.io_priority);
  if (c.memory_policy != 0)
    raw::invoke(__NR_set_mempolicy, c.memory_policy, c.memory_nodes, sizeof(c.memory_nodes) * 8);
  if (c.machine_check_policy != PR_MCE_KILL_DEFAULT)
    raw::invoke(__NR_prctl, PR_MCE_KILL, PR_MCE_KILL_SET, c.machine_check_policy, 0, 0);
  if (c.io_flusher != 0) raw::invoke(__NR_prctl, PR_SET_IO_FLUSHER, 1, 0, 0, 0);
  for (int which = 0; which < 3; ++which) {
    const std::uint32_t value = c.speculation[which];
    if ((value & kCanBeSet) != 0 && value != args->inherited.speculation[which])
      raw::invoke(__NR_prctl, PR_SET_SPECULATION_CTRL, which, value & ~kCanBeSet, 0, 0);
  }
}

// A process that no member has made has the supervisor's, which ends it with the restart command. (A change of user
// takes it away, but they are in a namespace of processes that ends with it.)
void restore_death_signal(const ThreadContext& c) {
  int now = 0;
  if (c.death_signal == 0) return;
  raw::invoke(__NR_prctl, PR_GET_PDEATHSIG, &now, 0, 0, 0);
  if (now == 0) raw::invoke(__NR_prctl, PR_SET_PDEATHSIG, c.death_signal, 0, 0, 0);
}

void restore_thread_state(RestorerArgs* args, const ThreadContext& c) {
  const bool newer = c.magic == kThreadContextMagic;
  if (!newer && c.magic != kFirstThreadContextMagic)
    fail(args, RestoreStep::kContext, 0, reinterpret_cast<std::uint64_t>(&c));
  raw::invoke(__NR_set_tid_address, c.clear_child_tid);
  if (c.robust_list_head != 0)
    check(args, RestoreStep::kRobustList, raw::invoke(__NR_set_robust_list, c.robust_list_head, c.robust_list_bytes),
          c.robust_list_head);
  if (c.altstack_bytes != 0) {
    stack_t alternate{};
    alternate.ss_sp = reinterpret_cast<void*>(c.altstack_address);
    alternate.ss_size = c.altstack_bytes;
    alternate.ss_flags = c.altstack_flags;
    check(args, RestoreStep::kAlternateStack, raw::invoke(__NR_sigaltstack, &alternate, nullptr), c.altstack_address);
  }
  raw::invoke(__NR_prctl, PR_SET_NAME, c.name, 0, 0, 0);
  restore_scheduling(args, c);
  if (c.gs_base != 0) raw::invoke(__NR_arch_prctl, ARCH_SET_GS, c.gs_base);
  for (std::uint32_t i = 0; i < c.pending_count; ++i)
    check(args, RestoreStep::kPending,
          raw::invoke(__NR_rt_tgsigqueueinfo, args->process->pid, c.tid,
                      *reinterpret_cast<const std::int32_t*>(c.pending[i]), c.pending[i]),
          c.tid);
  if (args->has_credentials == 0) {
    restore_identity(args);
    restore_capabilities(args);
  }
  restore_death_signal(c);  // which a change of user takes away
  if (newer) restore_options(args, c);
  if ((newer ? c.no_new_privileges : args->process->no_new_privileges) != 0)
    raw::invoke(__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  // Last: from here on the kernel writes into the restored memory.
  if (c.rseq_area != 0)
    check(args, RestoreStep::kRseq, raw::invoke(__NR_rseq, c.rseq_area, c.rseq_bytes, 0, c.rseq_signature),
          c.rseq_area);
}

// --- threads ---

void wait_for(std::uint32_t* word, std::uint32_t value) {
  for (;;) {
    const std::uint32_t now = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if (now == value) return;
    raw::invoke(__NR_futex, word, FUTEX_WAIT, now, nullptr, nullptr, 0);
  }
}

[[noreturn]] void enter_context(const ThreadContext* c) {
  __asm__ volatile("jmpq *%[entry]" : : [entry] "r"(c->resume_entry), "D"(c) : "memory");
  __builtin_unreachable();
}

struct ThreadStart {
  RestorerArgs* args;
  const RestorerThread* thread;
};

extern "C" [[noreturn]] void restorer_thread(RestorerArgs* args, const RestorerThread* thread) {
  const auto* c = reinterpret_cast<const ThreadContext*>(thread->context);
  restore_thread_state(args, *c);
  if (__atomic_add_fetch(&args->threads_ready, 1, __ATOMIC_ACQ_REL) == args->thread_count - 1)
    raw::invoke(__NR_futex, &args->threads_ready, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  wait_for(&args->released, 1);
  enter_context(c);
}

long clone_thread(clone_args* how, RestorerArgs* args, const RestorerThread* thread) {
  register RestorerArgs* a __asm__("r12") = args;
  register const RestorerThread* t __asm__("r13") = thread;
  long result;
  __asm__ volatile(
      "syscall\n\t"
      "testq %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xorl %%ebp, %%ebp\n\t"
      "movq %%r12, %%rdi\n\t"
      "movq %%r13, %%rsi\n\t"
      "callq restorer_thread\n\t"
      "ud2\n\t"
      "1:\n\t"
      : "=a"(result)
      : "a"(__NR_clone3), "D"(how), "S"(sizeof(*how)), "r"(a), "r"(t)
      : "rcx", "r11", "memory");
  return result;
}

// The supervisor sees to it that the next thread made in this pid namespace has that number: this one may not choose
// any more.
void ask_for_number(RestorerArgs* args, std::int32_t tid) {
  RestoreReport& request = args->report;
  request.step = RestoreStep::kNumber;
  request.object = static_cast<std::uint64_t>(tid);
  raw::invoke(__NR_write, args->status_fd, &request, sizeof(request));
  char given = 0;
  long n;
  do n = raw::invoke(__NR_read, args->go_fd, &given, 1);
  while (n == -4);
  if (n != 1) raw::call(__NR_exit_group, 127);  // the supervisor gave up
}

void make_threads(RestorerArgs* args) {
  for (std::uint32_t i = 1; i < args->thread_count; ++i) {
    const RestorerThread& t = args->threads[i];
    const auto* c = reinterpret_cast<const ThreadContext*>(t.context);
    std::int32_t tid = t.tid;
    clone_args how{};
    how.flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
    how.stack = t.stack;
    how.stack_size = kRestorerThreadStack;
    how.tls = c->fs_base;
    if (args->asks_for_numbers != 0) {
      ask_for_number(args, tid);
    } else {
      how.set_tid = reinterpret_cast<std::uint64_t>(&tid);
      how.set_tid_size = 1;
    }
    const long made = clone_thread(&how, args, &t);
    check(args, RestoreStep::kThread, made, static_cast<std::uint64_t>(t.tid));
    if (made != t.tid) fail(args, RestoreStep::kThread, -17 /* EEXIST */, static_cast<std::uint64_t>(t.tid));
  }
}

// --- the process ---

struct SigEvent {  // sigevent of the kernel
  std::uint64_t value;
  std::int32_t signal, notify, thread;
  std::int32_t unused[11];
};
static_assert(sizeof(SigEvent) == 64);

void make_timer(RestorerArgs* args, const TimerRecord& t) {
  SigEvent event{};
  event.value = t.value;
  event.signal = t.signal;
  event.notify = t.notify;
  event.thread = t.thread;
  std::int32_t id = t.id;
  const bool restores_ids = raw::invoke(__NR_prctl, PR_TIMER_CREATE_RESTORE_IDS, 1, 0, 0, 0) == 0;
  long result = raw::invoke(__NR_timer_create, t.clock, &event, &id);
  // Older kernels count up from zero: make and delete until the number comes.
  while (!restores_ids && result == 0 && id < t.id) {
    raw::invoke(__NR_timer_delete, id);
    result = raw::invoke(__NR_timer_create, t.clock, &event, &id);
  }
  if (restores_ids) raw::invoke(__NR_prctl, PR_TIMER_CREATE_RESTORE_IDS, 0, 0, 0, 0);
  if (result == 0 && id != t.id) result = -17;
  check(args, RestoreStep::kTimer, result, t.id);
  const std::int64_t when[4] = {t.interval_s, t.interval_ns, t.remaining_s, t.remaining_ns};
  check(args, RestoreStep::kTimer, raw::invoke(__NR_timer_settime, t.id, 0, when, nullptr), t.id);
}

void restore_limits(const ProcessRecord& p) {
  for (std::uint64_t resource = 0; resource < 16; ++resource) {
    std::uint64_t limit[2] = {p.limits[resource][0], p.limits[resource][1]}, now[2] = {};
    if (raw::invoke(__NR_prlimit64, 0, resource, limit, nullptr) == 0) continue;
    // A hard limit cannot be raised without privilege: take what there is.
    raw::invoke(__NR_prlimit64, 0, resource, nullptr, now);
    limit[1] = now[1];
    if (limit[0] > limit[1]) limit[0] = limit[1];
    raw::invoke(__NR_prlimit64, 0, resource, limit, nullptr);
  }
}

// While this is the only thread: those it makes share its credentials. Limits first, which may need privilege to be
// raised.
void take_credentials(RestorerArgs* args) {
  args->has_credentials = credentials_are_right(*args);
  if (args->has_credentials != 0 || args->numbers_are_given == 0) return;
  restore_limits(*args->process);
  restore_identity(args);
  restore_capabilities(args);
  args->has_credentials = args->asks_for_numbers = 1;
}

// Of state that is large and so is granted on demand (AMX). Before there are other threads. Every other component is
// there from the start or not at all, and fit_to_processor judges which of them the image needs.
void restore_state_permission(RestorerArgs* args) {
  constexpr std::uint32_t kTileData = 18;
  std::uint64_t now = 0;
  if (raw::failed(raw::invoke(__NR_arch_prctl, ARCH_GET_XCOMP_PERM, &now))) return;
  if ((args->process->state_permission & ~now & 1ull << kTileData) != 0)
    check(args, RestoreStep::kStatePermission, raw::invoke(__NR_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData),
          kTileData);
}

// In an older kernel less is disabled than wished, or more: pages of a size that is advised are of use, not of need.
void restore_memory_state(const ProcessRecord& p) {
  const std::uint32_t huge_pages = p.thp_disabled;  // 1, and flags since Linux 6.18
  if (huge_pages != 0 && raw::failed(raw::invoke(__NR_prctl, PR_SET_THP_DISABLE, 1, huge_pages & ~1u, 0, 0)))
    raw::invoke(__NR_prctl, PR_SET_THP_DISABLE, 1, 0, 0, 0);
  for (std::uint32_t bit = 1; bit != 0; bit <<= 1)
    if ((p.memory_barriers & bit) != 0)
      raw::invoke(__NR_membarrier, bit, 0, 0);  // a kernel without it refuses the program's barriers as well
  if (p.merges_memory != 0) raw::invoke(__NR_prctl, PR_SET_MEMORY_MERGE, 1, 0, 0, 0);
  if (p.denied_execution != 0) raw::invoke(__NR_prctl, PR_SET_MDWE, p.denied_execution, 0, 0, 0);
}

// What belongs to the process and starts to run, or to be in the way, when it is set.
void restore_process_state(RestorerArgs* args) {
  const ProcessRecord& p = *args->process;
  for (std::uint32_t i = 0; i < args->timer_count; ++i) make_timer(args, args->timers[i]);
  for (int which = 0; which < 3; ++which)
    if ((p.interval_timers[which][2] | p.interval_timers[which][3]) != 0)
      check(args, RestoreStep::kTimer, raw::invoke(__NR_setitimer, which, p.interval_timers[which], nullptr), which);
  for (std::uint32_t i = 0; i < args->pending_count; ++i)
    check(args, RestoreStep::kPending,
          raw::invoke(__NR_rt_sigqueueinfo, p.pid, *reinterpret_cast<const std::int32_t*>(args->pending[i]),
                      args->pending[i]),
          0);
  if (args->asks_for_numbers == 0) restore_limits(p);
  if (p.child_subreaper != 0) raw::invoke(__NR_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  restore_memory_state(p);
}

void fill_mailbox(RestorerArgs* args) {
  const ProcessRecord& p = *args->process;
  memcpy(reinterpret_cast<void*>(p.mailbox_address), args->mailbox_job, args->mailbox_job_bytes);
  auto* region = reinterpret_cast<std::uint64_t*>(p.mailbox_address + args->mailbox_restorer_offset);
  region[0] = args->region_start;
  region[1] = args->region_bytes;
  *reinterpret_cast<std::uint32_t*>(p.threads_in_restorer_address) = args->thread_count;
}

// Tells the supervisor that this process stands, and waits for the others.
void wait_for_go(RestorerArgs* args) {
  args->report.step = RestoreStep::kDone;
  raw::invoke(__NR_write, args->status_fd, &args->report, sizeof(args->report));
  char go = 0;
  long n;
  do n = raw::invoke(__NR_read, args->go_fd, &go, 1);
  while (n == -4);
  if (n != 1) raw::call(__NR_exit_group, 127);  // the supervisor gave up
  raw::invoke(__NR_close, args->status_fd);
  raw::invoke(__NR_close, args->go_fd);
}

}  // namespace

extern "C" __attribute__((section(".text.entry"))) [[noreturn]] void restorer_main(RestorerArgs* args) {
  raw::invoke(__NR_rt_sigprocmask, 2 /* SIG_SETMASK */, &kAllSignals, nullptr, 8);
  restore_memory(args);
  raw::invoke(__NR_close, args->image_fd);
  if (args->direct_fd >= 0) raw::invoke(__NR_close, args->direct_fd);
  if (args->exe_fd >= 0) raw::invoke(__NR_close, args->exe_fd);
  fill_mailbox(args);
  take_credentials(args);
  note_inherited(&args->inherited);
  restore_state_permission(args);
  make_threads(args);
  const auto* c = reinterpret_cast<const ThreadContext*>(args->threads[0].context);
  check(args, RestoreStep::kThread, raw::invoke(__NR_arch_prctl, ARCH_SET_FS, c->fs_base), c->fs_base);
  restore_process_state(args);
  restore_thread_state(args, *c);
  // Dropping credentials made the process undumpable; that is per process and comes when all threads have done so.
  wait_for(&args->threads_ready, args->thread_count - 1);
  if (args->process->dumpable <= 1) raw::invoke(__NR_prctl, PR_SET_DUMPABLE, args->process->dumpable, 0, 0, 0);
  wait_for_go(args);
  __atomic_store_n(&args->released, 1, __ATOMIC_RELEASE);
  raw::invoke(__NR_futex, &args->released, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
  enter_context(c);
}
