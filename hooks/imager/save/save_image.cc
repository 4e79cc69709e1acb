// save_image: the order of things.
//
// Everything from save_context() on runs on a scratch stack with raw system calls: the memory that goes into the
// image must not change while it is written, and the thread that writes is one of those that are saved.
#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdio>

#include "hooks/imager/image_format.h"
#include "hooks/imager/imager.h"
#include "hooks/imager/pinned_copies.h"
#include "hooks/imager/save/base_index.h"
#include "hooks/imager/save/fatal_signals.h"
#include "hooks/imager/save/image_writer.h"
#include "hooks/imager/save/mapping_table.h"
#include "hooks/imager/save/page_writer.h"
#include "hooks/imager/save/process_state.h"
#include "hooks/imager/save/restart_mailbox.h"
#include "hooks/imager/saver.h"
#include "hooks/raw/text.h"
#include "hooks/raw/x86_64/call_on_stack.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "hooks/threads/fault.h"
#include "hooks/threads/stop.h"
#include "hooks/threads/thread_context.h"
#include "shadowib/base/arena.h"
#include "shadowib/base/descriptors.h"

namespace shadowib {
namespace {

constexpr std::size_t kScratchBytes = 36 << 20;  // address space; a process of ordinary size fills about 3 MiB of it
constexpr std::size_t kStackBytes = 256 << 10;
constexpr int kMaxThreads = 16384;

std::uint32_t g_locks_future = 0;  // written before the memory is, so a restarted process has it

// What the writing function is given. Lies in the scratch.
struct SaveJob {
  const SaveRequest* request;
  SaveResult* result;
  ParkedContext* self;  // of the thread that saves, which is not parked
  Scratch* scratch;
  int fd;
  Status status;
  int directory;  // the image's
  // For the saver.
  ImageWriter* writer;
  PageWriter* pages;
  const MappingTable* table;
  char* path;           // of the image's directory
  std::uint8_t* stack;  // the end of the one for the process in between
  void* scan;           // PinnedCopies::kWorkBytes
};

constexpr int kSaverFault = 68, kWrittenFault = 69;  // Phase::kSaver and Phase::kWritten
constexpr std::size_t kPathBytes = 4096;
constexpr std::size_t kBetweenStackBytes = 64 << 10;
constexpr long kGetFs = 0x1003;                  // ARCH_GET_FS
constexpr std::uint64_t kReturned = 1 << 20;     // at once, or
constexpr std::uint64_t kMostReturns = 1 << 12;  // as many of a mapping: most of a large one may be addresses alone

// A timer that signals one thread may have run out since that thread has noted its pending signals. The context gets
// the signal as the kernel would deliver it.
void note_late_timers(const ProcessState& state, ThreadContext* c) {
  constexpr std::int32_t kThread = 4, kTimer = -2;  // SIGEV_THREAD_ID, SI_TIMER
  for (std::uint32_t i = 0; i < state.timer_count; ++i) {
    const TimerRecord& timer = state.timers[i];
    if ((timer.notify & kThread) == 0 || timer.thread != c->tid || c->pending_count == kMaxPendingPerThread) continue;
    const std::uint64_t bit = 1ull << (timer.signal - 1);
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/self/task/%d/status", c->tid);
    std::uint64_t pending = 0;
    if (!read_status_field(path, "SigPnd:", &pending) || (pending & bit) == 0) continue;
    bool known = false;
    for (std::uint32_t k = 0; k < c->pending_count; ++k)
      known = known || *reinterpret_cast<const std::int32_t*>(c->pending[k]) == timer.signal;
    if (known) continue;
    // siginfo_t: signal, errno, code; then timer id, overrun, value.
    auto* const info = reinterpret_cast<std::int32_t*>(c->pending[c->pending_count++]);
    __builtin_memset(info, 0, sizeof(c->pending[0]));
    info[0] = timer.signal;
    info[2] = kTimer;
    info[4] = timer.id;
    __builtin_memcpy(info + 6, &timer.value, sizeof(timer.value));
  }
}

// Signals that would end the process at once are taken out of `state` and of the threads' contexts.
Status list_threads(const SaveJob& job, ProcessState* state, ThreadRecord** records, std::uint32_t* count) {
  auto* parked = static_cast<ParkedThread*>(job.scratch->take(kMaxThreads * sizeof(ParkedThread)));
  if (parked == nullptr) return Status(Code::kInternal, ENOMEM, "no scratch memory for the list of threads");
  const int n = parked_threads(parked, kMaxThreads);
  if (n < 0 || n >= kMaxThreads)
    return Status::of(Code::kRefused, 0, "more than %d threads, which cannot be captured; use fewer",
                      kMaxThreads - 1);
  auto* list = static_cast<ThreadRecord*>(job.scratch->take((static_cast<unsigned>(n) + 1) * sizeof(ThreadRecord)));
  if (list == nullptr) return Status(Code::kInternal, ENOMEM, "no scratch memory for the list of threads");
  std::uint64_t blocked_by_all = ~0ull;
  for (int i = -1; i < n; ++i) {
    ParkedContext* thread = i < 0 ? job.self : static_cast<ParkedContext*>(parked[i].context);
    ThreadContext* c = thread != nullptr ? &thread->context : nullptr;
    if (c == nullptr || c->magic != kThreadContextMagic || (i >= 0 && c->tid != parked[i].tid))
      return Status::of(Code::kInternal, 0, "thread %d is parked without a context", i < 0 ? 0 : parked[i].tid);
    if (c->pending_overflow != 0)
      return Status::of(Code::kRefused, 0,
                        "thread %d (%s) has more than %d signals queued, which cannot be captured; try again when it "
                        "has taken them",
                        c->tid, c->name, kMaxPendingPerThread);
    note_late_timers(*state, c);
    c->pending_count = leave_out_fatal(c->pending, c->pending_count, state->actions, thread->program_mask,
                                       job.request->request_signals);
    blocked_by_all &= thread->program_mask;
    ThreadRecord* r = &list[(*count)++];
    r->tid = c->tid;
    r->context = reinterpret_cast<std::uint64_t>(c);
    __builtin_memcpy(r->name, c->name, sizeof(r->name));
  }
  state->pending_count = leave_out_fatal(state->pending, state->pending_count, state->actions, blocked_by_all,
                                         job.request->request_signals);
  *records = list;
  return {};
}

ImageHeader make_header(const SaveRequest& request) {
  ImageHeader h{};
  __builtin_memcpy(h.magic, kImageMagic, sizeof(h.magic));
  h.version = request.incremental                         ? kShortRuns
              : request.compression != Compression::kNone ? kCompressed
                                                          : kCheckedByHeaders;
  h.byte_order = kImageByteOrder;
  h.page_bytes = kPage;
  h.machine = 62;  // EM_X86_64
  h.member = request.member;
  h.generation = request.generation;
  __builtin_memcpy(h.set_id, request.set_id, sizeof(h.set_id));
  __builtin_memcpy(h.shadowib_version, SHADOWIB_VERSION, sizeof(SHADOWIB_VERSION));
  return h;
}

// Shared file mappings stay in their files; the files shall hold what the memory held.
Status sync_shared_files(const MappingTable& table) {
  for (std::uint32_t i = 0; i < table.count; ++i) {
    const MappingRecord& m = table.mappings[i];
    if (m.kind != MappingKind::kSharedFile || m.file_mode == 0) continue;
    const long result = raw::invoke(__NR_msync, m.start, m.length, 4 /* MS_SYNC */);
    if (result < 0)
      return Status::of(Code::kIo, static_cast<int>(-result), "cannot sync shared mapping of %s: errno %ld",
                        table.strings + m.path_offset, -result);
  }
  return {};
}

// Without a table its content would be nowhere.
Status refuse_unlisted(const MappingTable& table, const SharedList& shared) {
  for (std::uint32_t i = 0; i < table.count && shared.list == nullptr; ++i)
    if (table.mappings[i].kind == MappingKind::kSharedMemory)
      return Status::of(Code::kRefused, 0, "shared memory %s is in no table",
                        table.strings + table.mappings[i].path_offset);
  return {};
}

bool goes_by_base(const SaveRequest& request) { return request.incremental && request.base_name[0] != '\0'; }

// The index of packs stands behind all that refers to them.
Status end_base(SaveJob* job, BaseIndex* base) {
  SHADOWIB_TRY(base->close(job->result));
  return job->writer->record(RecordType::kPacks, base->packs(), base->pack_count() * sizeof(PackEntry));
}

Status write_rest(SaveJob* job, PagePart part) {
  const SaveRequest& request = *job->request;
  BaseIndex base;
  bool has_base = false;
  job->writer->begin_pages();
  if (goes_by_base(request)) {
    const Status opened = base.open(request, job->directory);
    has_base = opened.ok();
    if (has_base)
      leave_out(job->pages, &base);
    else
      std::snprintf(job->result->why_whole, sizeof(job->result->why_whole), "%.150s", opened.text());
  }
  SHADOWIB_TRY(write_pages(job->pages, *job->table, SharedList{request.shared, request.shared_count}, part));
  if (has_base) SHADOWIB_TRY(end_base(job, &base));
  job->result->page_bytes = job->writer->page_count() * kPage;
  return job->writer->finish(&job->result->bytes, job->result->xxh3);
}

// What maps a file would keep its description, and the description's locks, for longer than the program does.
void drop_what_is_written(const MappingTable& table) {
  for (std::uint32_t i = 0; i < table.count; ++i)
    if (!is_copied(table, i)) raw::invoke(__NR_munmap, table.mappings[i].start, table.mappings[i].length);
}

// The copied part has unmodified pages of libraries. They are read when the program may have changed the file.
Status refuse_changed(const MappingTable& table) {
  for (std::uint32_t i = 0; i < table.count; ++i) {
    const MappingRecord& m = table.mappings[i];
    if (m.kind != MappingKind::kPrivateFile || m.file_mtime_ns == 0 || !is_copied(table, i)) continue;
    const char* path = table.strings + m.path_offset;
    struct statx now {};
    if (raw::failed(raw::invoke(__NR_statx, AT_FDCWD, path, 0, STATX_BASIC_STATS, &now))) continue;  // removed
    if (now.stx_mtime.tv_sec * 1000000000ll + now.stx_mtime.tv_nsec != m.file_mtime_ns)
      return Status::of(Code::kAborted, 0, "library %s was changed while the image was written", path);
  }
  return {};
}

// The file that the program has made, and no other.
Status open_as_saver(SaveJob* job, const struct stat& made) {
  const SaveRequest& request = *job->request;
  const long directory = raw::invoke(__NR_openat, AT_FDCWD, job->path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
  const long fd = raw::failed(directory)
                      ? directory
                      : raw::invoke(__NR_openat, directory, request.file_name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0);
  struct stat file {};
  if (raw::failed(fd) || raw::failed(raw::invoke(__NR_fstat, fd, &file)) || file.st_dev != made.st_dev ||
      file.st_ino != made.st_ino)
    return Status::of(Code::kRefused, raw::failed(fd) ? static_cast<int>(-fd) : ESTALE,
                      "the saver cannot open image %s again in %s", request.file_name, job->path);
  job->directory = static_cast<int>(directory);
  if (!goes_by_base(request)) raw::invoke(__NR_close, directory);
  job->writer->move_to(static_cast<int>(fd));
  return {};
}

// Addresses in memory that the saver uses while it writes, and, the first of them, until its end.
constexpr std::uint32_t kNeeded = 8, kNeededAtEnd = 3;
struct NeededMemory {
  explicit NeededMemory(const SaveRequest& request)
      : at{of(&request),
           of(request.saver),
           0,
           of(request.shared),
           of(request.file_name),
           of(request.descriptors),
           of(request.base_directory),
           of(request.base_name)} {
    raw::invoke(__NR_arch_prctl, kGetFs, &at[2]);
  }
  static std::uint64_t of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }
  std::uint64_t at[kNeeded];
};

// In the saver.
Status save_as_saver(SaveJob* job) {
  Saver* saver = job->request->saver;
  struct stat made {};
  raw::invoke(__NR_fstat, job->fd, &made);
  if (const PinnedCopies* pinned = job->request->pinned; pinned != nullptr) SHADOWIB_TRY(pinned->put_in_place());
  SHADOWIB_TRY(saver->become());
  drop_what_is_written(*job->table);
  SHADOWIB_TRY(open_as_saver(job, made));
  saver->ready();
  SHADOWIB_TRY(fault_point(kSaverFault));
  const NeededMemory needed(*job->request);
  give_back(job->pages, needed.at, kNeeded);
  SHADOWIB_TRY(write_rest(job, PagePart::kCopied));
  SHADOWIB_TRY(fault_point(kWrittenFault));
  return refuse_changed(*job->table);
}

// Of the saver, as the last thing but its report: a process that ends has given its memory up, and the kernel does
// not think of it any more, long before the memory is free. A program that runs out of memory meanwhile would be
// ended instead of it.
void give_memory_back(const SaveJob& job) {
  const NeededMemory needed(*job.request);
  for (std::uint32_t i = 0; i < job.table->count; ++i) {
    const MappingRecord& m = job.table->mappings[i];
    if (m.kind != MappingKind::kAnonymous || m.length < kReturned || !is_copied(*job.table, i)) continue;
    bool is_needed = false;
    for (std::uint32_t k = 0; k < kNeededAtEnd; ++k) is_needed = is_needed || needed.at[k] - m.start < m.length;
    std::uint64_t step = kReturned;
    while (m.length / step > kMostReturns) step *= 2;
    for (std::uint64_t done = 0; !is_needed && done < m.length; done += step)
      raw::invoke(__NR_munmap, m.start + done, m.length - done < step ? m.length - done : step);
  }
}

void run_saver(void* argument) {
  auto* job = static_cast<SaveJob*>(argument);
  const Status status = save_as_saver(job);
  give_memory_back(*job);
  job->request->saver->finish(status, *job->result);
}

// The saver opens the image by its path: it has no descriptor of the program's.
Status start_saver(SaveJob* job) {
  char link[32];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", job->request->directory_fd);
  const long n = raw::invoke(__NR_readlinkat, AT_FDCWD, link, job->path, kPathBytes - 1);
  if (n <= 0 || job->path[0] != '/')
    return Status::of(Code::kRefused, static_cast<int>(n < 0 ? -n : 0), "the image's directory has no path");
  job->path[n] = '\0';
  return job->request->saver->start(run_saver, job, job->stack);
}

// Without a saver the rest is written here, and the program stands meanwhile.
Status write_with_saver(SaveJob* job, PageWriter* first) {
  SHADOWIB_TRY(write_pages(first, *job->table, SharedList{job->request->shared, job->request->shared_count},
                           PagePart::kNotCopied));
  PinnedCopies* const pinned = job->request->pinned;
  if (pinned != nullptr) pinned->take(*job->table, job->scan);
  Status refusal = start_saver(job);
  if (pinned != nullptr) pinned->let_fork();
  if (refusal.ok()) return {};
  job->request->saver->note_refusal(refusal);
  return write_rest(job, PagePart::kCopied);
}

Status write_image(SaveJob* job) {
  auto* state = static_cast<ProcessState*>(job->scratch->take(sizeof(ProcessState)));
  if (state == nullptr) return Status(Code::kInternal, ENOMEM, "no scratch memory for the state of the process");
  SHADOWIB_TRY(read_process_state(state));
  state->process.processor_level = static_cast<std::uint32_t>(job->request->processor_level);
  state->process.binds_at_start = job->request->binds_at_start;
  ThreadRecord* threads = nullptr;
  std::uint32_t thread_count = 0;
  SHADOWIB_TRY(list_threads(*job, state, &threads, &thread_count));
  ImageWriter writer;
  SHADOWIB_TRY(writer.start(job->scratch, job->fd, job->request->file_name, job->request->deadline_ns));
  SHADOWIB_TRY(writer.compress(job->scratch, job->request->compression));
  const bool hashed = job->request->incremental || job->request->compression != Compression::kNone;
  PageWriter* pages = make_page_writer(job->scratch, &writer, hashed);
  PageWriter* first = job->request->saver == nullptr ? pages : make_page_writer(job->scratch, &writer, hashed);
  auto* const stack = static_cast<std::uint8_t*>(job->scratch->take(kBetweenStackBytes, kPage));
  job->path = static_cast<char*>(job->scratch->take(kPathBytes));
  job->scan = job->scratch->take(PinnedCopies::kWorkBytes, kPage);
  if (pages == nullptr || first == nullptr || stack == nullptr || job->path == nullptr || job->scan == nullptr)
    return Status(Code::kInternal, ENOMEM, "no scratch memory for the scan of pages");
  job->stack = stack + kBetweenStackBytes;
  MappingTable table;
  const SharedList shared{job->request->shared, job->request->shared_count};
  SHADOWIB_TRY(job->request->inspected ? read_inspected_mappings(job->scratch, shared, &table)
                                       : read_mappings(job->scratch, shared, &table));
  SHADOWIB_TRY(refuse_unlisted(table, shared));
  state->process.locks_future = g_locks_future = table.locks_future;
  SHADOWIB_TRY(sync_shared_files(table));

  SHADOWIB_TRY(writer.header(make_header(*job->request)));
  SHADOWIB_TRY(writer.record(RecordType::kProcess, &state->process, sizeof(state->process)));
  SHADOWIB_TRY(writer.record(RecordType::kStrings, state->strings, state->string_bytes));
  SHADOWIB_TRY(writer.record(RecordType::kCommandLine, state->command_line, state->command_line_bytes));
  SHADOWIB_TRY(writer.record(RecordType::kThreads, threads, thread_count * sizeof(ThreadRecord)));
  SHADOWIB_TRY(writer.record(RecordType::kSignals, state->actions, sizeof(state->actions)));
  SHADOWIB_TRY(writer.record(RecordType::kPending, state->pending, state->pending_count * 128ull));
  SHADOWIB_TRY(writer.record(RecordType::kTimers, state->timers, state->timer_count * sizeof(TimerRecord)));
  SHADOWIB_TRY(writer.record(RecordType::kMappings, table.stored_count,
                             sizeof(std::uint64_t) + table.count * sizeof(MappingRecord), table.strings,
                             table.string_bytes));
  const VdsoRecord::Piece* vdso = nullptr;
  for (std::uint32_t i = 0; i < table.vdso->piece_count; ++i)
    if (__builtin_strcmp(table.vdso->pieces[i].name, "vdso") == 0) vdso = &table.vdso->pieces[i];
  SHADOWIB_TRY(writer.record(RecordType::kVdso, table.vdso, sizeof(VdsoRecord),
                             vdso == nullptr ? nullptr : reinterpret_cast<const void*>(vdso->start),
                             vdso == nullptr ? 0 : vdso->length));
  const std::string* descriptors = job->request->descriptors;
  SHADOWIB_TRY(writer.record(RecordType::kDescriptors, descriptors == nullptr ? nullptr : descriptors->data(),
                             descriptors == nullptr ? 0 : descriptors->size()));
  job->writer = &writer;
  job->pages = pages;
  job->table = &table;
  return job->request->saver == nullptr ? write_rest(job, PagePart::kAll) : write_with_saver(job, first);
}

void write_on_scratch_stack(void* argument) {
  auto* job = static_cast<SaveJob*>(argument);
  job->status = write_image(job);
}

// In the original process, first return of save_context.
__attribute__((noinline)) Status save_now(const SaveRequest& request, SaveResult* result, ParkedContext* self) {
  Scratch scratch;
  if (!scratch.map(kScratchBytes)) return Status(Code::kInternal, ENOMEM, "no memory for the imager's scratch");
  auto* stack = static_cast<std::uint8_t*>(scratch.take(kStackBytes, kPage));
  auto* job = static_cast<SaveJob*>(scratch.take(sizeof(SaveJob)));
  // The result is written while memory is, so it is kept in the scratch until the end.
  auto* local_result = static_cast<SaveResult*>(scratch.take(sizeof(SaveResult)));
  auto* local_scratch = static_cast<Scratch*>(scratch.take(sizeof(Scratch)));
  *job = SaveJob{};
  job->request = &request, job->result = local_result, job->self = self, job->scratch = local_scratch;
  const long fd = raw::invoke(__NR_openat, request.directory_fd, request.file_name,
                              O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    scratch.unmap();
    return Status::of(Code::kIo, static_cast<int>(-fd), "cannot create image %s: errno %ld", request.file_name, -fd);
  }
  job->fd = static_cast<int>(fd);
  job->directory = request.directory_fd;
  *local_scratch = scratch;
  call_on_stack(write_on_scratch_stack, job, stack + kStackBytes);
  Status status = job->status;
  const long closed = raw::invoke(__NR_close, fd);
  if (status.ok() && closed < 0)
    status = Status::of(Code::kIo, static_cast<int>(-closed), "cannot close image %s: errno %ld", request.file_name,
                        -closed);
  if (status.ok())
    *result = *local_result;
  else
    raw::invoke(__NR_unlinkat, request.directory_fd, request.file_name, 0);
  scratch.unmap();
  return status;
}

// In a restarted process: wait until no thread is in the restorer, then take it away.
__attribute__((noinline)) void after_restart(SaveOutcome* outcome, JobInfo* restart_info) {
  while (__atomic_load_n(&shadowib_threads_in_restorer, __ATOMIC_ACQUIRE) != 0) raw::call(__NR_sched_yield);
  RestartMailbox* box = &shadowib_restart_mailbox;
  raw::invoke(__NR_munmap, box->restorer_start, box->restorer_bytes);
  *restart_info = box->job;
  forget_inspection(false);
  forget_owned_descriptors(false);
  forget_owned_mappings(false);
  arena_forget_secrets();
  *outcome = SaveOutcome::kRestarted;
}

}  // namespace

// `request`, `result`, `outcome` and `restart_info` are not changed between the two returns, so they hold after both.
Status save_image(const SaveRequest& request, SaveResult* result, SaveOutcome* outcome, JobInfo* restart_info) {
  ParkedContext self;
  *outcome = SaveOutcome::kSaved;
  std::uint64_t all = ~0ull, before = 0;
  raw::invoke(__NR_rt_sigprocmask, SIG_SETMASK, &all, &before, 8);
  self.program_mask = before;
  if (save_context(&self.context) != 0) {
    after_restart(outcome, restart_info);
    raw::invoke(__NR_rt_sigprocmask, SIG_SETMASK, &before, nullptr, 8);
    return {};
  }
  Status status = save_now(request, result, &self);
  raw::invoke(__NR_rt_sigprocmask, SIG_SETMASK, &before, nullptr, 8);
  return status;
}

Status lock_mappings_to_come() {
  if (g_locks_future == 0) return {};
  std::uint64_t limit[2] = {};
  raw::invoke(__NR_prlimit64, 0, RLIMIT_MEMLOCK, nullptr, limit);
  // A program may have lowered its limit to zero afterwards.
  const std::uint64_t raised[2] = {limit[1], limit[1]};
  if (limit[0] == 0) raw::invoke(__NR_prlimit64, 0, RLIMIT_MEMLOCK, raised, nullptr);
  const long result = raw::invoke(__NR_mlockall, g_locks_future);
  if (limit[0] == 0) raw::invoke(__NR_prlimit64, 0, RLIMIT_MEMLOCK, limit, nullptr);
  if (!raw::failed(result)) return {};
  return Status::of(Code::kRefused, static_cast<int>(-result),
                    "mlockall(MCL_FUTURE) fails with errno %ld; raise RLIMIT_MEMLOCK (ulimit -Hl) or restart with "
                    "CAP_IPC_LOCK",
                    -result);
}

}  // namespace shadowib
