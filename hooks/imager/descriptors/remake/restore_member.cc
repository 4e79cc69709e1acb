// What each member opens for itself, in its own process: timers, signals, epoll sets, files of /proc.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "hooks/imager/descriptors/capture/launcher_socket.h"
#include "hooks/imager/descriptors/remake/restore.h"
#include "shadowib/base/log.h"

namespace shadowib::descriptors {
namespace {

constexpr unsigned long kSetTicks = _IOW('T', 0, std::uint64_t);  // TFD_IOC_SET_TICKS
constexpr std::uint64_t kSecond = 1000000000;

timespec to_timespec(std::uint64_t ns) {
  return {static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
}

Status open_timer(const Object& o, int* fd) {
  *fd = ::timerfd_create(o.clock, TFD_CLOEXEC);
  if (*fd < 0) return restore_failure(Code::kRefused, o, "timerfd_create fails", errno);
  itimerspec setting{to_timespec(o.interval_ns), to_timespec(o.value_ns)};
  auto flags = static_cast<int>(o.kind_flags & TFD_TIMER_ABSTIME);
  if (o.value_ns == 0 && o.count != 0) {  // periodic and expired: armed again only by a read
    setting.it_value = setting.it_interval;
    flags = 0;
  }
  if (::timerfd_settime(*fd, flags, &setting, nullptr) != 0)
    return restore_failure(Code::kRefused, o, "timerfd_settime fails", errno);
  if (o.count == 0 || ::ioctl(*fd, kSetTicks, &o.count) == 0) return {};
  return restore_failure(Code::kRefused, o, "the kernel cannot set its unread expirations (TFD_IOC_SET_TICKS)",
                         errno);
}

}  // namespace

Status open_in_member(const Object& o, int* fd) {
  *fd = -1;
  if (o.kind == Kind::kFile || o.kind == Kind::kDirectory || o.kind == Kind::kDevice) return open_path(o, fd);
  if (o.kind == Kind::kTimerfd) {
    SHADOWIB_TRY(open_timer(o, fd));
  } else if (o.kind == Kind::kSignalfd) {
    // The kernel's own mask of 64 signals: the libc type has room for more.
    *fd = static_cast<int>(::syscall(SYS_signalfd4, -1, &o.count, sizeof(o.count), SFD_CLOEXEC));
  } else if (o.kind == Kind::kLauncher) {
    SHADOWIB_TRY(open_silent_socket(o, fd));
  } else if (o.kind == Kind::kEpoll) {
    *fd = ::epoll_create1(EPOLL_CLOEXEC);
  } else if (o.kind == Kind::kThreadFile) {  // until the thread is there (late.h)
    *fd = ::open("/dev/null", (o.flags & O_ACCMODE) | O_CLOEXEC);
  }
  if (*fd < 0) return restore_failure(Code::kInternal, o, "it cannot be made again", errno);
  set_status_flags(*fd, o.flags);
  return {};
}

Status fill_epoll_sets(const Table& table) {
  for (std::uint32_t i = 0; i < table.objects.size(); ++i) {
    const Object& o = table.objects[i];
    if (o.kind != Kind::kEpoll) continue;
    int epoll = table.first_fd(i);
    for (const EpollEntry& entry : o.entries) {
      epoll_event event{};
      event.events = entry.events;
      event.data.u64 = entry.data;
      if (::epoll_ctl(epoll, EPOLL_CTL_ADD, entry.fd, &event) == 0) continue;
      if (errno == EPERM)  // a standard stream that was a terminal or pipe and is a file or /dev/null here
        log_line(LogLevel::kWarn, "restart: epoll set %d cannot watch descriptor %d any more: it is a file now",
                 epoll, entry.fd);
      else
        return restore_failure(Code::kInternal, o, ("it cannot watch descriptor " + std::to_string(entry.fd)).c_str(),
                               errno);
    }
  }
  return {};
}

}  // namespace shadowib::descriptors
