#include "hooks/threads/request_signals.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "hooks/raw/tasks.h"
#include "hooks/threads/blocked_call.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr int kSignals = 64;
// What the processor raises, what nobody can catch, and what libc keeps to itself.
constexpr int kNotToBeTaken[] = {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGCHLD, 32, 33};

std::uint64_t g_chosen = 0;
std::atomic<std::uint64_t> g_signals{0}, g_killing{0};  // ours; of those, the ones that end the job
std::atomic<std::uint64_t> g_received{0};
std::atomic<int> g_pid{0};
const std::atomic<int>* g_wake_fd = nullptr;
// Guards the actions that follow. The handler reads them without it, as does the installation before there is a
// handler.
SpinLock g_lock;
KernelSigaction g_program_actions[kSignals + 1];

// The kernel wants a return path from a handler, which the stop signal's has; libc's own is not known.
KernelSigaction with_way_back(KernelSigaction action) {
  if ((action.flags & kKernelRestorer) != 0) return action;
  KernelSigaction stop{};
  raw_sigaction(stop_signal_number(), nullptr, &stop);
  action.flags |= kKernelRestorer;
  action.restorer = stop.restorer;
  return action;
}

void take_back(int signal) {
  const KernelSigaction action = with_way_back(g_program_actions[signal]);
  raw_sigaction(signal, &action, nullptr);
}

// In a process that is no member but has the handler: a child of vfork(), or of a fork() that libc does not see.
void do_as_the_program(int signal, siginfo_t* info, void* context) {
  const KernelSigaction& action = g_program_actions[signal];
  if (action.handler == kHandlerIgnore) return;
  if (action.handler != kHandlerDefault) {
    if ((action.flags & SA_SIGINFO) != 0)
      reinterpret_cast<void (*)(int, siginfo_t*, void*)>(action.handler)(signal, info, context);
    else
      reinterpret_cast<void (*)(int)>(action.handler)(signal);
    return;
  }
  take_back(signal);
  const std::uint64_t self = signal_bit(signal);
  ::syscall(SYS_tgkill, raw_getpid(), raw_gettid(), signal);
  raw_sigmask(SIG_UNBLOCK, &self, nullptr);
}

void on_request_signal(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  if (raw_getpid() != g_pid.load(std::memory_order_relaxed)) {
    do_as_the_program(signal, info, context);
    errno = saved;
    return;
  }
  InterruptedCall call(static_cast<ucontext_t*>(context), nullptr);
  g_received.fetch_or(signal_bit(signal));
  const std::uint64_t one = 1;
  ::syscall(SYS_write, g_wake_fd->load(std::memory_order_relaxed), &one, sizeof(one));
  call.go_on();
  errno = saved;
}

int number_of(const std::string& name) {
  if (!name.empty() && name.size() <= 2 && name.find_first_not_of("0123456789") == std::string::npos)
    return std::atoi(name.c_str());
  const char* const short_name = name.c_str() + (name.rfind("SIG", 0) == 0 ? 3 : 0);
  for (int signal = 1; signal < kSignals; ++signal)
    if (const char* known = ::sigabbrev_np(signal); known != nullptr && std::strcmp(known, short_name) == 0)
      return signal;
  return 0;
}

Status parse_one(const std::string& name, std::uint64_t* signals) {
  const int signal = number_of(name);
  if (signal < 1 || signal > kSignals)
    return Status::of(Code::kUsage, 0, "'%.40s' is no signal; name them as USR1,TERM", name.c_str());
  bool taken = signal == stop_signal_number();
  for (int other : kNotToBeTaken) taken |= signal == other;
  if (taken) return Status::of(Code::kUsage, 0, "signal %.40s cannot be taken for checkpoints", name.c_str());
  *signals |= signal_bit(signal);
  return {};
}

}  // namespace

Status parse_request_signals(const char* text, std::uint64_t* signals) {
  *signals = 0;
  const std::string list(text);
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    SHADOWIB_TRY(parse_one(list.substr(at, end - at), signals));
    at = end + 1;
  }
  return {};
}

namespace {

Status parse_variable(const char* name, std::uint64_t* signals) {
  const char* text = std::getenv(name);
  if (text == nullptr || text[0] == '\0') return {};
  Status status = parse_request_signals(text, signals);
  return status.ok() ? status : Status::of(status.code(), 0, "%s: %.200s", name, status.text());
}

}  // namespace

Status choose_request_signals() {
  std::uint64_t checkpoint = 0, kill = 0;
  SHADOWIB_TRY(parse_variable("SHADOWIB_CHECKPOINT_ON", &checkpoint));
  SHADOWIB_TRY(parse_variable("SHADOWIB_KILL_ON", &kill));
  g_chosen = checkpoint | kill;
  g_killing = kill;
  return {};
}

void install_request_signals(const std::atomic<int>* wake_fd) {
  const std::uint64_t all = g_chosen;
  g_wake_fd = wake_fd;
  g_received = 0;
  g_pid = raw_getpid();
  for (int signal = 1; signal <= kSignals; ++signal) {
    if ((all & signal_bit(signal)) == 0) continue;
    KernelSigaction action{};
    action.handler = reinterpret_cast<std::uintptr_t>(&on_request_signal);
    action.flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    action.mask = ~std::uint64_t{0};
    action = with_way_back(action);
    KernelSigaction old{};
    raw_sigaction(signal, &action, &old);
    if (old.handler != action.handler) g_program_actions[signal] = old;
  }
  g_signals = all;
  raw_sigmask(SIG_UNBLOCK, &all, nullptr);
}

bool is_request_signal(int signal) { return signal >= 1 && (request_signals() & signal_bit(signal)) != 0; }

std::uint64_t request_signals() {
  const std::uint64_t all = g_signals.load(std::memory_order_relaxed);
  return all != 0 && raw_getpid() == g_pid.load(std::memory_order_relaxed) ? all : 0;
}

void exchange_request_action(int signal, const KernelSigaction* action, KernelSigaction* old) {
  AllSignalsBlocked blocked;  // a handler may set an action, too
  SpinGuard guard(g_lock);
  if (old != nullptr) *old = g_program_actions[signal];
  if (action != nullptr) g_program_actions[signal] = *action;
}

SignalledRequest take_signalled_request() {
  std::uint64_t count;
  if (g_wake_fd != nullptr) ::syscall(SYS_read, g_wake_fd->load(), &count, sizeof(count));
  const std::uint64_t received = g_received.exchange(0);
  return {received != 0, (received & g_killing.load()) != 0};
}

void drop_signalled_request() { g_received = 0; }

void give_back_request_signals() {
  g_lock.reset();
  const std::uint64_t all = g_signals.exchange(0);
  for (int signal = 1; signal <= kSignals; ++signal)
    if ((all & signal_bit(signal)) != 0) take_back(signal);
  g_pid = 0;
}

}  // namespace shadowib
