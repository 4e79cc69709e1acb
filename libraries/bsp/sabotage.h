// Guards that a test can leave out, to see that it finds what they prevent. In the library itself they all stand, and
// nothing of this is compiled; ci/acceptance/bsp_library.py uses a second one.
#pragma once

#ifdef SHADOWIB_BSP_SABOTAGE
#include <poll.h>

#include <cstdlib>
#include <cstring>
#endif

namespace shadowib::bsp {

#ifdef SHADOWIB_BSP_SABOTAGE
// SHADOWIB_BSP_SABOTAGE names the guard that is left out.
inline bool without(const char* guard) {
  static const char* const named = std::getenv("SHADOWIB_BSP_SABOTAGE");
  return named != nullptr && std::strcmp(named, guard) == 0;
}
// Where a guard counts that process is slow.
inline void dawdle(int process, int slow_process) {
  if (process == slow_process && std::getenv("SHADOWIB_BSP_SABOTAGE") != nullptr) ::poll(nullptr, 0, 3);
}
#else
constexpr bool without(const char*) { return false; }
constexpr void dawdle(int, int) {}
#endif

}  // namespace shadowib::bsp
