#include "hooks/threads/thread_judge.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/prctl.h>
#include <signal.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "hooks/raw/tasks.h"
#include "hooks/raw/text.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "hooks/threads/stop.h"
#include "hooks/threads/thread_context.h"
#include "hooks/threads/unreadable_state.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

constexpr std::size_t kStatusBytes = 8192;
constexpr std::uint64_t kUnknown = ~std::uint64_t{0};

constexpr const char* kNamespaces[] = {"cgroup", "ipc", "mnt", "net", "pid_for_children", "time_for_children",
                                       "user",   "uts"};  // in /proc/PID/ns
constexpr int kNamespaceCount = sizeof(kNamespaces) / sizeof(kNamespaces[0]);

// All zero until it is noted, and where the kernel does not tell.
struct Place {
  bool noted;
  std::uint64_t filter_mode, filters;  // filters: kUnknown before Linux 5.9
  std::uint64_t namespaces[kNamespaceCount];
  std::uint64_t core_cookie;  // of core scheduling
};
Place g_place;

// Fields of /proc/PID/status that a thread may have alone, and what changes them in all threads.
struct Field {
  const char* name;
  const char* words;
  const char* remedy;
};
constexpr char kByLibc[] = "change them by libc's functions, which do so in all threads";
constexpr char kInAll[] = "change them before verbs are opened, or in all threads";
constexpr Field kFields[] = {
    {"Uid:", "user ids", kByLibc},
    {"Gid:", "group ids", kByLibc},
    {"Groups:", "supplementary groups", kByLibc},
    {"CapInh:", "inheritable capabilities", kInAll},
    {"CapPrm:", "permitted capabilities", kInAll},
    {"CapEff:", "effective capabilities", kInAll},
    {"CapBnd:", "bounding capabilities", kInAll},
    {"CapAmb:", "ambient capabilities", kInAll},
    {"Umask:", "an umask", "do not unshare(CLONE_FS)"},
};

std::uint64_t number_behind(const char* text, const char* name) {
  const char* at = find_line(text, name);
  if (at == nullptr) return kUnknown;
  while (*at == ' ' || *at == '\t') ++at;
  return parse_number(&at, 10);
}

// Copies the word behind `name`, for messages.
void word_behind(const char* text, const char* name, char* word, std::size_t capacity) {
  const char* at = find_line(text, name);
  std::size_t length = 0;
  while (at != nullptr && (*at == ' ' || *at == '\t')) ++at;
  while (at != nullptr && *at != '\0' && *at != '\n' && length + 1 < capacity) word[length++] = *at++;
  word[length] = '\0';
}

bool same_line(const char* a, const char* b) {
  while (*a != '\0' && *a != '\n' && *a == *b) ++a, ++b;
  return (*a == '\0' || *a == '\n') && (*b == '\0' || *b == '\n');
}

// The number in "net:[4026531840]"; 0 if it cannot be read.
std::uint64_t namespace_of(int tid, const char* name) {
  char path[64], target[64];
  std::snprintf(path, sizeof(path), "/proc/self/task/%d/ns/%s", tid, name);
  const long bytes = raw::invoke(__NR_readlinkat, AT_FDCWD, path, target, sizeof(target) - 1);
  if (bytes <= 0) return 0;
  target[bytes] = '\0';
  const char* at = target;
  while (*at != '\0' && *at != '[') ++at;
  if (*at == '[') ++at;
  return parse_number(&at, 10);
}

// 0 if the kernel has no core scheduling, or none is in force.
std::uint64_t core_cookie_of(int tid) {
  std::uint64_t cookie = 0;
  if (raw::failed(
          raw::invoke(__NR_prctl, PR_SCHED_CORE, PR_SCHED_CORE_GET, tid, PR_SCHED_CORE_SCOPE_THREAD, &cookie)))
    return 0;
  return cookie;
}

struct Judgement {
  int self;
  bool again;
  const char* own;  // status of the calling thread
  int probe;        // a descriptor of its own
  std::uint64_t probe_device, probe_inode;
  Status status;
};

Status refuse(const char* text, int tid, const char* what, const char* remedy) {
  char name[32];
  word_behind(text, "Name:", name, sizeof(name));
  return Status::of(Code::kRefused, 0, "thread %d (%s) of this process %s, which cannot be captured; %s", tid, name,
                    what, remedy);
}

enum class Sharing { kShared, kOwn, kUnknown };

// With the calling thread. kcmp(2) tells, where it may be called.
Sharing compare(const Judgement& j, int tid, int what) {
  const long order = raw::invoke(__NR_kcmp, j.self, tid, what, 0, 0);
  return order == 0 ? Sharing::kShared : order > 0 ? Sharing::kOwn : Sharing::kUnknown;
}

// A descriptor that is opened here appears in the table of every thread that shares it.
Sharing look_for_probe(const Judgement& j, int tid) {
  if (j.probe < 0) return Sharing::kUnknown;
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/task/%d/fd/%d", tid, j.probe);
  struct stat there {};
  const long found = raw::invoke(__NR_newfstatat, AT_FDCWD, path, &there, 0);
  if (found == -ENOENT) return task_state(tid) == 0 || task_state(tid) == 'Z' ? Sharing::kUnknown : Sharing::kOwn;
  if (raw::failed(found)) return Sharing::kUnknown;
  return there.st_dev == j.probe_device && there.st_ino == j.probe_inode ? Sharing::kShared : Sharing::kOwn;
}

Sharing descriptors(const Judgement& j, int tid) {
  const Sharing told = compare(j, tid, KCMP_FILES);
  return told == Sharing::kUnknown ? look_for_probe(j, tid) : told;
}

// By their names, which the kernel tells without asking a file server. Longer ones are compared as far as they fit.
bool is_elsewhere(const Judgement& j, int tid, const char* directory) {
  constexpr std::size_t kNameBytes = 1024;
  char here[kNameBytes], there[kNameBytes], path[64];
  std::snprintf(path, sizeof(path), "/proc/self/task/%d/%s", j.self, directory);
  const long here_bytes = raw::invoke(__NR_readlinkat, AT_FDCWD, path, here, sizeof(here));
  std::snprintf(path, sizeof(path), "/proc/self/task/%d/%s", tid, directory);
  const long there_bytes = raw::invoke(__NR_readlinkat, AT_FDCWD, path, there, sizeof(there));
  if (here_bytes <= 0 || there_bytes <= 0) return false;
  return here_bytes != there_bytes || std::memcmp(here, there, static_cast<std::size_t>(here_bytes)) != 0;
}

// Without kcmp(2), directories of its own show while they are others.
Sharing directories(const Judgement& j, int tid) {
  const Sharing told = compare(j, tid, KCMP_FS);
  if (told != Sharing::kUnknown) return told;
  return is_elsewhere(j, tid, "cwd") || is_elsewhere(j, tid, "root") ? Sharing::kOwn : Sharing::kUnknown;
}

// Field 9 of /proc/PID/stat; 0 if there is no such thread any more.
std::uint64_t flags_of(int tid) {
  std::uint64_t flags = 0;
  return task_stat(tid, 9, &flags) ? flags : 0;
}

// The kernel's own threads for a ring take no signal, so that a stop would wait for them in vain. They block every
// signal, and have a flag of their own.
bool serves_a_ring(const char* text, int tid) {
  constexpr std::uint64_t kNeverBlocked = 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1);
  constexpr std::uint64_t kWorkers = 0x10 | 0x4000;  // PF_IO_WORKER, PF_USER_WORKER
  const char* mask = find_line(text, "SigBlk:");
  while (mask != nullptr && (*mask == ' ' || *mask == '\t')) ++mask;
  if (mask == nullptr || parse_number(&mask, 16) != ~kNeverBlocked) return false;
  return (flags_of(tid) & kWorkers) != 0;
}

// A thread that ends has given up its descriptors and directories, which then compare as others.
bool is_ending(int tid) {
  constexpr std::uint64_t kExiting = 0x4, kGone = 0;  // PF_EXITING
  const std::uint64_t flags = flags_of(tid);
  return flags == kGone || (flags & kExiting) != 0;
}

Status judge_filters(const char* text, int tid) {
  const std::uint64_t mode = number_behind(text, "Seccomp:"), filters = number_behind(text, "Seccomp_filters:");
  if (mode == 0 || mode == kUnknown) return {};
  if (g_place.noted && mode == g_place.filter_mode && filters == g_place.filters && filters != kUnknown) return {};
  char name[32];
  word_behind(text, "Name:", name, sizeof(name));
  if (filters == kUnknown)
    return Status::of(
        Code::kRefused, 0,
        "thread %d (%s) of this process runs under a seccomp filter (mode %lu). This kernel does not tell "
        "whether the program has set it, and it cannot be captured; start the job without a filter "
        "(podman run --security-opt seccomp=unconfined), or use Linux 5.9",
        tid, name, mode);
  return Status::of(
      Code::kRefused, 0,
      "thread %d (%s) of this process runs under a seccomp filter of its own (mode %lu, %lu filters, %lu "
      "when the process was started), which cannot be captured; run the program without that sandbox",
      tid, name, mode, filters, g_place.filters);
}

Status judge_namespaces(const char* text, int tid) {
  for (int i = 0; i < kNamespaceCount; ++i) {
    const std::uint64_t now = namespace_of(tid, kNamespaces[i]);
    if (now == 0 || !g_place.noted || now == g_place.namespaces[i]) continue;
    char name[32];
    word_behind(text, "Name:", name, sizeof(name));
    return Status::of(Code::kRefused, 0,
                      "thread %d (%s) of this process has entered another %s namespace since it was started, which "
                      "cannot be captured; start the program in that namespace",
                      tid, name, kNamespaces[i]);
  }
  return {};
}

Status judge_thread(const Judgement& j, int tid) {
  char text[kStatusBytes], path[64];
  std::snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
  const long bytes = read_status_file(path, text, sizeof(text));
  if (bytes == 0 || bytes == -ENOENT || bytes == -ESRCH) return {};  // it has ended
  if (bytes < 0) return Status::of(Code::kIo, static_cast<int>(-bytes), "cannot read %s: errno %ld", path, -bytes);
  SHADOWIB_TRY(judge_filters(text, tid));
  if (serves_a_ring(text, tid)) return refuse(text, tid, "serves an io_uring", "run the program without io_uring");
  for (const Field& field : kFields) {
    const char *here = find_line(j.own, field.name), *there = find_line(text, field.name);
    if (here == nullptr || there == nullptr || same_line(here, there)) continue;
    char what[96];
    std::snprintf(what, sizeof(what), "has %s of its own", field.words);
    return refuse(text, tid, what, field.remedy);
  }
  if (directories(j, tid) == Sharing::kOwn && !is_ending(tid))
    return refuse(text, tid, "has a working directory of its own", "do not unshare(CLONE_FS)");
  if (descriptors(j, tid) == Sharing::kOwn && !is_ending(tid))
    return refuse(text, tid, "has descriptors of its own", "do not unshare(CLONE_FILES)");
  if (j.again) return {};
  if (core_cookie_of(tid) != g_place.core_cookie)
    return refuse(text, tid, "has a core scheduling cookie of its own (PR_SCHED_CORE)",
                  "set it for the shell that starts the job");
  return judge_namespaces(text, tid);
}

// /proc/PID opens with the ids for files, so a save in another's name would fail half-way.
Status judge_file_system_ids(const char* own) {
  for (const char* name : {"Uid:", "Gid:"}) {
    const char* at = find_line(own, name);
    std::uint64_t ids[4] = {};  // real, effective, saved, file system
    for (std::uint64_t& id : ids) {
      while (at != nullptr && (*at == ' ' || *at == '\t')) ++at;
      if (at != nullptr) id = parse_number(&at, 10);
    }
    if (ids[1] != ids[3])
      return Status::of(
          Code::kRefused, 0,
          "this process opens files as another %s than it runs as (setfsuid(2), setfsgid(2)), which cannot "
          "be captured; set the ids back before the checkpoint",
          name[0] == 'U' ? "user" : "group");
  }
  return {};
}

bool visit(int tid, void* arg) {
  auto* j = static_cast<Judgement*>(arg);
  j->status = judge_thread(*j, tid);
  return j->status.ok();
}

__attribute__((constructor)) void note_place_at_load() { note_place(); }

}  // namespace

void note_place() {
  char text[kStatusBytes];
  Place place{};
  if (read_status_file("/proc/thread-self/status", text, sizeof(text)) <= 0) return;
  const int tid = static_cast<int>(raw::call(__NR_gettid));
  place.noted = true;
  place.filter_mode = number_behind(text, "Seccomp:");
  place.filters = number_behind(text, "Seccomp_filters:");
  for (int i = 0; i < kNamespaceCount; ++i) place.namespaces[i] = namespace_of(tid, kNamespaces[i]);
  place.core_cookie = core_cookie_of(tid);
  g_place = place;
}

bool place_has_filter() { return g_place.noted && g_place.filter_mode != 0 && g_place.filter_mode != kUnknown; }

Status judge_threads(bool again) {
  SHADOWIB_TRY(judge_unreadable_state());
  char own[kStatusBytes];
  if (const long bytes = read_status_file("/proc/thread-self/status", own, sizeof(own)); bytes <= 0)
    return Status(Code::kPermission, static_cast<int>(-bytes), "cannot read /proc/thread-self/status; mount /proc");
  Judgement j{static_cast<int>(raw::call(__NR_gettid)), again, own, -1, 0, 0, {}};
  SHADOWIB_TRY(judge_file_system_ids(own));
  UnownedDescriptors unowned;
  j.probe = static_cast<int>(raw::invoke(__NR_openat, AT_FDCWD, "/proc/thread-self/status", O_RDONLY | O_CLOEXEC, 0));
  struct stat probe {};
  if (j.probe >= 0 && raw::invoke(__NR_fstat, j.probe, &probe) == 0) {
    j.probe_device = probe.st_dev;
    j.probe_inode = probe.st_ino;
  }
  const bool listed = for_each_task(visit, &j);
  if (j.probe >= 0) raw::invoke(__NR_close, j.probe);
  SHADOWIB_TRY(j.status);
  return listed ? Status{} : Status(Code::kIo, 0, "cannot list /proc/self/task");
}

namespace {

Status judge_parked(const ThreadContext& c, std::uint32_t secure_bits) {
  if (c.magic != kThreadContextMagic) return {};
  if (c.unknown_rseq != 0)
    return Status::of(
        Code::kRefused, 0,
        "thread %d (%s) of this process has registered restartable sequences (rseq) at an address that the "
        "kernel does not tell, which cannot be captured; register them by syscall(2) or by the C library",
        c.tid, c.name);
  if (c.keyrings[0] != 0 || c.keyrings[1] != 0)
    return Status::of(
        Code::kRefused, 0,
        "thread %d (%s) of this process has a keyring of its own (keyctl(2)), which cannot be captured; "
        "keep keys in the session's keyring",
        c.tid, c.name);
  if (c.secure_bits != secure_bits)
    return Status::of(Code::kRefused, 0,
                      "thread %d (%s) of this process has securebits of its own, which cannot be captured; %s", c.tid,
                      c.name, kInAll);
  return {};
}

}  // namespace

Status judge_parked_threads(const ParkedThread* threads, int count) {
  const long own = raw::invoke(__NR_prctl, PR_GET_SECUREBITS, 0, 0, 0, 0);
  for (int i = 0; i < count; ++i)
    SHADOWIB_TRY(judge_parked(*static_cast<const ThreadContext*>(threads[i].context),
                              own > 0 ? static_cast<std::uint32_t>(own) : 0));
  return {};
}

}  // namespace shadowib
