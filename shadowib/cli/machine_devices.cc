#include <fcntl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "shadowib/cli/machine.h"
#include "shadowib/cli/output.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Finding rdma_devices() {
  std::string names, closed;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/sys/class/infiniband", error))
    names += (names.empty() ? "" : ", ") + entry.path().filename().string();
  for (const auto& entry : fs::directory_iterator("/dev/infiniband", error))
    if (entry.path().filename().string().compare(0, 6, "uverbs") == 0 &&
        ::access(entry.path().c_str(), R_OK | W_OK) != 0)
      closed = entry.path();
  if (names.empty())
    return {"RDMA devices", Verdict::kNote, "none: programs run over ib2tcp", "to use an adapter load its driver"};
  if (!closed.empty())
    return {"RDMA devices", Verdict::kMissing, names + ", but " + closed + " may not be opened",
            "give your user access to it (udev rule, group rdma), or use --backend ib2tcp"};
  return {"RDMA devices", Verdict::kOk, names, ""};
}

Finding locked_memory() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= (1ull << 30))
    return {"locked memory", Verdict::kOk,
            limit.rlim_cur == RLIM_INFINITY ? "unlimited" : human_bytes(limit.rlim_cur), ""};
  return {"locked memory", Verdict::kNote, human_bytes(limit.rlim_cur),
          "enough for ib2tcp; an adapter needs more: ulimit -l unlimited, or memlock in /etc/security/limits.conf"};
}

// A sibling process may read another's memory: what lets shm move data without a copy in between.
Finding cross_memory_attach() {
  static int word = 42;
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return {"cross memory attach", Verdict::kNote, std::strerror(errno), ""};
  pid_t target = ::fork();
  if (target == 0) {
    char c;
    ::close(pipe_fds[1]);
    ::_exit(::read(pipe_fds[0], &c, 1) == 0 ? 0 : 1);  // lives until the command closes the pipe
  }
  pid_t reader = ::fork();
  if (reader == 0) {
    int copy = 0;
    iovec here{&copy, sizeof(copy)}, there{&word, sizeof(word)};
    ::_exit(::process_vm_readv(target, &here, 1, &there, 1, 0) == sizeof(copy) && copy == word ? 0 : errno & 0xff);
  }
  int status = 0, err = 0;
  ::waitpid(reader, &status, 0);
  err = WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
  ::waitpid(target, &status, 0);
  if (err == 0) return {"cross memory attach", Verdict::kOk, "allowed between a user's processes", ""};
  std::string scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  return {"cross memory attach", Verdict::kNote,
          std::string(std::strerror(err)) + (scope.empty() ? "" : ", yama ptrace_scope is " + scope),
          "shm copies through its rings instead; sysctl kernel.yama.ptrace_scope=0 would allow it"};
}

Finding descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  std::string text = std::to_string(limit.rlim_cur) + " of at most " + std::to_string(limit.rlim_max);
  if (limit.rlim_cur >= 1024) return {"descriptors", Verdict::kOk, text, ""};
  return {"descriptors", Verdict::kMissing, text, "ulimit -n 1024 or more"};
}

}  // namespace

std::vector<Finding> examine_devices() {
  return {rdma_devices(), locked_memory(), cross_memory_attach(), descriptors()};
}

}  // namespace shadowib::cli
