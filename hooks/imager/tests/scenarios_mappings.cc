// States of mappings (VmFlags): each that is restored, alone and together with others, and each that is refused.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "hooks/imager/imager.h"
#include "hooks/imager/save/vm_flags.h"
#include "hooks/imager/tests/subject.h"

using namespace shadowib;
using namespace shadowib::test;

namespace {

constexpr std::size_t kPageBytes = 4096, kBytes = 4 * kPageBytes;
constexpr int kDroppable = 0x08, kGuardInstall = 102;
constexpr long kMseal = 462;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

void skip(const char* why = "") {
  std::printf("SKIP%s\n", why);
  std::fflush(stdout);
}

// Past a sanitizer's mlock(2), which does nothing.
long lock(const void* at) { return ::syscall(SYS_mlock2, at, kBytes, 0); }

struct Listed {
  std::uintptr_t start, end;
  std::set<std::string> flags;  // that a restart is to bring back
};

std::vector<Listed> read_smaps() {
  std::ifstream file("/proc/self/smaps");
  std::vector<Listed> list;
  for (std::string line; std::getline(file, line);) {
    unsigned long start = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &start, &end) == 2) list.push_back({start, end, {}});
    if (!line.starts_with("VmFlags:")) continue;
    std::istringstream words(line.substr(8));
    for (std::string word; words >> word;) {
      const VmFlag* flag = find_vm_flag(word.c_str());
      CHECK_THAT(flag != nullptr);
      if (flag->fate != FlagFate::kHarmless) list.back().flags.insert(word);
    }
  }
  return list;
}

std::set<std::string> flags_of(const void* at, const std::vector<Listed>& list = read_smaps()) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  for (const Listed& m : list)
    if (m.start <= address && address < m.end) return m.flags;
  return {};
}

// True if MADV_GUARD_INSTALL is in force at `at`, as far as the kernel tells (Linux 6.15).
bool is_guard(const void* at) {
  std::uint64_t entry = 0;
  const int pagemap = ::open("/proc/self/pagemap", O_RDONLY);
  const auto offset = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(at) / kPageBytes * sizeof(entry));
  CHECK_THAT(::pread(pagemap, &entry, sizeof(entry), offset) == sizeof(entry));
  ::close(pagemap);
  return (entry >> 58 & 1) != 0;
}

char* map_at(int protection, int flags, int fd = -1) {
  void* at = ::mmap(nullptr, kBytes, protection, flags, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<char*>(at);
}

struct State {
  const char* flag;
  int advice;  // of madvise; 0: done otherwise
};
constexpr State kAdvised[] = {{"dc", MADV_DONTFORK},  {"dd", MADV_DONTDUMP},   {"wf", MADV_WIPEONFORK},
                              {"mg", MADV_MERGEABLE}, {"sr", MADV_SEQUENTIAL}, {"rr", MADV_RANDOM},
                              {"hg", MADV_HUGEPAGE},  {"nh", MADV_NOHUGEPAGE}};

// A mapping and what is known of it before the checkpoint.
struct Made {
  char* at;
  std::set<std::string> flags;
  bool has_content;
  bool has_guard;  // its first page
};

class Mappings {
 public:
  // Content goes in first, then states in an order that the restorer cannot take: protection before locks.
  void add(int protection, int flags, bool content, const std::vector<std::string>& states, int fd = -1) {
    char* at = map_at(content ? PROT_READ | PROT_WRITE : protection, flags, fd);
    if (at == nullptr) return;  // a kernel without that kind
    content = content && (flags & kDroppable) == 0;
    if (content) std::memset(at, 7, kBytes);
    CHECK_THAT(::mprotect(at, kBytes, protection) == 0);
    for (const std::string& state : states) apply(at, state);
    made_.push_back({at, {}, content, false});
  }
  void note() {
    const std::vector<Listed> list = read_smaps();
    for (Made& m : made_) m.flags = flags_of(m.at, list), m.has_guard = is_guard(m.at);
  }
  void check() const {
    const std::vector<Listed> list = read_smaps();
    for (const Made& m : made_) {
      const std::set<std::string> now = flags_of(m.at, list);
      if (now != m.flags) {
        for (const std::string& f : m.flags) std::fprintf(stderr, "%s ", f.c_str());
        std::fprintf(stderr, "are now ");
        for (const std::string& f : now) std::fprintf(stderr, "%s ", f.c_str());
        std::fprintf(stderr, "\n");
      }
      CHECK_THAT(now == m.flags && is_guard(m.at) == m.has_guard);
      if (!m.has_content) continue;
      char byte = 0;
      const int memory = ::open("/proc/self/mem", O_RDONLY);
      CHECK_THAT(::pread(memory, &byte, 1, static_cast<off_t>(reinterpret_cast<std::uintptr_t>(m.at) + kBytes - 1)) ==
                     1 &&
                 byte == 7);
      ::close(memory);
    }
  }
  std::set<std::string> seen() const {
    std::set<std::string> all;
    for (const Made& m : made_) all.insert(m.flags.begin(), m.flags.end());
    return all;
  }

 private:
  static void apply(char* at, const std::string& state) {
    if (state == "lo") (void)lock(at);  // ENOMEM behind no protection, and locked
    if (state == "lf") CHECK_THAT(::syscall(SYS_mlock2, at, kBytes, 1) == 0);
    if (state == "sl") CHECK_THAT(::syscall(kMseal, at, kBytes, 0) == 0 || errno == ENOSYS);
    if (state == "guard") CHECK_THAT(::madvise(at, kPageBytes, kGuardInstall) == 0 || errno == EINVAL);
    for (const State& s : kAdvised)
      if (state == s.flag) CHECK_THAT(::madvise(at, kBytes, s.advice) == 0 || errno == EINVAL);
  }

  std::vector<Made> made_;
};

SCENARIO(mapping_states) {
  with_table();
  constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
  Mappings all;
  const std::vector<std::vector<std::string>> combinations = {{},
                                                              {"lo"},
                                                              {"lf"},
                                                              {"dc"},
                                                              {"dd"},
                                                              {"wf"},
                                                              {"mg"},
                                                              {"sr"},
                                                              {"rr"},
                                                              {"hg"},
                                                              {"nh"},
                                                              {"sl"},
                                                              {"guard"},
                                                              {"lo", "dc"},
                                                              {"lo", "sl"},
                                                              {"dd", "wf", "dc"},
                                                              {"guard", "lo"},
                                                              {"guard", "lf", "sl"},
                                                              {"nh", "lo", "dd"},
                                                              {"hg", "lf"},
                                                              {"mg", "lo", "sl"}};
  for (const int protection : {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_EXEC, PROT_WRITE})
    for (const bool content : {false, true})
      for (const auto& states : combinations) {
        all.add(protection, kPrivate, content, states);
        all.add(protection, kPrivate | MAP_NORESERVE, content, states);
      }
  for (const auto& states : combinations) all.add(PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, true, states);
  for (const auto& states : {std::vector<std::string>{}, {"dc"}, {"nh"}, {"sl"}, {"guard"}})
    all.add(PROT_READ | PROT_WRITE, kDroppable | MAP_ANONYMOUS, true, states);
  for (const auto& states : {std::vector<std::string>{}, {"lo"}, {"lf"}, {"dd"}})
    all.add(PROT_READ | PROT_WRITE, kPrivate | MAP_GROWSDOWN, true, states);
  const std::string name = "/tmp/shadowib-imager-states-" + std::to_string(::getpid());
  const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  CHECK_THAT(file >= 0 && ::ftruncate(file, kBytes / 2) == 0);  // half of each mapping lies behind its end
  for (const auto& states : {std::vector<std::string>{}, {"lo"}, {"lf", "dc"}, {"guard"}, {"sr", "sl"}, {"rr", "lo"}})
    for (const int flags : {MAP_SHARED, MAP_PRIVATE}) all.add(PROT_READ, flags, false, states, file);
  ::close(file);
  // The kernel lets a page be locked that lies in a segment, and the segment itself.
  const int segment = ::shmget(IPC_PRIVATE, kBytes, 0600);
  auto* attached = static_cast<char*>(::shmat(segment, nullptr, 0));
  CHECK_THAT(attached != reinterpret_cast<char*>(-1) && lock(attached) == 0);
  const bool locked = ::shmctl(segment, SHM_LOCK, nullptr) == 0;
  // Of the process: mappings that are made from now on are locked. A sanitizer makes more than a user may lock.
  const bool locks_future = !kSanitized || ::geteuid() == 0;
  if (locks_future) CHECK_THAT(::syscall(SYS_mlockall, MCL_FUTURE | MCL_ONFAULT) == 0);
  all.note();
  const std::set<std::string> attachment = flags_of(attached);
  const bool seals = ::syscall(kMseal, 0, 0, 0) == 0;
  const std::set<std::string> seen = all.seen();
  for (const VmFlag& flag : kVmFlags)
    if (flag.fate == FlagFate::kRestored && seen.count(flag.name) == 0)
      CHECK_THAT((std::strcmp(flag.name, "sl") == 0 && !seals) ||
                 std::string("dp mg hg nh").find(flag.name) != std::string::npos);
  if (!save()) {
    ::shmctl(segment, IPC_RMID, nullptr);
    ::_exit(10);
  }
  all.check();
  CHECK_THAT(flags_of(attached) == attachment);
  shmid_ds info{};
  CHECK_THAT(::shmctl(segment, IPC_STAT, &info) == 0 && ((info.shm_perm.mode & SHM_LOCKED) != 0) == locked);
  const char* made = map_at(PROT_READ | PROT_WRITE, kPrivate);
  const std::set<std::string> fresh = flags_of(made);
  CHECK_THAT(fresh.count("lo") == locks_future && fresh.count("lf") == locks_future);
  ::unlink(name.c_str());
}

// As real-time and storage programs do: all there is, arenas and guards of threads included.
SCENARIO(locked_memory) {
  if (kSanitized) return skip(" a sanitizer maps terabytes, which no machine can lock");
  char* hidden = map_at(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  std::memset(hidden, 3, kBytes);
  CHECK_THAT(::mprotect(hidden, kBytes, PROT_NONE) == 0);
  CHECK_THAT(map_at(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS) != nullptr);
  CHECK_THAT(::mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
  const std::set<std::string> before = flags_of(hidden);
  save_and_end();
  CHECK_THAT(flags_of(hidden) == before && before.count("lo") == 1 && before.count("lf") == 0);
  const char* made = map_at(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  const std::set<std::string> fresh = flags_of(made);
  CHECK_THAT(fresh.count("lo") == 1 && fresh.count("lf") == 0);
  CHECK_THAT(::mprotect(hidden, kBytes, PROT_READ) == 0 && hidden[kBytes - 1] == 3);
}

void expect_refusal() {
  const Status status = check_capturable();
  std::printf("%s\n", status.text());
  std::fflush(stdout);
  CHECK_THAT(status.code() == Code::kRefused);
}

SCENARIO(refuse_userfaultfd) {
  const int fd = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* UFFD_USER_MODE_ONLY */));
  uffdio_api api{};
  api.api = UFFD_API;
  if (fd < 0 || ::ioctl(fd, UFFDIO_API, &api) != 0) return skip();
  uffdio_register area{};
  area.range.start = reinterpret_cast<std::uintptr_t>(map_at(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS));
  area.range.len = kBytes;
  area.mode = UFFDIO_REGISTER_MODE_MISSING;
  CHECK_THAT(::ioctl(fd, UFFDIO_REGISTER, &area) == 0);
  expect_refusal();
}

// The page has content by the page table, and no read gets it: as of broken memory. False: this place has no such
// page.
bool poison_page(char* at) {
  struct Poison {
    uffdio_range range;
    std::uint64_t mode;
    std::int64_t updated;
  };
  const int fd = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* UFFD_USER_MODE_ONLY */));
  uffdio_api api{};
  api.api = UFFD_API;
  if (fd < 0 || ::ioctl(fd, UFFDIO_API, &api) != 0) return false;
  uffdio_register area{};
  area.range = {reinterpret_cast<std::uintptr_t>(at), kBytes};
  area.mode = UFFDIO_REGISTER_MODE_MISSING;
  CHECK_THAT(::ioctl(fd, UFFDIO_REGISTER, &area) == 0);
  Poison poison{{area.range.start + 4096, 4096}, 0, 0};
  const bool poisoned = ::ioctl(fd, _IOWR(UFFDIO, 8, Poison) /* UFFDIO_POISON */, &poison) == 0;
  ::close(fd);
  return poisoned;
}

SCENARIO(refuse_unreadable_page) {
  char* at = map_at(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  if (!poison_page(at)) return skip();
  CHECK_THAT(::mprotect(at, kBytes, PROT_NONE) == 0 && check_capturable().ok());
  save_and_end();
}

// A read by the program itself, or by who copies its memory directly, raises SIGBUS.
SCENARIO(refuse_poisoned_page) {
  char* at = map_at(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  if (!poison_page(at)) return skip();
  std::memset(at + 8192, 3, kBytes - 8192);
  save_and_end();
}

SCENARIO(refuse_broken_page) {
  char* at = map_at(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  std::memset(at, 3, kBytes);
  if (::madvise(at + 4096, 4096, MADV_HWPOISON) != 0) return skip();
  save_and_end();
}

SCENARIO(refuse_secret_memory) {
  const int fd = static_cast<int>(::syscall(SYS_memfd_secret, O_CLOEXEC));
  if (fd < 0) return skip();
  CHECK_THAT(::ftruncate(fd, kBytes) == 0 && map_at(PROT_READ | PROT_WRITE, MAP_SHARED, fd) != nullptr);
  ::close(fd);
  expect_refusal();
}

SCENARIO(refuse_protection_key) {
  const int key = ::pkey_alloc(0, 0);
  if (key < 0) return skip();
  char* at = map_at(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  CHECK_THAT(::pkey_mprotect(at, kBytes, PROT_READ | PROT_WRITE, key) == 0);
  expect_refusal();
}

// Its own hard limit lets nobody lock as much again, and it cannot raise that.
SCENARIO(refuse_locks_above_the_limit) {
  char* at = map_at(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  CHECK_THAT(lock(at) == 0);
  const rlimit none{};
  CHECK_THAT(::setrlimit(RLIMIT_MEMLOCK, &none) == 0);
  if (::geteuid() == 0) CHECK_THAT(::setresgid(65534, 65534, 65534) == 0 && ::setresuid(65534, 65534, 65534) == 0);
  expect_refusal();
}

}  // namespace
