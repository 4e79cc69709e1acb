#include "hooks/imager/restore/member.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/rseq.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/rseq.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "hooks/imager/restore/address_space.h"
#include "hooks/imager/restore/file_check.h"
#include "hooks/imager/restore/page_stream.h"
#include "hooks/imager/restore/recorded_files.h"
#include "hooks/imager/restore/vdso.h"
#include "hooks/imager/save/restart_mailbox.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "hooks/threads/thread_judge.h"
#include "shadowib/base/log.h"

#pragma weak __rseq_offset
#pragma weak __rseq_size

extern "C" {
extern const std::uint8_t shadowib_restorer_start[] __attribute__((visibility("hidden")));
extern const std::uint8_t shadowib_restorer_end[] __attribute__((visibility("hidden")));
}

namespace shadowib {
namespace {

constexpr std::uint64_t kMainStackBytes = 64 << 10;
constexpr std::uint64_t kPageBufferBytes = kReadsAtOnce * 2 * kPage;  // the first page of a record, and its iovecs
static_assert((kRunsPerRecord + 1) * 16 <= kPage);

// What the page cache has is read from there. A few pages, asked for without waiting, tell.
bool is_cached(int fd, std::uint64_t bytes) {
  constexpr std::uint64_t kSamples = 16;
  std::vector<std::uint8_t> page(kPage);
  std::uint64_t cached = 0;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    const iovec to{page.data(), page.size()};
    const std::uint64_t at = (bytes / kPage * i / kSamples) * kPage;
    if (::preadv2(fd, &to, 1, static_cast<off_t>(at), RWF_NOWAIT) > 0) ++cached;
  }
  return cached * 2 > kSamples;
}

// A descriptor of the image that reads past the page cache; -1 if that does not pay or cannot be.
int open_past_cache(int image_fd, std::uint64_t bytes) {
  constexpr std::uint64_t kLeast = 64 << 20;
  if (bytes < kLeast || place_has_filter() || is_cached(image_fd, bytes)) return -1;
  return ::open(("/proc/self/fd/" + std::to_string(image_fd)).c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
}

std::uint64_t round_up(std::uint64_t bytes) { return (bytes + kPage - 1) & ~(kPage - 1); }

class MemberBuilder {
 public:
  explicit MemberBuilder(const MemberStart& start)
      : start_(start),
        image_(*start.image),
        image_fd_(start.image_fd),
        status_fd_(start.status_fd),
        go_fd_(start.go_fd),
        stream_fd_(start.stream_fd) {}

  int status_fd() const { return status_fd_; }

  Status prepare() {
    SHADOWIB_TRY(start_.system_v->restore_undo(image_.descriptors));
    SHADOWIB_TRY(find_shared_memory());
    SHADOWIB_TRY(open_packs());
    std::vector<int*> keep{&image_fd_, &status_fd_, &go_fd_};
    if (stream_fd_ >= 0) keep.push_back(&stream_fd_);
    for (int& fd : pack_fds_)
      if (fd >= 0) keep.push_back(&fd);
    for (auto& [segment, backing] : shared_)
      if (backing.fd >= 0) keep.push_back(&backing.fd);
    if (start_.plan != nullptr) SHADOWIB_TRY(start_.plan->install(image_.header.member, keep));
    raise_limits();
    open_past_caches();
    SHADOWIB_TRY(restore_surroundings());
    SHADOWIB_TRY(open_files());
    SHADOWIB_TRY(read_current_mappings(&current_));
    SHADOWIB_TRY(plan_vdso(image_, current_, &vdso_));
    if (vdso_.taken.end != 0) current_.push_back({vdso_.taken, "where the vdso goes"});
    SHADOWIB_TRY(lay_out_region());
    return ask_for_pages(stream_fd_, streamed_);
  }

  [[noreturn]] void jump() {
    drop_rseq();
    const auto code = region_;
    const std::uint64_t top = main_stack_ + kMainStackBytes;
    __asm__ volatile(
        "movq %[top], %%rsp\n\t"
        "xorl %%ebp, %%ebp\n\t"
        "callq *%[code]\n\t"
        "ud2\n\t"
        :
        : [top] "r"(top), [code] "r"(code), "D"(args_)
        : "memory");
    __builtin_unreachable();
  }

 private:
  // While the paths are those of the restart command.
  Status open_packs() {
    for (const LoadedPack& pack : image_.packs) {
      pack_fds_.push_back(pack.path.empty() ? -1 : ::open(pack.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      if (!pack.path.empty() && pack_fds_.back() < 0) return file_failure("open", pack.path.c_str());
    }
    return {};
  }

  // As well: the program's root directory may have no /proc.
  void open_past_caches() {
    direct_fd_ = open_past_cache(image_fd_, image_.file_bytes);
    for (std::size_t i = 0; i < pack_fds_.size(); ++i)
      direct_pack_fds_.push_back(pack_fds_[i] < 0 ? -1
                                                  : open_past_cache(pack_fds_[i], image_.packs[i].entry.file_bytes));
  }

  Status restore_surroundings() {
    const ProcessRecord& p = image_.process;
    if (image_.root != "/" && ::chroot(image_.root.c_str()) != 0)
      return file_failure("change the root directory to", image_.root.c_str());
    if (::chdir(image_.cwd.c_str()) != 0) return file_failure("change to the working directory", image_.cwd.c_str());
    ::umask(p.umask);
    ::personality(p.personality);
    if (p.oom_score_adj != 0) write_number("/proc/self/oom_score_adj", p.oom_score_adj);
    if (p.autogroup_nice != 0) write_number("/proc/self/autogroup", p.autogroup_nice);
    if (p.has_core_dump_filter != 0) write_number("/proc/self/coredump_filter", p.core_dump_filter);
    for (int signal = 1; signal <= 64; ++signal) {
      if (signal == SIGKILL || signal == SIGSTOP) continue;
      ::syscall(SYS_rt_sigaction, signal, &image_.actions[static_cast<unsigned>(signal) - 1], nullptr, 8);
    }
    return {};
  }

  // The recorded limits come last: a program may have lowered them below what it had.
  static void raise_limits() {
    for (const auto resource : {RLIMIT_MEMLOCK, RLIMIT_AS, RLIMIT_DATA, RLIMIT_NPROC, RLIMIT_SIGPENDING}) {
      rlimit limit{};
      if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == limit.rlim_max) continue;
      limit.rlim_cur = limit.rlim_max;
      ::setrlimit(resource, &limit);
    }
  }

  // Lowering a score or a nice value needs privilege; without it the value stays as it is.
  static void write_number(const char* path, std::int64_t value) {
    const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    const std::string text = std::to_string(value);
    [[maybe_unused]] const ssize_t n = ::write(fd, text.data(), text.size());
    ::close(fd);
  }

  Status find_shared_memory() {
    for (const MappingRecord& m : image_.mappings) {
      if (m.kind != MappingKind::kSharedMemory) continue;
      SharedMemoryPlan::Backing& backing = shared_[m.file_bytes];
      if (start_.memory->find(image_.header.member, m.file_bytes, &backing) && m.offset % kPage == 0 &&
          (backing.fd >= 0 || (m.offset < backing.bytes && m.length <= round_up(backing.bytes) - m.offset)))
        continue;
      return Status::of(Code::kCorrupt, 0, "the mapping at %lx is of shared memory that the image does not tell of",
                        m.start);
    }
    return {};
  }

  // A mapping that must never be written to is made through a descriptor that cannot.
  Status map_shared_memory(const MappingRecord& m, RestorerMapping* r) {
    const SharedMemoryPlan::Backing& backing = shared_.at(m.file_bytes);
    if (backing.fd < 0) {
      r->is_system_v = 1;
      r->shmid = backing.shmid;
      r->segment_bytes = round_up(backing.bytes);
      return {};
    }
    auto [at, added] = opened_.emplace(std::pair{m.file_bytes, m.file_mode != 0}, -1);
    const std::string path = "/proc/self/fd/" + std::to_string(backing.fd);
    if (added) at->second = ::open(path.c_str(), (m.file_mode != 0 ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    r->fd = at->second;
    return r->fd >= 0 ? Status{} : file_failure("open shared memory at", path.c_str());
  }

  Status open_files() {
    SHADOWIB_TRY(open_program(image_, &exe_fd_));
    if (exe_fd_ < 0)
      log_line(LogLevel::kWarn,
               "restart: member %u: the program %s was removed before the checkpoint; /proc/self/exe leads to the "
               "restart command",
               image_.header.member, image_.exe.c_str());
    SameFiles same(image_, image_fd_, pack_fds_);
    for (std::size_t i = 0; i < image_.mappings.size(); ++i) {
      const MappingRecord& m = image_.mappings[i];
      RestorerMapping r{m, -1, 0, 0, 0, 0};
      if (m.kind == MappingKind::kSharedMemory)
        SHADOWIB_TRY(map_shared_memory(m, &r));
      else if (m.kind == MappingKind::kSharedFile)
        SHADOWIB_TRY(open_shared_file(m, image_.paths[i], &r.fd));
      else if (m.kind == MappingKind::kPrivateFile)
        r.fd = same.open(i);
      mappings_.push_back(r);
    }
    same.close_unused();
    for (const auto& [segment, backing] : shared_)
      if (backing.fd >= 0) ::close(backing.fd);
    for (const PageBatch& b : image_.batches) {
      if ((b.flags & kPagesGuard) != 0 || is_of_its_file(b)) continue;
      for (std::uint32_t i = 0; i < b.run_count; ++i) mappings_[image_.runs[b.first_run + i].mapping].has_content = 1;
    }
    return {};
  }

  // Pages of a mapping that gets them from its file.
  bool is_of_its_file(const PageBatch& b) const {
    return (b.flags & kPagesClean) != 0 && mappings_[b.mapping].fd >= 0;
  }

  // The region: code, arguments and tables, work space, stacks, and room for the vdso on its way.
  Status lay_out_region() {
    const std::uint64_t code_bytes =
        round_up(static_cast<std::uint64_t>(shadowib_restorer_end - shadowib_restorer_start));
    const std::uint64_t tables =
        round_up(sizeof(RestorerArgs) + mappings_.size() * sizeof(RestorerMapping) +
                 image_.batches.size() * sizeof(RestorerBatch) + image_.runs.size() * sizeof(PageRun) +
                 image_.threads.size() * sizeof(RestorerThread) + sizeof(ProcessRecord) + sizeof(JobInfo) +
                 image_.timers.size() * sizeof(TimerRecord) + image_.pending.size() * 128 + vdso_.copy.size() +
                 patch_bytes() + 24 * 64);
    const std::uint64_t stacks = image_.threads.size() * kRestorerThreadStack;
    const std::uint64_t total =
        code_bytes + tables + kPageBufferBytes + stacks + kMainStackBytes + vdso_.staging_bytes + kPage;
    region_ = find_hole(image_, current_, total);
    if (region_ == 0)
      return Status::of(Code::kRefused, ENOMEM,
                        "no %lu bytes of address space are free in both the image and this process", total);
    void* at = ::mmap(reinterpret_cast<void*>(region_), total, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != reinterpret_cast<void*>(region_)) return file_failure("map the restorer's region", "");
    std::memcpy(at, shadowib_restorer_start,
                static_cast<std::size_t>(shadowib_restorer_end - shadowib_restorer_start));
    if (::mprotect(at, code_bytes, PROT_READ | PROT_EXEC) != 0)
      return file_failure("make executable", "the restorer");
    cursor_ = region_ + code_bytes;
    args_ = place<RestorerArgs>(nullptr, 1);
    fill_args(total);
    if (!vdso_.copy.empty()) args_->vdso_copy = place(vdso_.copy.data(), vdso_.copy.size());
    args_->vdso_copy_at = vdso_.copy_at;
    args_->vdso_copy_bytes = vdso_.copy.size();
    cursor_ = round_up(cursor_);
    args_->page_buffers = reinterpret_cast<std::uint8_t*>(cursor_);
    cursor_ += kPageBufferBytes;
    // All at once, since each thread would take a fault for its own. Older kernels do not know how.
    ::madvise(reinterpret_cast<void*>(cursor_), stacks, MADV_POPULATE_WRITE);
    for (std::uint32_t i = 0; i < args_->thread_count; ++i, cursor_ += kRestorerThreadStack)
      threads_[i].stack = cursor_;
    main_stack_ = cursor_;
    cursor_ += kMainStackBytes;
    for (std::uint32_t i = 0; i < vdso_.piece_count; ++i) {
      args_->vdso[i] = vdso_.pieces[i];
      args_->vdso[i].staging = vdso_.pieces[i].staging + cursor_;
    }
    args_->vdso_count = vdso_.piece_count;
    return find_room_to_attach();
  }

  std::uint64_t patch_bytes() const {
    std::uint64_t bytes = start_.patches->size() * (sizeof(RestorerPatch) + 64);  // and what aligns them
    for (const MemoryPatch& p : *start_.patches) bytes += p.bytes.size();
    return bytes;
  }

  void fill_patches() {
    std::vector<RestorerPatch> patches;
    for (const MemoryPatch& p : *start_.patches)
      patches.push_back({p.address, p.bytes.size(), place(p.bytes.data(), p.bytes.size())});
    args_->patches = place(patches.data(), patches.size());
    args_->patch_count = static_cast<std::uint32_t>(patches.size());
  }

  // A System V segment is attached whole first, where nothing comes to be, and its pieces move from there.
  Status find_room_to_attach() {
    std::uint64_t most = 0;
    for (const RestorerMapping& m : mappings_) most = std::max(most, m.segment_bytes);
    if (most == 0) return {};
    current_.push_back({{region_, region_ + args_->region_bytes}, "the restorer"});
    args_->attach_at = find_hole(image_, current_, most);
    if (args_->attach_at != 0) return {};
    return Status::of(Code::kRefused, ENOMEM, "no %lu bytes of address space are free to attach shared memory at",
                      most);
  }

  template <typename T>
  T* place(const T* from, std::size_t count) {
    cursor_ = (cursor_ + 63) & ~63ull;
    auto* to = reinterpret_cast<T*>(cursor_);
    if (from != nullptr && count != 0) std::memcpy(static_cast<void*>(to), from, count * sizeof(T));
    cursor_ += count * sizeof(T);
    return to;
  }

  void fill_args(std::uint64_t total) {
    const ProcessRecord& p = image_.process;
    RestorerArgs& a = *args_;
    a.region_start = region_;
    a.region_bytes = total;
    a.status_fd = status_fd_;
    a.go_fd = go_fd_;
    a.exe_fd = exe_fd_;
    a.stream_fd = stream_fd_;
    std::vector<std::uint32_t> file_of(image_.packs.size());
    a.files[a.file_count++] = {image_fd_, direct_fd_};
    for (std::size_t i = 0; i < image_.packs.size(); ++i) {
      file_of[i] = a.file_count;
      if (const int fd = pack_fds_[i]; fd >= 0) a.files[a.file_count++] = {fd, direct_pack_fds_[i]};
    }
    a.mappings = place(mappings_.data(), mappings_.size());
    a.mapping_count = static_cast<std::uint32_t>(mappings_.size());
    std::vector<PageRun> runs;
    for (const LoadedRun& r : image_.runs) runs.push_back({r.address, r.length});
    const PageRun* placed_runs = place(runs.data(), runs.size());
    std::vector<RestorerBatch> batches;
    for (std::size_t i = 0; i < image_.batches.size(); ++i) {
      const PageBatch& b = image_.batches[i];
      if (is_of_its_file(b)) continue;
      const bool streamed = b.frame.codec != 0;
      if (streamed) streamed_.push_back(static_cast<std::uint32_t>(i));
      batches.push_back({.data_offset = b.record_offset,
                         .bytes = (b.head_pages + b.page_count) * kPage,
                         .xxh3 = b.xxh3,
                         .flags = b.flags,
                         .run_count = b.run_count,
                         .runs = placed_runs + b.first_run,
                         .file = b.pack == PageBatch::kOwnFile ? 0 : file_of[b.pack],
                         .head_pages = b.head_pages,
                         .by_pages = b.by_pages,
                         .streamed = streamed,
                         .number = static_cast<std::uint32_t>(i)});
    }
    a.checks_content = is_checked_by_headers(image_);
    a.has_avx2 = __builtin_cpu_supports("avx2") != 0;
    a.batches = place(batches.data(), batches.size());
    a.batch_count = static_cast<std::uint32_t>(batches.size());
    fill_patches();
    fill_threads();
    a.process = place(&p, 1);
    // Older kernels count up only, and newer ones do not list them in order.
    std::vector<TimerRecord> timers = image_.timers;
    std::sort(timers.begin(), timers.end(), [](const TimerRecord& x, const TimerRecord& y) { return x.id < y.id; });
    a.timers = place(timers.data(), timers.size());
    a.timer_count = static_cast<std::uint32_t>(image_.timers.size());
    const auto* pending = place(image_.pending.data(), image_.pending.size());
    a.pending = reinterpret_cast<const std::uint8_t(*)[128]>(pending);
    a.pending_count = static_cast<std::uint32_t>(image_.pending.size());
    a.mailbox_job = place(start_.job, 1);
    a.mailbox_job_bytes = a.mailbox_restorer_offset = job_info_bytes(p.mailbox_layout);
    std::uint64_t auxv_bytes = p.auxv_bytes;
    a.memory_map = {.start_code = p.start_code,
                    .end_code = p.end_code,
                    .start_data = p.start_data,
                    .end_data = p.end_data,
                    .start_brk = p.start_brk,
                    .brk = p.brk,
                    .start_stack = p.start_stack,
                    .arg_start = p.arg_start,
                    .arg_end = p.arg_end,
                    .env_start = p.env_start,
                    .env_end = p.env_end,
                    .auxv = reinterpret_cast<std::uint64_t>(a.process) + offsetof(ProcessRecord, auxv),
                    .auxv_bytes = static_cast<std::uint32_t>(auxv_bytes),
                    .exe_fd = static_cast<std::uint32_t>(exe_fd_)};
    a.set_identity = needs_identity();
    a.numbers_are_given = start_.numbers_are_given;
  }

  void fill_threads() {
    std::vector<RestorerThread> threads;
    for (const ThreadRecord& t : image_.threads) {
      const RestorerThread r{t.tid, 0, t.context, 0};
      if (t.tid == image_.process.pid)
        threads.insert(threads.begin(), r);
      else
        threads.push_back(r);
    }
    threads_ = place(threads.data(), threads.size());
    args_->threads = threads_;
    args_->thread_count = static_cast<std::uint32_t>(threads.size());
  }

  bool needs_identity() const {
    const ProcessRecord& p = image_.process;
    std::uint32_t u[3], g[3], groups[256];
    ::syscall(SYS_getresuid, &u[0], &u[1], &u[2]);
    ::syscall(SYS_getresgid, &g[0], &g[1], &g[2]);
    const long n = ::syscall(SYS_getgroups, 256, groups);
    if (std::memcmp(u, p.uid, sizeof(u)) != 0 || std::memcmp(g, p.gid, sizeof(g)) != 0) return true;
    // In a user namespace with one user supplementary groups cannot be set; those there are stay.
    if (::access("/proc/self/setgroups", R_OK) == 0 && groups_denied()) return false;
    return n != static_cast<long>(p.group_count) || std::memcmp(groups, p.groups, p.group_count * 4) != 0;
  }
  static bool groups_denied() {
    char text[8] = {};
    const int fd = ::open("/proc/self/setgroups", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const ssize_t n = ::read(fd, text, sizeof(text));
    ::close(fd);
    return n > 0 && text[0] == 'd';
  }

  // The kernel would go on writing to this thread's area, which is about to be unmapped.
  static void drop_rseq() {
    if (&__rseq_offset == nullptr || &__rseq_size == nullptr || __rseq_size == 0) return;
    auto* area = static_cast<char*>(__builtin_thread_pointer()) + __rseq_offset;
    ::syscall(SYS_rseq, area, __rseq_size > 32 ? __rseq_size : 32, RSEQ_FLAG_UNREGISTER, RSEQ_SIG);
  }

  const MemberStart& start_;
  const LoadedImage& image_;
  int image_fd_, status_fd_, go_fd_, stream_fd_, exe_fd_ = -1;
  std::vector<int> pack_fds_;  // of image_.packs; -1 for one that is not used
  int direct_fd_ = -1;         // these read past the page cache, or are -1
  std::vector<int> direct_pack_fds_;
  std::map<std::uint64_t, SharedMemoryPlan::Backing> shared_;  // by segment
  std::map<std::pair<std::uint64_t, bool>, int> opened_;       // by segment, and whether it may be written to
  std::vector<RestorerMapping> mappings_;
  std::vector<CurrentMapping> current_;
  VdsoPlan vdso_;
  std::uint64_t region_ = 0, cursor_ = 0, main_stack_ = 0;
  RestorerArgs* args_ = nullptr;
  RestorerThread* threads_ = nullptr;
  std::vector<std::uint32_t> streamed_;  // batches that come through stream_fd_
};

const char* step_name(RestoreStep step) {
  switch (step) {
    case RestoreStep::kDone:
      return "done";
    case RestoreStep::kUnmap:
      return "unmapping the restart command's memory at";
    case RestoreStep::kMoveVdso:
      return "moving the vdso at";
    case RestoreStep::kMap:
      return "mapping memory at";
    case RestoreStep::kRead:
      return "reading memory from the image at";
    case RestoreStep::kProtect:
      return "protecting memory at";
    case RestoreStep::kAdvise:
      return "advising memory at";
    case RestoreStep::kLock:
      return "locking memory at";
    case RestoreStep::kSeal:
      return "sealing memory at";
    case RestoreStep::kMemoryLayout:
      return "prctl(PR_SET_MM_MAP)";
    case RestoreStep::kThread:
      return "making thread";
    case RestoreStep::kRseq:
      return "registering restartable sequences at";
    case RestoreStep::kRobustList:
      return "setting the robust futex list at";
    case RestoreStep::kAlternateStack:
      return "setting the alternate signal stack at";
    case RestoreStep::kIdentity:
      return "setting user or group";
    case RestoreStep::kCapabilities:
      return "setting capabilities";
    case RestoreStep::kTimer:
      return "making timer";
    case RestoreStep::kPending:
      return "queueing pending signals of";
    case RestoreStep::kContext:
      return "reading the context of a thread at";
    case RestoreStep::kLimit:
      return "setting limit";
    case RestoreStep::kSchedule:
      return "setting the scheduling of thread";
    case RestoreStep::kStatePermission:
      return "asking for the use of extended processor state";
    case RestoreStep::kNumber:
      return "asking for the number";
    case RestoreStep::kDamaged:
      return "checking the image's record at";
    case RestoreStep::kPrepare:
      return "preparing";
  }
  return "an unknown step";
}

}  // namespace

void become_member(const MemberStart& start) {
  sigset_t all;
  ::sigfillset(&all);
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, nullptr, 8);
  // Lives until the restorer unmaps everything.
  auto* builder = new MemberBuilder(start);
  const Status status = builder->prepare();
  if (!status.ok()) {
    RestoreReport report{};
    report.step = RestoreStep::kPrepare;
    report.error = status.error();
    report.code = static_cast<std::int32_t>(status.code());
    std::memcpy(report.text, status.text(), sizeof(report.text));
    [[maybe_unused]] const ssize_t n = ::write(builder->status_fd(), &report, sizeof(report));
    ::_exit(127);
  }
  builder->jump();
}

Status report_status(const RestoreReport& report, const LoadedImage& image) {
  if (report.step == RestoreStep::kDone) return {};
  const unsigned member = image.header.member;
  if (report.step == RestoreStep::kPrepare)
    return Status::of(static_cast<Code>(report.code), report.error, "member %u (pid %d): %.300s", member,
                      image.process.pid, report.text);
  if (report.step == RestoreStep::kDamaged) return damaged_pages(image, image.batches.at(report.object));
  const bool denied = report.error == EPERM || report.error == EACCES;
  const char* remedy =
      report.step == RestoreStep::kMoveVdso && denied
          ? "; the kernel seals its vdso (CONFIG_MSEAL_SYSTEM_MAPPINGS): boot one that does not"
      : report.step == RestoreStep::kThread && report.error == EEXIST
          ? "; the thread id is in use in this pid namespace"
      : report.step == RestoreStep::kThread && report.error == EINVAL ? "; raise /proc/sys/kernel/pid_max above it"
      : report.step == RestoreStep::kLock && report.error == EAGAIN
          ? "; there is not enough free memory to lock it in"
      : report.step == RestoreStep::kLock ? "; raise RLIMIT_MEMLOCK (ulimit -Hl) or restart with CAP_IPC_LOCK"
      : report.step == RestoreStep::kSeal ? "; use Linux 6.10 or newer"
      : report.step == RestoreStep::kRead && (report.error == EIO || report.error == ECONNRESET)
          ? (has_compressed(image) ? "; the file cannot be read, or what decompresses its pages was killed (memory?)"
                                   : "; the file cannot be read")
      : report.error == ENOMEM                ? "; not enough memory, address space (ulimit -v) or vm.max_map_count"
      : report.step == RestoreStep::kIdentity ? "; restart as the user who ran the job"
                                              : "";
  return Status::of(denied ? Code::kPermission : Code::kRefused, report.error,
                    "member %u (pid %d) cannot be restored: %s %lx: %s%s", member, image.process.pid,
                    step_name(report.step), report.object, std::strerror(report.error), remedy);
}

}  // namespace shadowib
