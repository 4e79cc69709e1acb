// Pseudo-terminals of the job, with the numbers they had as far as these are free.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "hooks/imager/descriptors/pty.h"
#include "hooks/imager/descriptors/remake/restore.h"
#include "shadowib/base/log.h"

namespace shadowib::descriptors {
namespace {

constexpr int kUnlocked = 0, kLocked = 1;

// The kernel gives the lowest number that is free, so those below are held until the one is there.
class PtyMaker {
 public:
  explicit PtyMaker(Plan* plan) : plan_(*plan) {}
  ~PtyMaker() {
    for (const int fd : below_) ::close(fd);
  }

  Status make(const Object& like, int* master) {
    const unsigned wanted = minor(like.rdev);
    for (;;) {
      *master = ::open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
      if (*master < 0)
        return restore_failure(Code::kRefused, like,
                               "no pseudo-terminal can be had; see /dev/ptmx, kernel.pty.max and RLIMIT_NOFILE",
                               errno);
      unsigned number = 0;
      if (::ioctl(*master, TIOCGPTN, &number) != 0 || number >= wanted) {
        if (number != wanted)
          log_line(LogLevel::kWarn, "restart: %s comes back as /dev/pts/%u: its number is taken", like.path.c_str(),
                   number);
        plan_.own(*master);
        ::ioctl(*master, TIOCSPTLCK, &kUnlocked);
        return {};
      }
      below_.push_back(*master);
    }
  }

 private:
  Plan& plan_;
  std::vector<int> below_;
};

// Two members that inherited the slave share its description: told by equal flags, as nothing else tells.
Status open_slaves(Plan* plan, const PtyLink& link, int master) {
  std::map<std::pair<int, int>, int> made;  // flags, how many of these the member had before
  std::map<std::pair<const Table*, int>, int> seen;
  for (const Holder& h : link.slaves) {
    const int flags = h.object().flags & (O_ACCMODE | O_NONBLOCK | O_APPEND);
    auto [at, added] = made.emplace(std::make_pair(flags, seen[{h.table, flags}]++), -1);
    if (added) {
      at->second = open_slave(master, flags);
      if (at->second < 0) return restore_failure(Code::kRefused, h.object(), "it cannot be opened", errno);
      plan->own(at->second);
      set_status_flags(at->second, flags);
    }
    plan->sources[&h.object()] = at->second;
  }
  return {};
}

Status restore_pty(Plan* plan, PtyMaker* maker, const PtyKey& key, const PtyLink& link) {
  const Object& o = *link.contents;
  int master = -1;
  SHADOWIB_TRY(maker->make(o, &master));
  const int slave = open_slave(master, O_RDWR | O_NONBLOCK);
  if (slave < 0) return restore_failure(Code::kRefused, o, "its slave cannot be opened", errno);
  plan->terminals[key] = plan->own(slave);
  SHADOWIB_TRY(open_slaves(plan, link, master));
  ::fcntl(master, F_SETFL, O_NONBLOCK);
  if (const Status status = fill_pty(master, slave, o); !status.ok())
    return restore_failure(Code::kRefused, o, status.text(), status.error());
  if ((o.pty_flags & kPtyExclusive) != 0) ::ioctl(slave, TIOCEXCL);
  if ((o.pty_flags & kPtyLocked) != 0) ::ioctl(master, TIOCSPTLCK, &kLocked);
  set_status_flags(master, o.flags);
  for (const Holder& h : link.masters) plan->sources[&h.object()] = master;
  return {};
}

// A slave whose master is gone: one whose master goes.
Status restore_hung_up(Plan* plan, const PtyLink& link) {
  const int master = ::open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
  const Object& any = link.slaves.front().object();
  if (master < 0) return restore_failure(Code::kRefused, any, "no pseudo-terminal can be had", errno);
  ::ioctl(master, TIOCSPTLCK, &kUnlocked);
  const Status status = open_slaves(plan, link, master);
  ::close(master);
  return status;
}

}  // namespace

Status restore_ptys(Plan* plan) {
  PtyMaker maker(plan);
  // By number, as the kernel counts up.
  std::vector<std::pair<const PtyKey*, const PtyLink*>> links;
  for (const auto& [key, link] : plan->links.ptys) links.emplace_back(&key, &link);
  std::sort(links.begin(), links.end(), [](const auto& a, const auto& b) { return a.first->rdev < b.first->rdev; });
  for (const auto& [key, link] : links)
    if (!link->masters.empty()) SHADOWIB_TRY(restore_pty(plan, &maker, *key, *link));
  for (const auto& [key, link] : links)
    if (link->masters.empty()) SHADOWIB_TRY(restore_hung_up(plan, *link));
  return {};
}

}  // namespace shadowib::descriptors
