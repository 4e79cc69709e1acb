// check_capturable: what of memory and process state stands in the way of a checkpoint.
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "hooks/imager/imager.h"
#include "hooks/imager/save/mapping_table.h"
#include "hooks/imager/save/process_state.h"
#include "hooks/raw/directory_reader.h"
#include "hooks/raw/text.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "hooks/threads/thread_judge.h"

namespace shadowib {
namespace {

Status check_status_file() {
  char text[8192];
  const long bytes = read_status_file("/proc/self/status", text, sizeof(text));
  if (bytes <= 0)
    return Status(Code::kPermission, static_cast<int>(-bytes), "cannot read /proc/self/status; mount /proc");
  const auto number = [&text](const char* name) -> std::uint64_t {
    const char* at = find_line(text, name);
    if (at == nullptr) return 0;
    while (*at == ' ' || *at == '\t') ++at;
    return parse_number(&at, 10);
  };
  if (const std::uint64_t tracer = number("TracerPid:"); tracer != 0)
    return Status::of(Code::kRefused, 0, "this process is traced by process %lu (a debugger or strace); detach it",
                      tracer);
  if (const char* mask = find_line(text, "untag_mask:")) {
    while (*mask == ' ' || *mask == '\t') ++mask;
    constexpr std::uint64_t kAllBits = ~0ull;
    const char* digits = mask + 2;  // 0x
    if (parse_number(&digits, 16) != kAllBits)
      return Status(
          Code::kRefused, 0,
          "this process keeps tags in addresses (ARCH_ENABLE_TAGGED_ADDR), which cannot be captured; start it "
          "without");
  }
  if (const char* features = find_line(text, "x86_Thread_features:")) {
    for (; *features != '\0' && *features != '\n'; ++features)
      if (features[0] == 's' && features[1] == 'h' && features[2] == 's')
        return Status(Code::kRefused, 0,
                      "this process has a shadow stack, which cannot be captured; start it with "
                      "GLIBC_TUNABLES=glibc.cpu.x86_shstk=off");
  }
  return {};
}

// A restart's own first process has pid 1.
Status check_number() {
  if (raw::call(__NR_getpid) != 1) return {};
  return Status(
      Code::kRefused, 0,
      "this process has pid 1, as the first process of a container, which a restart could not give it; start it "
      "by shadowib run, or with an init (podman run --init, docker run --init)");
}

// A restart changes to the directory by its name. The kernel marks the name of a removed one.
Status check_directory(const char* link, const char* what) {
  constexpr char kRemoved[] = " (deleted)";
  constexpr long kMark = sizeof(kRemoved) - 1;
  char path[4096];
  const long n = raw::invoke(__NR_readlinkat, AT_FDCWD, link, path, sizeof(path) - 1);
  if (n <= kMark || __builtin_memcmp(path + n - kMark, kRemoved, kMark) != 0) return {};
  path[n] = '\0';
  struct stat own {
  }, named{};
  if (raw::invoke(__NR_newfstatat, AT_FDCWD, link, &own, 0) == 0 &&
      raw::invoke(__NR_newfstatat, AT_FDCWD, path, &named, 0) == 0 && own.st_dev == named.st_dev &&
      own.st_ino == named.st_ino)
    return {};
  path[n - kMark] = '\0';
  return Status::of(Code::kRefused, ENOENT,
                    "the %s directory of this process, %.240s, was removed; a restart cannot change to it; change to "
                    "another one",
                    what, path);
}

Status check_directories() {
  SHADOWIB_TRY(check_directory("/proc/self/cwd", "working"));
  return check_directory("/proc/self/root", "root");
}

// The main thread may have ended with pthread_exit while others go on.
Status check_main_thread() {
  char text[1024];
  if (read_small_file("/proc/self/stat", text, sizeof(text)) <= 0) return {};
  const char* at = text;
  for (const char* c = text; *c != '\0'; ++c)
    if (*c == ')') at = c;
  if (at[0] == ')' && at[1] == ' ' && (at[2] == 'Z' || at[2] == 'X'))
    return Status(Code::kRefused, 0,
                  "the main thread of this process has ended while others run, which cannot be captured");
  return {};
}

bool has_capability(unsigned capability) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (raw::invoke(__NR_capget, &header, data) != 0) return false;
  return (data[capability / 32].permitted & 1u << (capability % 32)) != 0;
}

// A restart by the same user, in the same place, has to lock what is locked here, and to map what is mapped here.
Status check_limits(const MappingTable& table) {
  std::uint64_t locked = 0, limit[2] = {~0ull, ~0ull};
  for (std::uint32_t i = 0; i < table.count; ++i)
    if ((table.mappings[i].advice & kAdviceLocked) != 0) locked += table.mappings[i].length;
  raw::invoke(__NR_prlimit64, 0, RLIMIT_MEMLOCK, nullptr, limit);
  if ((locked > limit[1] || (table.locks_future != 0 && limit[1] == 0)) && !has_capability(CAP_IPC_LOCK))
    return Status::of(
        Code::kRefused, 0,
        "%lu bytes of this process are locked (mlock), and its hard RLIMIT_MEMLOCK of %lu would not let "
        "a restart lock them again; raise it (ulimit -Hl), or do not lower it after locking",
        locked, limit[1]);
  char text[32];
  if (read_small_file("/proc/sys/vm/max_map_count", text, sizeof(text)) <= 0) return {};
  const char* at = text;
  const std::uint64_t most = parse_number(&at, 10);
  if (table.count + kRestorerMappings > most)
    return Status::of(Code::kRefused, 0,
                      "this process has %u mappings, and a restart needs some more than vm.max_map_count, %lu; raise "
                      "it (sysctl)",
                      table.count, most);
  return {};
}

// Segments of its own are what 16-bit and 32-bit code runs in.
Status check_segments() {
  std::uint8_t entries[64];
  if (raw::invoke(__NR_modify_ldt, 0, entries, sizeof(entries)) <= 0) return {};
  return Status(Code::kRefused, 0,
                "this process has segments of its own (modify_ldt(2)), which cannot be captured; run it without");
}

Status check_parked(Scratch* scratch) {
  constexpr int kMost = 16384;
  auto* threads = static_cast<ParkedThread*>(scratch->take(kMost * sizeof(ParkedThread)));
  if (threads == nullptr) return Status(Code::kInternal, ENOMEM, "no scratch memory for the list of threads");
  const int count = parked_threads(threads, kMost);
  return judge_parked_threads(threads, count < kMost ? count : kMost);
}

Status check_memory_and_timers() {
  Scratch scratch;
  if (!scratch.map(1 << 20))
    return Status(Code::kRefused, ENOMEM, "no memory for the imager's scratch; raise RLIMIT_AS or RLIMIT_MEMLOCK");
  Status status = check_parked(&scratch);
  scratch.unmap();
  const MappingTable* table = nullptr;
  if (status.ok()) status = inspect_mappings(&table);
  if (status.ok()) status = check_limits(*table);
  TimerRecord timers[64] = {};
  std::uint32_t count = 0;
  if (status.ok()) status = read_timers(timers, 64, &count);
  return status;
}

}  // namespace

void end_inspection() { forget_inspection(true); }

Status check_capturable() {
  SHADOWIB_TRY(check_number());
  SHADOWIB_TRY(check_status_file());
  SHADOWIB_TRY(check_main_thread());
  SHADOWIB_TRY(judge_threads(true));
  SHADOWIB_TRY(check_segments());
  SHADOWIB_TRY(check_directories());
  return check_memory_and_timers();
}

}  // namespace shadowib
