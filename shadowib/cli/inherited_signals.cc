#include "shadowib/cli/inherited_signals.h"

#include <signal.h>

#include "shadowib/base/ignored_signal.h"

namespace shadowib::cli {
namespace {

struct {
  sigset_t mask;
  bool child_ignored;
} inherited;

}  // namespace

void note_inherited_signals() {
  ::sigprocmask(SIG_SETMASK, nullptr, &inherited.mask);
  inherited.child_ignored = is_ignored(SIGCHLD);
  ::signal(SIGCHLD, SIG_DFL);
}

void give_back_inherited_signals() {
  if (inherited.child_ignored) ::signal(SIGCHLD, SIG_IGN);
  ::sigprocmask(SIG_SETMASK, &inherited.mask, nullptr);
}

}  // namespace shadowib::cli
