#include "libraries/portable/runtime/saver.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace shadowib::portable {
namespace {

pid_t saver = 0;

Saved reap(int options, std::string* reason) {
  if (saver == 0) return Saved::kNothingNew;
  int status = 0;
  pid_t ended = 0;
  do ended = waitpid(saver, &status, options | __WALL);
  while (ended < 0 && errno == EINTR);
  if (ended == 0) return Saved::kNothingNew;
  saver = 0;
  if (ended > 0 && WIFEXITED(status)) return WEXITSTATUS(status) == 0 ? Saved::kWritten : Saved::kRefused;
  *reason = ended > 0 ? "its saver was ended by signal " + std::to_string(WTERMSIG(status)) : "its saver is lost";
  return Saved::kDied;
}

}  // namespace

bool begin_saver(std::string (*write)()) {
  const pid_t program = getpid();
  // A child without a signal at its end. All arguments are zero, so their order, which processors have differently,
  // does not count. The process has one thread, so none holds a lock of the C library.
  const long child = syscall(SYS_clone, 0L, 0L, 0L, 0L, 0L);
  if (child < 0) return false;
  if (child > 0) {
    saver = static_cast<pid_t>(child);
    return true;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != program) _exit(1);
  // Others wait for the end of the program's pipes and locks.
  closefrom(STDERR_FILENO + 1);
  _exit(write().empty() ? 0 : 1);
}

bool saver_runs() { return saver != 0; }
Saved look_at_saver(std::string* reason) { return reap(WNOHANG, reason); }
Saved end_saver(std::string* reason) { return reap(0, reason); }

}  // namespace shadowib::portable
