#include "hooks/imager/saver.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>

#include <new>

#include "hooks/imager/image_format.h"
#include "hooks/raw/text.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "hooks/threads/thread_judge.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

// libc's clone(2) by its other name, which no sanitizer intercepts.
extern "C" int __clone(int (*function)(void*), void* stack, int flags, void* argument, ...);

namespace shadowib {
namespace {

constexpr long kFutexWait = 0, kFutexWake = 1;  // of memory that processes share
constexpr std::int64_t kLookNs = 20'000'000;    // at whether the process lives
constexpr int kNice = 10, kBatch = 3;           // SCHED_BATCH
constexpr int kEverything = 0x40000000;         // __WALL

struct Launch {
  void (*function)(void*);
  void* argument;
  long pid;
  int pidfd;
};

void write_file(const char* path, const char* text) {
  const long fd = raw::invoke(__NR_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
  if (raw::failed(fd)) return;
  raw::invoke(__NR_write, fd, text, __builtin_strlen(text));
  raw::invoke(__NR_close, fd);
}

// A process group of its own, in the program's session: where the kernel shares processors between sessions
// (sched(7), autogroup), a nice value counts within one. The kernel lets a stopped process go on whose group loses
// its last parent in the session. So the maker has to be gone before.
void leave_group(long maker) {
  while (raw::invoke(__NR_getppid) == maker) raw::invoke(__NR_sched_yield);
  raw::invoke(__NR_setpgid, 0, 0);
}

// Shares the program's memory, and ends at once: its child becomes nobody's.
int in_between(void* argument) {
  auto* launch = static_cast<Launch*>(argument);
  const long maker = raw::invoke(__NR_getpid);
  const long pid = raw::invoke(__NR_clone, CLONE_FILES | CLONE_PIDFD, 0, &launch->pidfd, 0, 0);
  if (pid == 0) {
    leave_group(maker);
    launch->function(launch->argument);
    for (;;) raw::call(__NR_exit_group, 0);
  }
  launch->pid = pid;
  for (;;) raw::call(__NR_exit, 0);
}

bool has_ended(int pidfd) {
  pollfd end{pidfd, POLLIN, 0};
  const timespec now{};
  return raw::invoke(__NR_ppoll, &end, 1, &now, 0, 8) == 1;
}

}  // namespace

// Linux 5.12 and later.
bool copies_pinned_pages(const char* release) {
  const std::uint64_t major = parse_number(&release, 10);
  if (*release == '.') ++release;
  return major > 5 || (major == 5 && parse_number(&release, 10) >= 12);
}

Status judge_saver() {
  utsname kernel{};
  raw::invoke(__NR_uname, &kernel);
  if (!copies_pinned_pages(kernel.release))
    return Status(Code::kRefused, 0, "this kernel is older than Linux 5.12, and forks do not copy registered memory");
  if (place_has_filter()) return Status(Code::kRefused, 0, "the program runs under a seccomp filter");
  std::int32_t adopts = 0;
  if (raw::failed(raw::invoke(__NR_prctl, PR_GET_CHILD_SUBREAPER, &adopts, 0, 0, 0)) || adopts != 0)
    return Status(Code::kRefused, 0, "the program adopts orphans (PR_SET_CHILD_SUBREAPER)");
  return {};
}

Status Saver::prepare() {
  const long at = raw::invoke(__NR_mmap, nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  static_assert(sizeof(SaverReport) <= kPage);
  if (raw::failed(at))
    return Status::of(Code::kRefused, static_cast<int>(-at), "no memory for the saver's report (errno %ld)", -at);
  if (!own_mapping(reinterpret_cast<void*>(at), kPage)) {
    raw::invoke(__NR_munmap, at, kPage);
    return Status(Code::kRefused, ENOMEM, "no room for another mapping of shadowib");
  }
  report_ = new (reinterpret_cast<void*>(at)) SaverReport;
  return {};
}

Status Saver::start(void (*function)(void*), void* argument, void* stack) {
  Launch launch{function, argument, 0, -1};
  UnownedDescriptors unowned;
  const int between = __clone(in_between, stack, CLONE_VM | CLONE_VFORK | CLONE_FILES, &launch);
  if (between < 0) return Status::of(Code::kRefused, errno, "the kernel makes no saver: clone, errno %d", errno);
  while (raw::invoke(__NR_wait4, between, nullptr, kEverything, nullptr) == -EINTR) {
  }
  if (launch.pid < 0)
    return Status::of(Code::kRefused, static_cast<int>(-launch.pid), "the kernel makes no saver: clone, errno %ld",
                      -launch.pid);
  pid_ = static_cast<int>(launch.pid);
  const int owned = unowned.own(launch.pidfd);
  pidfd_ = owned >= 0 ? owned : unowned.own_in_place(launch.pidfd);
  if (pidfd_ < 0) {
    raw::invoke(__NR_pidfd_send_signal, launch.pidfd, SIGKILL, nullptr, 0);
    raw_close(launch.pidfd);
    return Status(Code::kRefused, EMFILE, "no descriptor number is left for the saver");
  }
  raw::invoke(__NR_madvise, report_, kPage, MADV_DONTFORK);  // a child of the program's would have it for good
  const timespec look{0, kLookNs};
  while (report_->start.load() == SaverReport::kBegins && !has_ended(pidfd_))
    raw::invoke(__NR_futex, &report_->start, kFutexWait, SaverReport::kBegins, &look, 0, 0);
  Status status;
  if (report_->start.load() == SaverReport::kBegins)
    status = Status::of(Code::kRefused, 0, "the saver (pid %d) ended before it began", pid_);
  else if (report_->start.load() == SaverReport::kRefused)
    status = report_->status;
  if (!status.ok()) end_process();
  return status;
}

// In the report: the program's own memory is being written.
void Saver::note_refusal(const Status& refusal) { report_->status = refusal; }

Status Saver::result(SaveResult* result) const {
  if (report_->end.load() == SaverReport::kSaved) {
    *result = report_->result;
    return {};
  }
  if (report_->end.load() == SaverReport::kFailed) return report_->status;
  return Status::of(Code::kAborted, ENOMEM,
                    "the process that wrote the image (pid %d) was killed, perhaps since memory ran out", pid_);
}

void Saver::end_process() {
  if (pidfd_ < 0) return;
  raw::invoke(__NR_pidfd_send_signal, pidfd_, SIGKILL, nullptr, 0);
  pollfd ended{pidfd_, POLLIN, 0};
  while (raw::invoke(__NR_ppoll, &ended, 1, nullptr, 0, 8) == -EINTR) {
  }
  close_owned_descriptor(pidfd_);
  pidfd_ = -1;
}

void Saver::end() {
  end_process();
  if (report_ == nullptr) return;
  disown_mapping(report_);
  raw::invoke(__NR_munmap, report_, kPage);
  report_ = nullptr;
}

// With the table of descriptors shared until here, none of the program's files ever had one more user.
Status Saver::become() {
  const long closed = raw::invoke(__NR_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE);
  if (raw::failed(closed))
    return Status::of(Code::kRefused, static_cast<int>(-closed), "close_range: errno %ld", -closed);
  raw::invoke(__NR_chdir, "/");
  raw::invoke(__NR_prctl, PR_SET_NAME, "shadowib-saver", 0, 0, 0);
  // A real-time class, a nice value and a binding are the program's.
  const std::int32_t no_priority = 0;
  raw::invoke(__NR_sched_setscheduler, 0, kBatch, &no_priority);
  raw::invoke(__NR_setpriority, PRIO_PROCESS, 0, kNice);
  std::uint8_t all_processors[128];
  __builtin_memset(all_processors, 0xff, sizeof(all_processors));
  raw::invoke(__NR_sched_setaffinity, 0, sizeof(all_processors), all_processors);
  const std::uint64_t no_core[2] = {0, 0};
  raw::invoke(__NR_prlimit64, 0, RLIMIT_CORE, no_core, nullptr);
  write_file("/proc/self/coredump_filter", "0");
  write_file("/proc/self/oom_score_adj", "1000");
  for (std::uintptr_t at = 0, start = 0;;) {
    std::size_t bytes = 0;
    if (!find_owned_mapping(at, ~std::uintptr_t{0} - at, &start, &bytes)) break;
    if (start != reinterpret_cast<std::uintptr_t>(report_)) raw::invoke(__NR_munmap, start, bytes);
    at = start + bytes;
  }
  return {};
}

void Saver::tell(std::uint32_t start) {
  std::uint32_t begins = SaverReport::kBegins;
  if (!report_->start.compare_exchange_strong(begins, start)) return;
  raw::invoke(__NR_futex, &report_->start, kFutexWake, 1, nullptr, 0, 0);
}

void Saver::ready() { tell(SaverReport::kReady); }

void Saver::finish(const Status& status, const SaveResult& result) {
  report_->result = result;
  report_->status = status;
  report_->end.store(status.ok() ? SaverReport::kSaved : SaverReport::kFailed);
  tell(SaverReport::kRefused);
}

}  // namespace shadowib
