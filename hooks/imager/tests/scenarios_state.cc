// State that the kernel keeps for a process or a thread: the restored rows of kernel_state.def.
//
// A scenario that the machine cannot show prints "SKIP why" and ends with 42 at once.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/membarrier.h>
#include <linux/mempolicy.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "hooks/imager/save/process_state.h"
#include "hooks/imager/tests/subject.h"
#include "hooks/threads/own_rseq.h"

using namespace shadowib;
using namespace shadowib::test;

namespace {

constexpr int kMdwe = 65, kMerge = 67, kGetRegistrations = 1 << 9;

void skip(const char* why) {
  std::printf("SKIP %s\n", why);
  std::fflush(stdout);
  ::_exit(42);
}

std::string first_line(const char* path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}
bool put(const char* path, const char* text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}
long option(int which, unsigned long a = 0, unsigned long b = 0, unsigned long c = 0) {
  return ::syscall(SYS_prctl, which, a, b, c, 0ul);
}

// Runs `prepare` in a thread, saves, and runs `see` in the same thread after the restart.
void in_a_thread(const std::function<void()>& prepare, const std::function<void()>& see) {
  std::atomic<bool> ready{false}, go{false};
  std::thread thread([&] {
    prepare();
    ready = true;
    while (!go) ::sched_yield();
    see();
  });
  while (!ready) ::sched_yield();
  save_and_end();
  go = true;
  thread.join();
}

SCENARIO(state_capabilities) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {}, now[2] = {};
  if (::geteuid() != 0) skip("takes root to have capabilities to drop");
  CHECK_THAT(::syscall(SYS_capget, &header, data) == 0);
  data[0].effective &= ~(1u << CAP_NET_RAW | 1u << CAP_CHOWN);
  data[0].permitted &= ~(1u << CAP_NET_RAW);
  CHECK_THAT(::syscall(SYS_capset, &header, data) == 0);
  save_and_end();
  CHECK_THAT(::syscall(SYS_capget, &header, now) == 0);
  CHECK_THAT(now[0].effective == data[0].effective && now[0].permitted == data[0].permitted);
}

SCENARIO(state_secure_bits) {
  if (::geteuid() != 0) skip("takes root to set securebits");
  CHECK_THAT(option(PR_SET_SECUREBITS, SECBIT_NO_CAP_AMBIENT_RAISE) == 0 && option(PR_SET_KEEPCAPS, 1) == 0);
  save_and_end();
  CHECK_THAT(option(PR_GET_SECUREBITS) == (SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_KEEP_CAPS));
}

// One thread has it, the other not.
SCENARIO(state_no_new_privileges) {
  in_a_thread([] { CHECK_THAT(option(PR_SET_NO_NEW_PRIVS, 1) == 0); },
              [] { CHECK_THAT(option(PR_GET_NO_NEW_PRIVS) == 1); });
  CHECK_THAT(option(PR_GET_NO_NEW_PRIVS) == 0);
}

SCENARIO(state_personality) {
  CHECK_THAT(::personality(ADDR_NO_RANDOMIZE | UNAME26) >= 0);
  save_and_end();
  CHECK_THAT(::personality(0xffffffff) == (ADDR_NO_RANDOMIZE | UNAME26));
}

SCENARIO(state_process_options) {
  CHECK_THAT(option(PR_SET_CHILD_SUBREAPER, 1) == 0 && option(PR_SET_DUMPABLE, 0) == 0);
  CHECK_THAT(option(PR_SET_DUMPABLE, 1) == 0 && put("/proc/self/oom_score_adj", "300"));
  const bool grouped = ::access("/proc/self/autogroup", W_OK) == 0;
  if (grouped) CHECK_THAT(::setsid() > 0 || errno == EPERM);
  if (grouped) CHECK_THAT(put("/proc/self/autogroup", "5"));
  CHECK_THAT(option(PR_SET_DUMPABLE, 0) == 0);
  save_and_end();
  int reaps = 0;
  CHECK_THAT(::prctl(PR_GET_CHILD_SUBREAPER, &reaps) == 0 && reaps == 1 && option(PR_GET_DUMPABLE) == 0);
  CHECK_THAT(option(PR_SET_DUMPABLE, 1) == 0);
  CHECK_THAT(first_line("/proc/self/oom_score_adj") == "300");
  const std::string group = first_line("/proc/self/autogroup");
  CHECK_THAT(!grouped || group.substr(group.find("nice")) == "nice 5");
}

SCENARIO(state_memory_options) {
  constexpr unsigned long kExceptAdvised = 2;  // Linux 6.18
  const bool newer = option(PR_SET_THP_DISABLE, 1, kExceptAdvised) == 0;
  if (!newer) CHECK_THAT(option(PR_SET_THP_DISABLE, 1) == 0);
  const long huge_pages = option(PR_GET_THP_DISABLE);
  CHECK_THAT(huge_pages == (newer ? 3 : 1) && put("/proc/self/coredump_filter", "0x7b"));
  const bool merges = option(kMerge, 1) == 0;
  save_and_end();
  CHECK_THAT(option(PR_GET_THP_DISABLE) == huge_pages && (!merges || option(kMerge + 1) == 1));
  CHECK_THAT(first_line("/proc/self/coredump_filter") == "0000007b");
}

// After a restart libraries are loaded under it, as the backend is.
SCENARIO(state_denied_execution) {
  if (option(kMdwe, 1) != 0) skip("this kernel has no PR_SET_MDWE");
  save_and_end();
  CHECK_THAT(option(kMdwe + 1) == 1);
  CHECK_THAT(::mmap(nullptr, 4096, PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
  CHECK_THAT(::dlopen("libresolv.so.2", RTLD_NOW) != nullptr);
}

long barrier(int command) { return ::syscall(SYS_membarrier, command, 0, 0); }

void register_barriers() {
  for (const int command : {MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED,
                            MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE})
    CHECK_THAT(barrier(command) == 0);
}

SCENARIO(state_memory_barriers) {
  register_barriers();
  const long made = barrier(kGetRegistrations);
  save_and_end();
  CHECK_THAT(barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0);
  CHECK_THAT(barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE) == 0 && barrier(kGetRegistrations) == made);
  CHECK_THAT(barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ) == -1);
}

// A kernel before 6.3 tells no registrations.
SCENARIO(state_memory_barriers_untold) {
  register_barriers();
  const std::uint32_t tried = read_memory_barriers(false);
  CHECK_THAT(tried == (MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED |
                       MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE));
  save_and_end();
}

SCENARIO(state_memory_policy) {
  unsigned long node = 1;
  if (::syscall(SYS_set_mempolicy, MPOL_PREFERRED, &node, 64) != 0) skip("this kernel has no memory policies");
  in_a_thread([&] { CHECK_THAT(::syscall(SYS_set_mempolicy, MPOL_BIND | MPOL_F_STATIC_NODES, &node, 64) == 0); },
              [] {
                int mode = 0;
                unsigned long nodes[16] = {};
                CHECK_THAT(::syscall(SYS_get_mempolicy, &mode, nodes, sizeof(nodes) * 8, nullptr, 0) == 0);
                CHECK_THAT(mode == (MPOL_BIND | MPOL_F_STATIC_NODES) && nodes[0] == 1);
              });
  int mode = 0;
  CHECK_THAT(::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 && mode == MPOL_PREFERRED);
}

struct RseqArea {
  std::uint32_t start, cpu;
  std::uint64_t section;
  std::uint32_t rest[4];
} __attribute__((aligned(32)));
__thread RseqArea t_area = {0, ~0u, 0, {}};

void register_rseq() {
  CHECK_THAT(::syscall(SYS_rseq, &t_area, sizeof(t_area), 0, RSEQ_SIG) == 0);
  note_own_rseq(reinterpret_cast<std::uint64_t>(&t_area), sizeof(t_area), 0, RSEQ_SIG);  // as the guard does
}
void see_rseq() {
  CHECK_THAT(::syscall(SYS_rseq, &t_area, sizeof(t_area), 0, RSEQ_SIG) == -1 && errno == EBUSY);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < 2; ++cpu) {
    CPU_SET(cpu, &one);
    if (::sched_setaffinity(0, sizeof(one), &one) == 0) CHECK_THAT(t_area.cpu == static_cast<unsigned>(cpu));
    CPU_CLR(cpu, &one);
  }
}

// Started with GLIBC_TUNABLES=glibc.pthread.rseq=0, so that the area is free.
SCENARIO(state_rseq) {
  register_rseq();
  in_a_thread(register_rseq, see_rseq);
  see_rseq();
}

std::atomic<bool> g_go{false};

SCENARIO(state_scheduling) {
  struct Attributes {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
    std::uint32_t lowest, highest;
  };
  constexpr std::uint64_t kResetOnFork = 1;
  const Attributes deadline{48, 6 /* SCHED_DEADLINE */, kResetOnFork, 0, 0, 10'000'000, 30'000'000, 30'000'000, 0, 0};
  const Attributes batch{48, SCHED_BATCH, kResetOnFork, 3, 0, 0, 0, 0, 0, 0};
  const auto get = [] {
    Attributes now{};
    CHECK_THAT(::syscall(SYS_sched_getattr, 0, &now, sizeof(now), 0) == 0);
    return now;
  };
  if (::geteuid() != 0) skip("takes root to have a deadline");
  std::thread batched([&] {
    CHECK_THAT(::syscall(SYS_sched_setattr, 0, &batch, 0) == 0);
    while (!g_go) ::sched_yield();
    const Attributes now = get();
    CHECK_THAT(now.policy == SCHED_BATCH && now.nice == 3 && now.flags == kResetOnFork);
  });
  in_a_thread([&] { CHECK_THAT(::syscall(SYS_sched_setattr, 0, &deadline, 0) == 0); },
              [&] {
                const Attributes now = get();
                CHECK_THAT(now.policy == deadline.policy && now.runtime == deadline.runtime);
                CHECK_THAT(now.deadline == deadline.deadline && now.period == deadline.period && now.flags == 1);
              });
  g_go = true;
  batched.join();
}

SCENARIO(state_thread_options) {
  std::atomic<bool> flushes{false};
  in_a_thread(
      [&] {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(0, &one);
        CHECK_THAT(::sched_setaffinity(0, sizeof(one), &one) == 0 && option(PR_SET_TIMERSLACK, 777000) == 0);
        CHECK_THAT(::syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 6) == 0);
        CHECK_THAT(option(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY) == 0);
        flushes = option(PR_SET_IO_FLUSHER, 1) == 0;
        CHECK_THAT(option(PR_SET_PDEATHSIG, SIGWINCH) == 0 && ::setpriority(PRIO_PROCESS, 0, 4) == 0);
      },
      [&] {
        cpu_set_t now;
        CHECK_THAT(::sched_getaffinity(0, sizeof(now), &now) == 0 && CPU_COUNT(&now) == 1 && CPU_ISSET(0, &now));
        CHECK_THAT(option(PR_GET_TIMERSLACK) == 777000 && ::syscall(SYS_ioprio_get, 1, 0) == (2 << 13 | 6));
        CHECK_THAT(option(PR_MCE_KILL_GET) == PR_MCE_KILL_EARLY);
        if (flushes) CHECK_THAT(option(PR_GET_IO_FLUSHER) == 1);
        int signal = 0;
        CHECK_THAT(::prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal != 0 && ::getpriority(PRIO_PROCESS, 0) == 4);
      });
  CHECK_THAT(option(PR_MCE_KILL_GET) == PR_MCE_KILL_DEFAULT && ::getpriority(PRIO_PROCESS, 0) != 4);
}

SCENARIO(state_speculation) {
  constexpr int kStoreBypass = 0, kPrctl = 1, kEnable = 2, kDisable = 4;
  if (option(PR_GET_SPECULATION_CTRL, kStoreBypass) != (kPrctl | kEnable))
    skip("this processor and kernel have no control of speculative stores");
  in_a_thread([] { CHECK_THAT(option(PR_SET_SPECULATION_CTRL, kStoreBypass, kDisable) == 0); },
              [] { CHECK_THAT(option(PR_GET_SPECULATION_CTRL, kStoreBypass) == (kPrctl | kDisable)); });
  CHECK_THAT(option(PR_GET_SPECULATION_CTRL, kStoreBypass) == (kPrctl | kEnable));
}

}  // namespace
