#include "shadowib/base/processes.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>

namespace shadowib {
namespace {

void close_between(unsigned first, unsigned last) {
  if (::syscall(SYS_close_range, first, last, 0) == 0) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  for (unsigned fd = first; fd <= last && fd < limit.rlim_cur; ++fd) ::close(static_cast<int>(fd));
}

}  // namespace

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

ProcessStat parse_process_stat(const std::string& text) {
  ProcessStat stat;
  unsigned long long start_time = 0;
  const std::size_t end = text.rfind(')');  // the name before it may hold anything
  constexpr int kFields = 3;
  if (end == std::string::npos ||
      std::sscanf(text.c_str() + end + 1,
                  " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &stat.state,
                  &stat.parent, &start_time) != kFields)
    return {};
  stat.start_time = start_time;
  return stat;
}

ProcessStat process_stat(pid_t pid) {
  char text[1024];
  std::snprintf(text, sizeof(text), "/proc/%d/stat", pid);
  const int fd = ::open(text, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t bytes = ::read(fd, text, sizeof(text));
  ::close(fd);
  return bytes > 0 ? parse_process_stat(std::string(text, static_cast<std::size_t>(bytes))) : ProcessStat{};
}

void close_all_but(std::vector<int> kept) {
  std::sort(kept.begin(), kept.end());
  unsigned next = 0;
  for (const int fd : kept) {
    if (static_cast<unsigned>(fd) > next) close_between(next, static_cast<unsigned>(fd) - 1);
    next = static_cast<unsigned>(fd) + 1;
  }
  close_between(next, UINT_MAX);
}

}  // namespace shadowib
