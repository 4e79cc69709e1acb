#include "shadowib/cli/supervise/signals.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "shadowib/base/ignored_signal.h"

namespace shadowib::cli {
namespace {

constexpr int kHeld[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCHLD};

}  // namespace

HeldSignals::HeldSignals(int extra) {
  sigset_t held;
  ::sigemptyset(&held);
  for (const int signal : kHeld)
    if (!is_ignored(signal)) ::sigaddset(&held, signal);
  if (extra != 0 && !is_ignored(extra)) ::sigaddset(&held, extra);
  ::pthread_sigmask(SIG_BLOCK, &held, nullptr);
  fd_ = ::signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK);
}

HeldSignals::~HeldSignals() {
  if (fd_ >= 0) ::close(fd_);
}

void HeldSignals::wait(int ms) const {
  pollfd poll{fd_, POLLIN, 0};
  ::poll(&poll, 1, ms);
}

int HeldSignals::take(bool* by_terminal) const {
  signalfd_siginfo info{};
  while (::read(fd_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    if (info.ssi_signo == SIGCHLD) continue;
    *by_terminal = info.ssi_code == SI_KERNEL;
    return static_cast<int>(info.ssi_signo);
  }
  return 0;
}

bool HeldSignals::ends(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

}  // namespace shadowib::cli
