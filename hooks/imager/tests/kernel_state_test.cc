// Goes through kernel_state.def: every row has its proof, every name of the kernel's a row, and what cannot be
// captured is refused by name, by a process that goes on.
#include <asm/ldt.h>
#include <asm/prctl.h>
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/io.h>
#include <sys/prctl.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "hooks/imager/imager.h"
#include "hooks/raw/tasks.h"
#include "hooks/threads/stop.h"
#include "hooks/threads/thread_judge.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

namespace fs = std::filesystem;

enum Scope { kProcess, kThread };
enum Handling { kRestored, kRefused, kHarmless };
struct Row {
  const char* name;
  Scope scope;
  Handling handling;
  std::string read, proof, covers;
};
const Row kRows[] = {
#define STATE(name, scope, handling, read, proof, covers) {#name, scope, handling, read, proof, covers},
#include "hooks/imager/kernel_state.def"
#undef STATE
};

// --- what is refused ---

constexpr int kRight = 0, kWrong = 1, kSkipped = 77;

// A scenario makes the state and returns what the refusal has to say, or "" if this machine cannot show it.
using Scenario = std::function<std::string()>;

long option(int which, unsigned long a = 0, unsigned long b = 0) {
  return ::syscall(SYS_prctl, which, a, b, 0ul, 0ul);
}

// Runs in a thread that lives on until the process ends.
std::string in_a_thread(const std::function<bool()>& prepare, const char* words) {
  std::atomic<int> done{0};
  std::thread([&] {
    done = prepare() ? 1 : 2;
    for (;;) ::pause();
  }).detach();
  while (done == 0) ::sched_yield();
  return done == 1 ? words : "";
}

bool allow_all() {
  sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog program{1, allow};
  return option(PR_SET_NO_NEW_PRIVS, 1) == 0 &&
         ::syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

bool drop_capability() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::geteuid() != 0 || ::syscall(SYS_capget, &header, data) != 0) return false;
  data[0].effective &= ~(1u << CAP_CHOWN);
  return ::syscall(SYS_capset, &header, data) == 0;
}

bool confine() {
  const landlock_ruleset_attr rules{LANDLOCK_ACCESS_FS_EXECUTE};
  const long fd = ::syscall(SYS_landlock_create_ruleset, &rules, sizeof(rules), 0);
  return fd >= 0 && option(PR_SET_NO_NEW_PRIVS, 1) == 0 && ::syscall(SYS_landlock_restrict_self, fd, 0) == 0;
}

bool trap_time() { return ::prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0 && ::prctl(PR_SET_TSC, PR_TSC_ENABLE) == 0; }

// By the instruction, past the guard of syscall(2).
long raw_rseq(void* area) {
  long result;
  register long flags __asm__("rdx") = 0;
  register long signature __asm__("r10") = RSEQ_SIG;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(SYS_rseq), "D"(area), "S"(32L), "r"(flags), "r"(signature)
                   : "rcx", "r11", "memory");
  return result;
}

// As io_uring_setup(2) takes it, with a thread of the kernel's that polls.
bool poll_a_ring() {
  struct {
    std::uint32_t entries, completions, flags, cpu, idle, rest[25];
  } parameters{};
  parameters.flags = 2;  // IORING_SETUP_SQPOLL
  parameters.idle = 1000;
  return ::syscall(425 /* io_uring_setup */, 4, &parameters) >= 0;
}

const std::map<std::string, Scenario>& refusals() {
  static const std::map<std::string, Scenario> map{
      {"user_of_a_thread",
       [] { return in_a_thread([] { return ::syscall(SYS_setresuid, -1, 65534, -1) == 0; }, "user ids"); }},
      {"file_system_ids",
       [] { return ::geteuid() == 0 && ::setfsuid(65534) == 0 ? "opens files as another user" : ""; }},
      {"capabilities_of_a_thread", [] { return in_a_thread(drop_capability, "effective capabilities"); }},
      {"secure_bits_of_a_thread",
       [] { return in_a_thread([] { return option(PR_SET_KEEPCAPS, 1) == 0; }, "securebits"); }},
      {"keyring_of_a_thread",
       [] {
         return in_a_thread(
             [] { return ::syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_THREAD_KEYRING, 1) > 0; }, "keyring");
       }},
      {"session_keyring",
       [] {
         return in_a_thread([] { return ::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, "shadowib") > 0; },
                            "session keyring");
       }},
      {"seccomp_of_a_thread", [] { return in_a_thread(allow_all, "seccomp filter of its own"); }},
      {"landlock", [] { return in_a_thread(confine, "Landlock"); }},
      {"directory_of_a_thread",
       [] { return in_a_thread([] { return ::unshare(CLONE_FS) == 0; }, "working directory of its own"); }},
      {"descriptors_of_a_thread",
       [] { return in_a_thread([] { return ::unshare(CLONE_FILES) == 0; }, "descriptors of its own"); }},
      {"namespace_of_a_thread",
       [] { return in_a_thread([] { return ::unshare(CLONE_NEWUTS) == 0; }, "another uts namespace"); }},
      {"segments",
       [] {
         user_desc segment{};
         segment.entry_number = 1;
         segment.limit = 4096;
         segment.seg_32bit = 1;
         return ::syscall(SYS_modify_ldt, 1, &segment, sizeof(segment)) == 0 ? "modify_ldt" : "";
       }},
      {"rseq_untold",
       [] {
         return in_a_thread(
             [] {
               alignas(32) static char area[32];
               void* const libc = static_cast<char*>(__builtin_thread_pointer()) + __rseq_offset;
               if (__rseq_size != 0) ::syscall(SYS_rseq, libc, 32, RSEQ_FLAG_UNREGISTER, RSEQ_SIG);
               // libc's area says so, too
               reinterpret_cast<std::int32_t*>(libc)[1] = -1;
               return raw_rseq(area) == 0;
             },
             "restartable sequences");
       }},
      {"syscall_user_dispatch",
       [] {
         return in_a_thread(
             [] {
               static char selector = 0;
               return ::prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, 0, 0, &selector) == 0;
             },
             "dispatches system calls");
       }},
      {"io_uring", [] { return poll_a_ring() ? "io_uring" : ""; }},
      {"core_scheduling",
       [] { return in_a_thread([] { return option(62 /* PR_SCHED_CORE */, 1) == 0; }, "core scheduling"); }},
      {"timestamp_trap",
       [] {
         return in_a_thread([] { return trap_time() && ::prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0; },
                            "time stamp counter");
       }},
      {"cpuid_trap",
       [] { return in_a_thread([] { return ::syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0) == 0; }, "cpuid"); }},
      {"port_access", [] { return in_a_thread([] { return ::iopl(3) == 0; }, "I/O ports"); }},
  };
  return map;
}

// In a child of its own: judged before the stop, and what only a parked thread tells, after it.
int refuse_in_this_process(const Scenario& scenario, std::string* said) {
  note_place();
  if (!stop_install().ok()) return kWrong;
  if (Status before = judge_threads(); !before.ok()) {
    *said = std::string("before the scenario: ") + before.text();
    return kWrong;
  }
  const std::string words = scenario();
  if (words.empty()) return kSkipped;
  Status status = judge_threads();
  if (status.ok()) {
    status = stop_threads(10000);
    if (!status.ok()) return kWrong;
    status = check_capturable();
    release_threads();
  }
  *said = status.text();
  return status.code() == Code::kRefused && said->find(words) != std::string::npos ? kRight : kWrong;
}

class Refused : public testing::TestWithParam<std::string> {};

TEST_P(Refused, IsNamed) {
  const Scenario& scenario = refusals().at(GetParam());
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::string said;
    const int code = refuse_in_this_process(scenario, &said);
    [[maybe_unused]] const ssize_t n = ::write(pipe[1], said.data(), said.size());
    ::syscall(SYS_exit_group, code);
  }
  ::close(pipe[1]);
  char text[1024] = {};
  ASSERT_GE(::read(pipe[0], text, sizeof(text) - 1), 0);
  ::close(pipe[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == kSkipped)
    GTEST_SKIP() << (::geteuid() == 0 ? "this machine does not allow it" : "this user is not allowed to");
  EXPECT_EQ(WEXITSTATUS(status), kRight) << text;
}

std::vector<std::string> refused_scenarios() {
  std::vector<std::string> names;
  for (const auto& [name, scenario] : refusals()) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, Refused, testing::ValuesIn(refused_scenarios()),
                         [](const auto& info) { return info.param; });

// Runs body() in a child, which ends with its result. kSkipped: for the reason `missing`.
void in_a_child(const char* missing, const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::syscall(SYS_exit_group, body());
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  if (missing != nullptr && WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) GTEST_SKIP() << missing;
  EXPECT_EQ(status, kRight);
}

// A filter that was there when the process was started is the place's.
TEST(Place, ItsFilterIsNobodysSandbox) {
  in_a_child(nullptr, [] {
    const bool filtered = allow_all();
    note_place();
    const bool accepted = judge_threads().ok();
    const bool more = allow_all();
    const Status status = judge_threads();
    return filtered && accepted && more && status.code() == Code::kRefused ? kRight : kWrong;
  });
}

// Filters of containers deny kcmp(2).
TEST(Place, ItsFilterHidesNoDirectoryOfAThread) {
  in_a_child(nullptr, [] {
    sock_filter deny[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kcmp, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    sock_fprog program{4, deny};
    const bool filtered = option(PR_SET_NO_NEW_PRIVS, 1) == 0 &&
                          ::syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
    note_place();
    const bool accepted = judge_threads().ok();
    const bool moved =
        !in_a_thread([] { return ::unshare(CLONE_FS) == 0 && ::chdir("/proc/self") == 0; }, "moved").empty();
    const Status status = judge_threads();
    const bool named = std::strstr(status.text(), "working directory of its own") != nullptr;
    return filtered && accepted && moved && named ? kRight : kWrong;
  });
}

// Threads are told from their makers by their age, which the kernel counts in hundredths of a second.
void let_a_tick_pass() {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_BOOTTIME, &time);
    return time.tv_sec * 100 + time.tv_nsec / 10'000'000;
  };
  for (const auto begin = now(); now() <= begin;) ::sched_yield();
}

// Of a thread that has ended, unless one that it has made lives.
TEST(Refused, NoLongerOnceItsThreadHasEnded) {
  in_a_child("this kernel has no Landlock", [] {
    const auto confined_says = [](bool makes_a_thread) {
      bool confined = false;
      std::thread([] {}).join();  // ThreadSanitizer's own begins with it, and is older than what comes
      let_a_tick_pass();
      std::thread([&] {
        confined = confine();
        if (makes_a_thread) std::thread([] { ::pause(); }).detach();
        if (judge_threads().ok()) confined = false;
      }).join();
      if (!confined) ::syscall(SYS_exit_group, kSkipped);
      return std::string(judge_threads().text());
    };
    const bool ended = confined_says(false).empty();
    const bool heir = confined_says(true).find("Landlock") != std::string::npos;
    return ended && heir ? kRight : kWrong;
  });
}

// Its memory is the parent's until it executes a program or ends, and its state is its own.
TEST(Refused, NotForAChildOfVfork) {
  in_a_child("this kernel has no Landlock", [] {
    int confined = 1;
    const pid_t child = ::vfork();
    if (child == 0) ::_exit(confine() && ::prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0 ? 0 : 1);
    ::waitpid(child, &confined, 0);
    if (confined != 0) ::syscall(SYS_exit_group, kSkipped);
    const bool accepted = judge_threads().ok();
    // The thread itself.
    const bool refused = ::prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0 && !judge_threads().ok();
    return accepted && refused ? kRight : kWrong;
  });
}

// A child has the state of the thread that forked it, and not that of others.
TEST(Refused, WhatAForkedChildHas) {
  in_a_child("this kernel has no Landlock", [] {
    const auto child_is_accepted = [] {
      const pid_t child = ::fork();
      if (child == 0) ::syscall(SYS_exit_group, judge_threads().ok() ? 0 : 1);
      int status = 1;
      ::waitpid(child, &status, 0);
      return status == 0;
    };
    let_a_tick_pass();
    bool of_the_confined = true;
    std::atomic<int> step{0};
    std::thread([&] {
      if (!confine()) ::syscall(SYS_exit_group, kSkipped);
      of_the_confined = child_is_accepted();
      step = 1;
      for (;;) ::pause();
    }).detach();
    while (step == 0) ::sched_yield();
    return !of_the_confined && child_is_accepted() && !judge_threads().ok() ? kRight : kWrong;
  });
}

// The kernel lists them before the capabilities.
TEST(Refused, CapabilitiesOfAThreadBehindManyGroups) {
  in_a_child("this user is not allowed to", [] {
    std::vector<gid_t> groups(10'000);
    for (std::size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<gid_t>(1'000'000 + i);
    if (::setgroups(groups.size(), groups.data()) != 0) ::syscall(SYS_exit_group, kSkipped);
    note_place();
    const bool accepted = judge_threads().ok();
    const bool dropped = !in_a_thread(drop_capability, "capabilities").empty();
    const bool named = std::strstr(judge_threads().text(), "effective capabilities") != nullptr;
    return accepted && dropped && named ? kRight : kWrong;
  });
}

// A thread that has ended gives up its directories and descriptors before it leaves the list. The first thread stays
// there until the last one ends.
TEST(Place, AThreadThatHasEndedHasNothingOfItsOwn) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    note_place();
    const int first = ::getpid();
    std::thread([to = pipe[1], first] {
      while (task_state(first) != 'Z') ::sched_yield();
      const Status status = judge_threads();
      [[maybe_unused]] const ssize_t n = ::write(to, status.text(), std::strlen(status.text()));
      ::syscall(SYS_exit_group, status.ok() ? kRight : kWrong);
    }).detach();
    ::syscall(SYS_exit, 0);
  }
  ::close(pipe[1]);
  char text[1024] = {};
  ASSERT_GE(::read(pipe[0], text, sizeof(text) - 1), 0);
  ::close(pipe[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0) << text;
}

// What is given up is no obstacle.
TEST(Refused, NoLongerOnceItIsGivenUp) {
  EXPECT_TRUE(trap_time());
  const Status status = judge_threads();
  EXPECT_TRUE(status.ok()) << status.text();
}

// --- the census itself ---

// What `program` prints, a line each.
std::set<std::string> lines_of(const std::string& program) {
  std::set<std::string> lines;
  FILE* pipe = ::popen(program.c_str(), "r");
  char line[256];
  while (pipe != nullptr && std::fgets(line, sizeof(line), pipe) != nullptr)
    lines.insert(std::string(line, std::strcspn(line, "\n")));
  if (pipe != nullptr) ::pclose(pipe);
  return lines;
}

std::set<std::string> covered() {
  std::set<std::string> names;
  for (const Row& row : kRows) {
    std::istringstream words(row.covers);
    for (std::string word; words >> word;) EXPECT_TRUE(names.insert(word).second) << word << " is in two rows";
  }
  return names;
}

TEST(Census, EveryRowHasAScenarioOrAReason) {
  const std::set<std::string> restored = lines_of(SUBJECT);
  std::set<std::string> names;
  for (const Row& row : kRows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " has two rows";
    const bool is_reason = row.proof.find(' ') != std::string::npos;
    EXPECT_NE(row.proof, "") << row.name << " has neither a scenario nor a reason";
    if (row.handling == kHarmless) {
      EXPECT_TRUE(is_reason) << row.name << " does not say why it is harmless";
      continue;
    }
    EXPECT_NE(row.read, "") << row.name << " does not say how it is read";
    if (is_reason) {
      EXPECT_EQ(row.proof.rfind("untested: ", 0), 0u) << row.name << ": " << row.proof;
      continue;
    }
    const bool has = restored.count(row.proof) != 0 || (row.handling == kRefused && refusals().count(row.proof) != 0);
    EXPECT_TRUE(has) << row.name << ": there is no scenario " << row.proof;
  }
}

TEST(Census, EveryScenarioHasARow) {
  std::set<std::string> proofs;
  for (const Row& row : kRows) proofs.insert(row.proof);
  for (const auto& [name, scenario] : refusals()) EXPECT_TRUE(proofs.count(name) != 0) << name;
  for (const std::string& name : lines_of(SUBJECT))
    EXPECT_TRUE(name.rfind("state_", 0) != 0 || proofs.count(name) != 0) << name;
}

// Options of a header, not their values, which stand behind "# define".
void expect_options_of(const char* header, const char* pattern) {
  const std::set<std::string> known = covered();
  std::ifstream file(header);
  ASSERT_TRUE(file.good()) << header;
  const std::regex option(pattern);
  std::smatch match;
  int count = 0;
  for (std::string line; std::getline(file, line);) {
    if (!std::regex_search(line, match, option)) continue;
    ++count;
    EXPECT_TRUE(known.count(match[1]) != 0) << match[1] << " of " << header << " has no row in kernel_state.def";
  }
  EXPECT_GT(count, 5) << header;
}

TEST(Census, KnowsEveryOptionOfPrctl) {
  expect_options_of("/usr/include/linux/prctl.h", "^#define\\s+(PR_\\w+)\\s+\\w");
}
TEST(Census, KnowsEveryOptionOfArchPrctl) { expect_options_of(ASM_PRCTL_HEADER, "^#define\\s+(ARCH_\\w+)\\s+\\w"); }

TEST(Census, KnowsEveryFieldOfTheStatus) {
  const std::set<std::string> known = covered();
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    EXPECT_TRUE(known.count("status:" + line.substr(0, line.find(':'))) != 0)
        << line << " of /proc/self/status has no row in kernel_state.def";
}

TEST(Census, KnowsEveryFileOfAProcess) {
  const std::set<std::string> known = covered();
  for (const std::string& directory : {std::string("/proc/self"), "/proc/self/task/" + std::to_string(::getpid())})
    for (const auto& entry : fs::directory_iterator(directory))
      EXPECT_TRUE(known.count("file:" + entry.path().filename().string()) != 0)
          << entry.path() << " has no row in kernel_state.def";
}

}  // namespace
}  // namespace shadowib
