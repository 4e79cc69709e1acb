#include "hooks/agent/descriptor_room.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace shadowib {
namespace {

constexpr rlim_t kMore = 1024;        // numbers above the program's limit
constexpr rlim_t kHighest = 1 << 20;  // base/descriptors.h knows no number above

bool g_raised = false;
rlimit g_program{};

// Counts from the top, where numbers are free in most programs; up to kRoomForCheckpoint.
int free_numbers(rlim_t limit) {
  int found = 0;
  for (auto fd = static_cast<int>(std::min(limit, kHighest)) - 1; fd >= 0 && found < kRoomForCheckpoint; --fd)
    if (::syscall(SYS_fcntl, fd, F_GETFD) < 0 && errno == EBADF) ++found;
  return found;
}

bool set_limit(const rlimit& limit) { return ::setrlimit(RLIMIT_NOFILE, &limit) == 0; }

}  // namespace

Status make_descriptor_room() {
  rlimit now{};
  if (g_raised || ::getrlimit(RLIMIT_NOFILE, &now) != 0) return {};
  const int free = free_numbers(now.rlim_cur);
  if (free >= kRoomForCheckpoint) return {};
  const rlim_t wanted = now.rlim_cur + kMore;
  g_program = now;
  // The second with CAP_SYS_RESOURCE alone.
  g_raised = set_limit(wanted <= now.rlim_max ? rlimit{wanted, now.rlim_max} : rlimit{wanted, wanted}) ||
             (now.rlim_cur < now.rlim_max && set_limit({now.rlim_max, now.rlim_max}));
  rlimit raised{};
  ::getrlimit(RLIMIT_NOFILE, &raised);
  if (free_numbers(raised.rlim_cur) >= kRoomForCheckpoint) return {};
  give_back_descriptor_room();
  return Status::of(Code::kRefused, EMFILE,
                    "%d descriptors below RLIMIT_NOFILE (%lu, hard %lu) are free, and a checkpoint opens up to %d; "
                    "raise the hard limit (ulimit -Hn), or let the program close some",
                    free, static_cast<unsigned long>(now.rlim_cur), static_cast<unsigned long>(now.rlim_max),
                    kRoomForCheckpoint);
}

void give_back_descriptor_room() {
  if (!g_raised) return;
  g_raised = false;
  if (set_limit(g_program)) return;
  // The hard limit is lower where the process was restarted.
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  set_limit({std::min(g_program.rlim_cur, now.rlim_max), now.rlim_max});
}

bool has_descriptor_room(rlimit* program) {
  *program = g_program;
  return g_raised;
}

}  // namespace shadowib
