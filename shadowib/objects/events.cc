#include "shadowib/objects/events.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/event_descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

// poll ends for every handler, read only for one without SA_RESTART. Which handler it was nobody tells: if one of
// those that could run is of that kind, it was that one; its owner is prepared for EINTR (qperf waits for it).
bool may_be_interrupted() {
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  bool found = false;
  for (int signal = 1; signal <= SIGRTMAX && !found; ++signal) {
    struct sigaction action {};
    if (::sigismember(&blocked, signal) == 1 || ::sigaction(signal, nullptr, &action) != 0) continue;
    switch (signal) {
      case SIGSEGV:
      case SIGBUS:
      case SIGFPE:
      case SIGILL:
      case SIGTRAP:
      case SIGSYS:
      case SIGABRT:
        continue;  // of what a thread does itself, and it was asleep
      default:
        found = action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN && (action.sa_flags & SA_RESTART) == 0;
    }
  }
  errno = EINTR;
  return found;
}

}  // namespace

int EventQueue::open(int real_fd) {
  int fd = ::epoll_create1(EPOLL_CLOEXEC);
  if (fd < 0) return -1;
  if (!attach(fd, real_fd)) {
    int saved = errno;
    ::close(fd);
    errno = saved;
    return -1;
  }
  g_event_descriptors.add(fd);
  return fd;
}

bool EventQueue::attach(int program_fd, int real_fd) {
  UnownedDescriptors unowned;
  eventfd_ = unowned.own(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (eventfd_ < 0) return false;
  signaled_ = false;
  epoll_event entry{.events = EPOLLIN, .data = {.u64 = kOwnedEntry}};
  if (::epoll_ctl(program_fd, EPOLL_CTL_ADD, eventfd_, &entry) != 0) return false;
  return real_fd < 0 || ::epoll_ctl(program_fd, EPOLL_CTL_ADD, real_fd, &entry) == 0;
}

bool EventQueue::reattach(int program_fd, int real_fd) { return attach(program_fd, real_fd); }

void EventQueue::close(int program_fd) {
  g_event_descriptors.remove(program_fd);
  ::close(program_fd);
  close_owned_descriptor(eventfd_);
  eventfd_ = -1;
}

void EventQueue::update_signal(bool pending) {
  if (pending == signaled_ || eventfd_ < 0) return;
  std::uint64_t one = 1;
  [[maybe_unused]] auto n = pending ? ::write(eventfd_, &one, sizeof(one)) : ::read(eventfd_, &one, sizeof(one));
  signaled_ = pending;
}

bool EventQueue::wait(int program_fd) {
  int flags = ::fcntl(program_fd, F_GETFL);
  if (flags < 0) return false;
  if (flags & O_NONBLOCK) {
    errno = EAGAIN;
    return false;
  }
  pollfd p{program_fd, POLLIN, 0};
  int ready = ::poll(&p, 1, -1);
  if (ready < 0 && (errno != EINTR || may_be_interrupted())) return false;
  if (ready > 0 && (p.revents & POLLNVAL)) {
    errno = EBADF;
    return false;
  }
  return true;
}

}  // namespace shadowib
