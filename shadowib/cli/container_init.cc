#include "shadowib/cli/container_init.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace shadowib::cli {
namespace {

constexpr int kEndedBySignal = 128;

// Ends with the child's exit code as soon as the child has ended.
void reap(pid_t child) {
  int status = 0;
  for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
    if (pid == child) ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : kEndedBySignal + WTERMSIG(status));
}

// All signals are blocked. A terminal sends its own to the child as well.
[[noreturn]] void stay(pid_t child, const sigset_t& all) {
  for (;;) {
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&all, &info);
    if (signal == SIGCHLD)
      reap(child);
    else if (signal > 0 && info.si_code != SI_KERNEL)
      ::kill(child, signal);
  }
}

}  // namespace

bool leave_init_behind() {
  if (::getpid() != 1) return true;
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t child = ::fork();
  if (child > 0) stay(child, all);
  const int error = errno;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return child == 0;
}

}  // namespace shadowib::cli
