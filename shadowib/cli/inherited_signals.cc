#include "shadowib/cli/inherited_signals.h"

#include <signal.h>

namespace shadowib::cli {
namespace {

struct {
  sigset_t mask;
  bool child_ignored;
} inherited;

}  // namespace

void note_inherited_signals() {
  ::sigprocmask(SIG_SETMASK, nullptr, &inherited.mask);
  inherited.child_ignored = is_ignored_by_caller(SIGCHLD);
  ::signal(SIGCHLD, SIG_DFL);
}

bool is_ignored_by_caller(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void give_back_inherited_signals() {
  if (inherited.child_ignored) ::signal(SIGCHLD, SIG_IGN);
  ::sigprocmask(SIG_SETMASK, &inherited.mask, nullptr);
}

}  // namespace shadowib::cli
