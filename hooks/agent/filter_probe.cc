#include "hooks/agent/filter_probe.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "hooks/agent/start_command.h"
#include "hooks/raw/needed_calls.h"
#include "hooks/threads/thread_judge.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

bool g_allowed = false;  // all calls were tried, and the filter ends none

// All that comes until the writer ends. False: it has not ended, and has said nothing for so long.
bool read_all(int fd, int patience_ms, std::string* text) {
  for (char buffer[1024];;) {
    pollfd readable{fd, POLLIN, 0};
    if (::syscall(SYS_poll, &readable, 1, patience_ms) <= 0) return false;
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n <= 0) return true;
    text->append(buffer, static_cast<std::size_t>(n));
  }
}

// What cannot be tried now is no answer: the next attempt asks again.
Status try_again(const char* why) {
  return Status::of(Code::kRefused, EAGAIN,
                    "the command that tries what this process's seccomp filter allows %s; try the checkpoint again",
                    why);
}

Status not_started(const Status& why) {
  if (why.error() == EAGAIN || why.error() == ENOMEM) return try_again("cannot be started now");
  return Status::of(Code::kRefused, why.error(),
                    "%.250s. It is to try what the seccomp filter allows that this process was started under",
                    why.text());
}

Status ask(int patience_ms) {
  int pipe[2], ours[2];
  {
    UnownedDescriptors unowned;
    if (::pipe2(pipe, O_CLOEXEC) != 0)
      return Status(Code::kIo, errno, "cannot make a pipe to try what this process's seccomp filter allows");
    for (int i = 0; i < 2; ++i) ours[i] = unowned.own(pipe[i]);
  }
  const Status started = start_command({kProbeOption}, ours[1]);
  close_owned_descriptor(ours[1]);
  std::string text;
  const bool ended = started.ok() && read_all(ours[0], patience_ms, &text);
  close_owned_descriptor(ours[0]);
  if (!started.ok()) return not_started(started);
  if (!ended) return try_again("does not go on");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const std::string last = text.substr(text.rfind('\n') + 1);
  if (last == kProbeDone) return {};
  if (last.empty()) return try_again("has ended before it tried a call");
  return Status::of(
      Code::kRefused, 0,
      "the seccomp filter that this process was started under ends a process that calls %.40s(2), which a "
      "checkpoint needs; let the filter answer with an error instead (systemd: "
      "SystemCallErrorNumber=EPERM)",
      last.c_str());
}

}  // namespace

Status probe_filter(int patience_ms) {
  if (g_allowed || !place_has_filter()) return {};
  SHADOWIB_TRY(ask(patience_ms));
  g_allowed = true;
  return {};
}

void forget_filter_probe() { g_allowed = false; }

}  // namespace shadowib
