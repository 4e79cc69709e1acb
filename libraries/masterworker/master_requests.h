// Work requests of the master's end of the wire: their ids, and how many there are at once.
#pragma once

#include <cstdint>

#include "libraries/masterworker/master_link.h"

namespace shadowib::masterworker {

// A work request's id: what it is, a serial that tells an old request of a slot from the present one, the slot.
enum class Work : std::uint64_t { kReceive = 1, kSend, kInline, kRead, kPing, kWrite, kHello, kAnswer };
inline constexpr int kIndexBits = 16;
inline std::uint64_t work_id(Work work, std::uint64_t serial, std::uint64_t index = 0) {
  return static_cast<std::uint64_t>(work) << 60 | (serial & 0xfffffffffff) << kIndexBits | index;
}
inline Work work_of(std::uint64_t id) { return static_cast<Work>(id >> 60); }
inline std::uint64_t serial_of(std::uint64_t id) { return id >> kIndexBits & 0xfffffffffff; }
inline std::uint32_t index_of(std::uint64_t id) { return static_cast<std::uint32_t>(id & 0xffff); }

inline constexpr std::uint32_t kInFlight = 24;          // messages to one worker
inline constexpr std::uint32_t kReads = 4, kWords = 2;  // of one worker
inline constexpr std::uint32_t kSendDepth = 32;  // all of these, and a ping; a power of two, as images hold them
static_assert(kSendDepth > kInFlight + kReads + kWords);
// Completions that may come at once: of messages, and of each worker's requests.
inline constexpr int kCompletions = 4096, kCompletionsEach = 1 + kReads + kWords;
inline constexpr int kCompletionsOfAll = MasterLink::kReceives + MasterLink::kSends + 2 * MasterLink::kHellos;

}  // namespace shadowib::masterworker
