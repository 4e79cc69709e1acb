#include "shadowib/exchange/directory_waiter.h"

#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>

#include <algorithm>

#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

constexpr std::uint32_t kEvents = IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF;
constexpr std::int64_t kFirstInterval = 1'000'000, kInterval = 50'000'000, kIdleInterval = 500'000'000;

}  // namespace

void DirectoryWaiter::arm(const std::string* paths, int count) {
  if (!tried_) {
    tried_ = true;
    UnownedDescriptors unowned;
    inotify_ = adopt_owned(unowned, static_cast<int>(::syscall(SYS_inotify_init1, IN_CLOEXEC | IN_NONBLOCK)));
  }
  polling_ = remote_ || !inotify_;
  for (int i = 0; i < kMaxDirectories; ++i) {
    const std::string wanted = i < count ? paths[i] : std::string();
    if (paths_[i] == wanted && (wanted.empty() || watches_[i] >= 0)) continue;
    bool shared = false;  // inotify gives one number per directory, however often it is added
    for (int j = 0; j < kMaxDirectories; ++j) shared |= j != i && watches_[j] == watches_[i];
    if (watches_[i] >= 0 && !shared) ::syscall(SYS_inotify_rm_watch, inotify_.get(), watches_[i]);
    paths_[i] = wanted;
    watches_[i] = -1;
    if (wanted.empty() || !inotify_) continue;
    watches_[i] =
        static_cast<int>(::syscall(SYS_inotify_add_watch, inotify_.get(), wanted.c_str(), kEvents | IN_ONLYDIR));
    if (watches_[i] < 0) polling_ = true;
  }
}

// Reads all queued events; true if one was of a value, or of what is watched itself. A watch that the kernel dropped
// is forgotten, so that the next arm() makes it anew.
bool DirectoryWaiter::drain() {
  alignas(inotify_event) char buffer[4096];
  bool any = false;
  for (;;) {
    long got = ::syscall(SYS_read, inotify_.get(), buffer, sizeof(buffer));
    if (got <= 0) return any;
    for (long at = 0; at < got;) {
      auto* event = reinterpret_cast<inotify_event*>(buffer + at);
      any |= event->len == 0 || event->name[0] == '=';
      at += static_cast<long>(sizeof(*event) + event->len);
      if ((event->mask & (IN_IGNORED | IN_MOVE_SELF | IN_UNMOUNT)) == 0) continue;
      for (int i = 0; i < kMaxDirectories; ++i)
        if (watches_[i] == event->wd) watches_[i] = -1;
    }
  }
}

std::int64_t DirectoryWaiter::interval_after(std::int64_t waited_ns) {
  const std::int64_t busy = std::clamp(waited_ns, kFirstInterval, kInterval);
  return std::clamp(waited_ns / 100, busy, std::max(busy, kIdleInterval));
}

bool DirectoryWaiter::wait(std::int64_t timeout_ns, int cancel_fd) {
  const std::int64_t start = monotonic_ns();
  if (polling_) {
    const std::int64_t interval = interval_after(start - begun_ns_);
    timeout_ns = timeout_ns < 0 ? interval : std::min(timeout_ns, interval);
  }
  for (std::int64_t left = timeout_ns;;) {
    pollfd fds[2] = {{cancel_fd, POLLIN, 0}, {inotify_ ? inotify_.get() : -1, POLLIN, 0}};
    timespec limit{left / 1000000000, left % 1000000000};
    const long ready = ::syscall(SYS_ppoll, fds, 2, timeout_ns < 0 ? nullptr : &limit, nullptr, _NSIG / 8);
    const bool changed = fds[1].revents != 0 && drain();
    if (changed) begin();
    if (cancel_fd >= 0 && fds[0].revents != 0) return true;
    if (changed || ready <= 0) return false;
    if (timeout_ns >= 0) left = std::max<std::int64_t>(start + timeout_ns - monotonic_ns(), 0);
  }
}

WaiterPool::~WaiterPool() {
  for (DirectoryWaiter* waiter : idle_) delete waiter;
}

DirectoryWaiter* WaiterPool::take(const std::string& directory) {
  {
    SpinGuard guard(lock_);
    DirectoryWaiter** best = nullptr;
    for (DirectoryWaiter*& waiter : idle_)
      if (waiter != nullptr &&
          (best == nullptr || waiter->directory() == directory || waiter->bell.directory() == directory))
        best = &waiter;
    if (best != nullptr) {
      DirectoryWaiter* waiter = *best;
      *best = nullptr;
      waiter->begin();
      return waiter;
    }
  }
  return new DirectoryWaiter(remote_);
}

void WaiterPool::give_back(DirectoryWaiter* waiter) {
  {
    SpinGuard guard(lock_);
    for (DirectoryWaiter*& slot : idle_)
      if (slot == nullptr) {
        slot = waiter;
        return;
      }
  }
  delete waiter;
}

}  // namespace shadowib
