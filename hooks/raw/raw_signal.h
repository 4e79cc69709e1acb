// Signal dispositions as the kernel knows them: libc hides two signals from masks and wraps the rest.
#pragma once

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace shadowib {

struct KernelSigaction {
  std::uintptr_t handler;
  std::uint64_t flags;
  std::uintptr_t restorer;
  std::uint64_t mask;
};
inline constexpr std::uintptr_t kHandlerDefault = 0, kHandlerIgnore = 1;
inline constexpr std::uint64_t kKernelRestorer = 0x04000000;  // SA_RESTORER

inline int raw_sigaction(int signal, const KernelSigaction* action, KernelSigaction* old) {
  return static_cast<int>(::syscall(SYS_rt_sigaction, signal, action, old, sizeof(std::uint64_t)));
}
inline int raw_sigmask(int how, const std::uint64_t* set, std::uint64_t* old) {
  return static_cast<int>(::syscall(SYS_rt_sigprocmask, how, set, old, sizeof(std::uint64_t)));
}
inline std::uint64_t signal_bit(int signal) { return std::uint64_t{1} << (signal - 1); }

// Signals that libc uses between threads (SIGCANCEL, SIGSETXID): a thread that blocks them for good makes setuid()
// hang.
inline constexpr std::uint64_t kLibcSignals = std::uint64_t{3} << 31;
inline constexpr int kLibcSignal = 33;  // SIGSETXID, which no thread of libc's blocks

// The stop signal, chosen from SHADOWIB_SIGNAL the first time somebody asks. Async-signal-safe afterwards.
int stop_signal_number();

// Blocks every signal, without exception, for its lifetime.
class [[nodiscard]] AllSignalsBlocked {
 public:
  explicit AllSignalsBlocked(std::uint64_t except = 0) {
    const std::uint64_t all = ~except;
    raw_sigmask(SIG_SETMASK, &all, &old_);
  }
  ~AllSignalsBlocked() { raw_sigmask(SIG_SETMASK, &old_, nullptr); }
  std::uint64_t before() const { return old_; }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  std::uint64_t old_ = 0;
};

}  // namespace shadowib
