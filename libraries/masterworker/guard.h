// The steps that stand between a task farm and its hazards M1 to M16 (docs/internals/masterworker.md), each by a
// name, so that a test can leave one out and see the harm that it prevents.
//
// Only in libraries built for such tests (SHADOWIB_GUARDS): they leave out what SHADOWIB_GUARD_OFF names, "m1" or
// "m2.order,m12", or what switch_guard() says. In the product guarded() is a constant.
#pragma once

#include <cstdint>

namespace shadowib::masterworker {

enum class Guard : std::uint8_t {
  kDropLate,         // m1: results of rounds that have one are dropped unseen
  kKnowLife,         // m1.life: and so are those from before a restart
  kCatchUp,          // m2: who joins gets the updates since its birth
  kSkipKnown,        // m2.known: and applies none twice
  kForkOutside,      // m3: no farm, and so no fork, inside a callback
  kJudgeHandout,     // m4: up to date is judged by the hand-out that is checked
  kRedoAtHome,       // m5: REDO runs where the private data are; elsewhere the task begins anew
  kRepeatHello,      // m7: hellos are repeated until they are answered
  kOwnDescriptors,   // m10.descriptors: workers hold no pipe of the master, and have offsets of their own
  kFlushStreams,     // m10.streams: streams are flushed before a fork
  kPrivateMappings,  // m10.mappings: shared mappings of the master are private in a worker
  kLimitLag,         // m12: a worker that lags too far behind in updates is given up
  kFixedBuffers,     // m14: buffers of the master do not grow with workers
  kSleepAlone,       // m16: a master without workers sleeps
};

#if defined(SHADOWIB_GUARDS)
bool guarded(Guard guard);
// Leaves the guard out, or back in. For tests in one process.
void switch_guard(Guard guard, bool on);
#else
constexpr bool guarded(Guard) { return true; }
#endif

}  // namespace shadowib::masterworker
