#include "hooks/imager/save/fatal_signals.h"

#include <signal.h>

namespace shadowib {
namespace {

constexpr std::uint64_t bit(int signal) { return 1ull << (signal - 1); }
constexpr std::uint64_t kIgnoredByDefault = bit(SIGCHLD) | bit(SIGCONT) | bit(SIGURG) | bit(SIGWINCH);

}  // namespace

std::uint32_t leave_out_fatal(std::uint8_t (*pending)[128], std::uint32_t count, const SignalAction (&actions)[64],
                              std::uint64_t blocked, std::uint64_t requests) {
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::int32_t signal = *reinterpret_cast<const std::int32_t*>(pending[i]);
    if ((requests & bit(signal)) != 0) continue;
    const bool has_default_action = actions[signal - 1].handler == 0;
    if (has_default_action && ((blocked | kIgnoredByDefault) & bit(signal)) == 0) continue;
    if (kept != i) __builtin_memcpy(pending[kept], pending[i], sizeof(*pending));
    ++kept;
  }
  return kept;
}

}  // namespace shadowib
