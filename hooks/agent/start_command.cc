// Starting the command `shadowib` from inside a member, as a process that is not the member's child when it is
// captured.
#include "hooks/agent/start_command.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hooks/job/current_job.h"
#include "hooks/raw/raw_signal.h"

// libc's clone(2) by its other name. A sanitizer turns the first one, and takes the new process for a forked copy:
// what it notes for that one changes the state of this process, whose memory it is.
extern "C" int __clone(int (*function)(void*), void* stack, int flags, void* argument, ...);

namespace shadowib {
namespace {

constexpr std::size_t kStackBytes = 64 << 10;

struct Launch {
  const char* path;
  char* const* arguments;
  char* const* environment;
  int output;
  long separate;      // SYS_setsid, or SYS_setpgid
  char* inner_stack;  // top
  int error;          // errno of a failed exec
};

// SHADOWIB_COMMAND, or ../bin/shadowib beside the directory this library lies in.
std::string command_path() {
  if (const char* path = std::getenv("SHADOWIB_COMMAND")) return path;
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&start_checkpoint_command), &info) == 0 || info.dli_fname == nullptr)
    return {};
  char real[PATH_MAX];
  // realpath(3) uses the heap only for its result; here that is ours.
  std::string library = ::realpath(info.dli_fname, real) != nullptr ? real : info.dli_fname;
  for (int up = 0; up < 3; ++up) {  // lib/libshadowib.so, lib/dropin/libibverbs.so.1, lib/x86_64-linux-gnu/...
    std::size_t slash = library.rfind('/');
    if (slash == std::string::npos) break;
    library.resize(slash);
    std::string candidate = library.substr(0, library.rfind('/')) + "/bin/shadowib";
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return {};
}

// The processes in between share the memory of the member, and the state that a sanitizer has of its thread.
#define SHADOWIB_BORROWS_MEMORY __attribute__((no_sanitize("address", "thread")))

SHADOWIB_BORROWS_MEMORY void reset_signals() {
  KernelSigaction byDefault{};
  for (int signal = 1; signal <= 64; ++signal) raw_sigaction(signal, &byDefault, nullptr);
  const std::uint64_t none = 0;
  raw_sigmask(SIG_SETMASK, &none, nullptr);
}

// Shares the member's memory until it has exec'ed: system calls only.
SHADOWIB_BORROWS_MEMORY int inner(void* arg) {
  auto* launch = static_cast<Launch*>(arg);
  ::syscall(launch->separate, 0, 0);
  reset_signals();
  int null = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR, 0));
  int output = launch->output >= 0 ? launch->output : null;
  ::syscall(SYS_dup2, null, 0);
  ::syscall(SYS_dup2, output, 1);
  ::syscall(SYS_dup2, output, 2);
  ::syscall(SYS_close_range, 3, ~0u, 0);
  ::syscall(SYS_execve, launch->path, launch->arguments, launch->environment);
  launch->error = errno;
  ::syscall(SYS_exit, 127);
  return 127;
}

SHADOWIB_BORROWS_MEMORY int outer(void* arg) {
  auto* launch = static_cast<Launch*>(arg);
  // Not CLONE_PARENT: when this one exits, the command is handed to init.
  if (__clone(inner, launch->inner_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, arg) < 0) launch->error = errno;
  ::syscall(SYS_exit, 0);
  return 0;
}

Status start(std::vector<std::string> words, int output_fd, long separate) {
  const std::string path = command_path();
  if (path.empty())
    return Status::of(Code::kNotFound, ENOENT,
                      "cannot find the command `shadowib` beside the library; set SHADOWIB_COMMAND");
  words.insert(words.begin(), path);
  std::vector<char*> arguments, variables;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable)
    if (std::strncmp(*variable, "LD_PRELOAD=", 11) != 0) variables.push_back(*variable);
  variables.push_back(nullptr);
  char* stacks = static_cast<char*>(
      ::mmap(nullptr, 2 * kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0));
  if (stacks == MAP_FAILED) return Status::of(Code::kIo, errno, "cannot map a stack to start %.200s", path.c_str());
  Launch launch{path.c_str(), arguments.data(), variables.data(), output_fd, separate, stacks + kStackBytes, 0};
  // No exit signal: the program gets no SIGCHLD for a child it never made, and its wait() does not see it.
  AllSignalsBlocked blocked;
  int pid = __clone(outer, stacks + 2 * kStackBytes, CLONE_VM | CLONE_VFORK, &launch);
  int error = pid < 0 ? errno : launch.error;
  if (pid > 0) ::waitpid(pid, nullptr, __WCLONE);
  ::munmap(stacks, 2 * kStackBytes);
  if (error != 0)
    return Status::of(Code::kIo, error, "cannot start %.200s: %.60s", path.c_str(), std::strerror(error));
  return {};
}

}  // namespace

Status start_command(std::vector<std::string> words, int output_fd) {
  return start(std::move(words), output_fd, SYS_setsid);
}

Status start_checkpoint_command(bool kill, int timeout_ms, int output_fd, const char* cluster) {
  std::vector<std::string> words = {
      "checkpoint", g_job.info.job,      "--dir",     g_job.info.directory,
      "--exchange", g_job.info.exchange, "--timeout", std::to_string((timeout_ms + 999) / 1000)};
  if (kill) words.emplace_back("--kill");
  // A CLC goes to no other store, and the job may have been started with one.
  if (cluster[0] != '\0') words.insert(words.end(), {"--cluster", cluster, "--store", "central"});
  if (const char* keep = std::getenv("SHADOWIB_KEEP"); keep != nullptr && std::atoi(keep) > 0)
    words.insert(words.end(), {"--keep", keep});
  if (const char* metrics = std::getenv("SHADOWIB_METRICS"); metrics != nullptr && metrics[0] != '\0')
    words.insert(words.end(), {"--metrics", metrics});
  return start(std::move(words), output_fd, SYS_setpgid);
}

}  // namespace shadowib
