#include "hooks/agent/fault_report.h"

#include <ucontext.h>

#include <atomic>
#include <cstdio>

#include "hooks/raw/tasks.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/log.h"
#include "shadowib/base/mappings.h"

namespace shadowib {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
std::atomic<bool> g_reports{false};
unsigned g_member = 0;

// "FILE+0xOFFSET", as addr2line takes it.
void describe_code(std::uint64_t at, char* text, std::size_t bytes) {
  std::snprintf(text, bytes, "0x%lx", at);
  for_each_mapping(MappingsOf::kExecutable, kOwnMaps, [&](const Mapping& mapping) {
    if (at < mapping.start || at >= mapping.end) return true;
    if (mapping.name[0] != '\0')
      std::snprintf(text, bytes, "%s+0x%lx", mapping.name, at - mapping.start + mapping.offset);
    return false;
  });
}

void on_fault(int signal, siginfo_t* info, void* context) {
  auto* interrupted = static_cast<ucontext_t*>(context);
  if (info->si_code <= 0) {  // somebody has sent it to the program, which takes it when it goes on
    std::uint64_t mask;
    __builtin_memcpy(&mask, &interrupted->uc_sigmask, sizeof(mask));
    mask |= signal_bit(signal);
    __builtin_memcpy(&interrupted->uc_sigmask, &mask, sizeof(mask));
    ::syscall(SYS_rt_sigqueueinfo, raw_getpid(), signal, info);
    return;
  }
  const KernelSigaction fatal{};
  for (const int each : kSignals) raw_sigaction(each, &fatal, nullptr);
  char code[300];
  describe_code(static_cast<std::uint64_t>(interrupted->uc_mcontext.gregs[REG_RIP]), code, sizeof(code));
  log_line(LogLevel::kError,
           "member %u dies by signal %d while it comes back, at address %p, in code at %s; please report it. "
           "The set is as it was: the restart may be tried again",
           g_member, signal, info->si_addr, code);
  ::syscall(SYS_tgkill, raw_getpid(), raw_gettid(), signal);  // blocked until this returns
}

}  // namespace

FaultReports::FaultReports(unsigned member) {
  g_member = member;
  KernelSigaction action{};
  action.handler = reinterpret_cast<std::uintptr_t>(&on_fault);
  action.flags = SA_SIGINFO | SA_ONSTACK | kKernelRestorer;
  action.restorer = signal_return_address();
  action.mask = ~std::uint64_t{0};
  for (int i = 0; i < 4; ++i) raw_sigaction(kSignals[i], &action, &program_[i]);
  g_reports = true;
}

FaultReports::~FaultReports() {
  g_reports = false;
  for (int i = 0; i < 4; ++i) raw_sigaction(kSignals[i], &program_[i], nullptr);
}

TakesFaults::TakesFaults() {
  std::uint64_t taken = 0;
  for (const int each : kSignals) taken |= g_reports ? signal_bit(each) : 0;
  raw_sigmask(SIG_UNBLOCK, &taken, &before_);
}

}  // namespace shadowib
