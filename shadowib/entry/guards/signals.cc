// Guards that keep our signals (stop.h, request_signals.h) deliverable, and the program's own use of them apart.
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/select.h>
#include <sys/signalfd.h>

#include <cstring>

#include "hooks/raw/raw_signal.h"
#include "hooks/threads/request_signals.h"
#include "hooks/threads/stop.h"
#include "hooks/threads/stop_guards.h"
#include "shadowib/entry/guards/guard.h"
#include "shadowib/entry/guards/masks.h"

using shadowib::Next;
using shadowib::without_our_signals;

namespace shadowib {

const sigset_t* without_our_signals(const sigset_t* set, sigset_t* copy) {
  if (set == nullptr) return set;
  std::uint64_t bits;
  std::memcpy(&bits, set, sizeof(bits));
  const std::uint64_t ours = signal_bit(stop_signal_number()) | request_signals();
  if ((bits & ours) == 0) return set;
  bits &= ~ours;
  std::memcpy(copy, set, sizeof(*copy));
  std::memcpy(copy, &bits, sizeof(bits));
  return copy;
}

}  // namespace shadowib

namespace {

Next<int(int, const sigset_t*, sigset_t*)> g_pthread_sigmask{"pthread_sigmask"};
Next<int(int, const sigset_t*, sigset_t*)> g_sigprocmask{"sigprocmask"};
Next<int(pthread_attr_t*, const sigset_t*)> g_attr_setsigmask{"pthread_attr_setsigmask_np"};
Next<int(const sigset_t*)> g_sigsuspend{"sigsuspend"};
Next<int(const sigset_t*, int*)> g_sigwait{"sigwait"};
Next<int(const sigset_t*, siginfo_t*)> g_sigwaitinfo{"sigwaitinfo"};
Next<int(int, const sigset_t*, int)> g_signalfd{"signalfd"};
Next<int(pollfd*, nfds_t, const timespec*, const sigset_t*)> g_ppoll{"ppoll"};
Next<int(pollfd*, nfds_t, const timespec*, const sigset_t*, std::size_t)> g_ppoll_chk{"__ppoll_chk"};
Next<int(int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*)> g_pselect{"pselect"};
Next<int(int, const struct sigaction*, struct sigaction*)> g_sigaction{"sigaction"};
Next<sighandler_t(int, sighandler_t)> g_signal{"signal"};
Next<sighandler_t(int, sighandler_t)> g_sysv_signal{"__sysv_signal"};
Next<sighandler_t(int, sighandler_t)> g_sigset{"sigset"};
Next<int(int)> g_sigignore{"sigignore"};
Next<int(int)> g_sighold{"sighold"};

bool is_ours(int signal) {
  return (signal == shadowib::stop_signal_number() && shadowib::stop_owns_signal(signal)) ||
         shadowib::is_request_signal(signal);
}

// The program's view of its action for a signal of ours, which is not the kernel's.
int exchange_kept_action(int signal, const struct sigaction* action, struct sigaction* old) {
  shadowib::KernelSigaction wanted{}, before{};
  if (action != nullptr) {
    wanted.handler = reinterpret_cast<std::uintptr_t>(action->sa_handler);
    wanted.flags = static_cast<unsigned>(action->sa_flags);
    std::memcpy(&wanted.mask, &action->sa_mask, sizeof(wanted.mask));
  }
  const shadowib::KernelSigaction* const given = action != nullptr ? &wanted : nullptr;
  if (signal == shadowib::stop_signal_number())
    shadowib::stop_program_action(given, &before);
  else
    shadowib::exchange_request_action(signal, given, &before);
  if (old != nullptr) {
    std::memset(old, 0, sizeof(*old));
    old->sa_handler = reinterpret_cast<sighandler_t>(before.handler);
    old->sa_flags = static_cast<int>(before.flags & ~shadowib::kKernelRestorer);
    std::memcpy(&old->sa_mask, &before.mask, sizeof(before.mask));
  }
  return 0;
}

sighandler_t exchange_kept_handler(int signal, sighandler_t handler, int flags) {
  struct sigaction action {
  }, old{};
  action.sa_handler = handler;
  action.sa_flags = flags;
  exchange_kept_action(signal, &action, &old);
  return old.sa_handler;
}

}  // namespace

SHADOWIB_GUARD int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  sigset_t copy;
  if (how != SIG_UNBLOCK) set = without_our_signals(set, &copy);
  return g_pthread_sigmask(how, set, old);
}

SHADOWIB_GUARD int sigprocmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  sigset_t copy;
  if (how != SIG_UNBLOCK) set = without_our_signals(set, &copy);
  return g_sigprocmask(how, set, old);
}

SHADOWIB_GUARD int pthread_attr_setsigmask_np(pthread_attr_t* attr, const sigset_t* set) {
  sigset_t copy;
  return g_attr_setsigmask(attr, without_our_signals(set, &copy));
}

SHADOWIB_GUARD int sigsuspend(const sigset_t* set) {
  sigset_t copy;
  return g_sigsuspend(without_our_signals(set, &copy));
}

SHADOWIB_GUARD int sigwait(const sigset_t* set, int* signal) {
  sigset_t copy;
  return g_sigwait(without_our_signals(set, &copy), signal);
}

SHADOWIB_GUARD int sigwaitinfo(const sigset_t* set, siginfo_t* info) {
  sigset_t copy;
  return g_sigwaitinfo(without_our_signals(set, &copy), info);
}

SHADOWIB_GUARD int signalfd(int fd, const sigset_t* set, int flags) noexcept {
  sigset_t copy;
  return g_signalfd(fd, without_our_signals(set, &copy), flags);
}

SHADOWIB_GUARD int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* set) {
  sigset_t copy;
  return g_ppoll(fds, count, timeout, without_our_signals(set, &copy));
}

SHADOWIB_GUARD int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* set,
                               std::size_t bytes) {
  sigset_t copy;
  return g_ppoll_chk(fds, count, timeout, without_our_signals(set, &copy), bytes);
}

SHADOWIB_GUARD int pselect(int count, fd_set* in, fd_set* out, fd_set* except, const timespec* timeout,
                           const sigset_t* set) {
  sigset_t copy;
  return g_pselect(count, in, out, except, timeout, without_our_signals(set, &copy));
}

SHADOWIB_GUARD int sigaction(int signal, const struct sigaction* action, struct sigaction* old) noexcept {
  if (is_ours(signal)) return exchange_kept_action(signal, action, old);
  if (action == nullptr) return g_sigaction(signal, action, old);
  struct sigaction copy = *action;  // a handler may run for long and is to be stopped, too
  sigset_t mask;
  copy.sa_mask = *without_our_signals(&action->sa_mask, &mask);
  return g_sigaction(signal, &copy, old);
}

SHADOWIB_GUARD sighandler_t signal(int number, sighandler_t handler) noexcept {
  if (is_ours(number)) return exchange_kept_handler(number, handler, SA_RESTART);
  return g_signal(number, handler);
}

SHADOWIB_GUARD sighandler_t __sysv_signal(int number, sighandler_t handler) noexcept {
  if (is_ours(number)) return exchange_kept_handler(number, handler, static_cast<int>(SA_RESETHAND | SA_NODEFER));
  return g_sysv_signal(number, handler);
}

// libc's other ways, which do not come by the guards above.
SHADOWIB_GUARD sighandler_t bsd_signal(int number, sighandler_t handler) noexcept { return signal(number, handler); }
SHADOWIB_GUARD sighandler_t ssignal(int number, sighandler_t handler) noexcept { return signal(number, handler); }

SHADOWIB_GUARD int sigignore(int number) noexcept {
  if (!is_ours(number)) return g_sigignore(number);
  exchange_kept_handler(number, SIG_IGN, 0);
  return 0;
}

SHADOWIB_GUARD int sighold(int number) noexcept { return is_ours(number) ? 0 : g_sighold(number); }

SHADOWIB_GUARD sighandler_t sigset(int number, sighandler_t handler) noexcept {
  if (handler == SIG_HOLD && is_ours(number)) {  // would block it
    struct sigaction kept {};
    exchange_kept_action(number, nullptr, &kept);
    return kept.sa_handler;
  }
  if (is_ours(number)) return exchange_kept_handler(number, handler, 0);
  return g_sigset(number, handler);
}
