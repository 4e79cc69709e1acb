#include "hooks/agent/filter_probe.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "hooks/agent/agent_state.h"
#include "hooks/raw/needed_calls.h"
#include "hooks/threads/thread_judge.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/log.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

constexpr int kProbeMs = 10000;

bool g_probed = false;
Status g_answer;

// All that comes until the writer ends.
std::string read_all(int fd) {
  std::string text;
  for (char buffer[1024];;) {
    pollfd readable{fd, POLLIN, 0};
    if (::syscall(SYS_poll, &readable, 1, kProbeMs) <= 0) return text;
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(n));
  }
}

// The command's last line; "" if it could not be started.
std::string last_word() {
  int pipe[2], ours[2];
  {
    UnownedDescriptors unowned;
    if (::pipe2(pipe, O_CLOEXEC) != 0) return {};
    for (int i = 0; i < 2; ++i) ours[i] = unowned.own(pipe[i]);
  }
  const Status started = start_command({kProbeOption}, ours[1]);
  close_owned_descriptor(ours[1]);
  std::string text = started.ok() ? read_all(ours[0]) : std::string();
  close_owned_descriptor(ours[0]);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

Status ask() {
  const std::string last = last_word();
  if (last == kProbeDone) return {};
  if (last.empty()) {
    log_line(LogLevel::kWarn, "the command cannot try what this process's seccomp filter allows; going on without");
    return {};
  }
  return Status::of(
      Code::kRefused, 0,
      "the seccomp filter that this process was started under ends a process that calls %.40s(2), which a "
      "checkpoint needs; let the filter answer with an error instead (systemd: "
      "SystemCallErrorNumber=EPERM)",
      last.c_str());
}

}  // namespace

Status probe_filter() {
  if (!place_has_filter()) return {};
  if (!g_probed) g_answer = ask();
  g_probed = true;
  return g_answer;
}

void forget_filter_probe() { g_probed = false; }

}  // namespace shadowib
