// The word that ends a process's part of a superstep, and the slots where words and data lie.
//
// A process has, for each peer, two slots by the parity of the superstep. A peer that has our word of superstep k has
// used what we sent in k - 1: so nobody is two supersteps ahead, and two slots suffice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libraries/bsp/little.h"
#include "libraries/bsp/sabotage.h"

namespace shadowib::bsp {

// Data that goes with the word. More is announced, and pulled by the receiver.
inline constexpr std::size_t kSlotBytes = 8192;

enum WordFlag : std::uint32_t {
  kHasGets = 1u << 0,        // a second barrier follows, after which puts count
  kCheckpointDue = 1u << 1,  // process 0 takes a checkpoint at the end of this superstep
  kEnding = 1u << 2,         // from bsp_end()
};

struct Word {
  Little<std::uint64_t> superstep = 0;
  Little<std::uint64_t> order = 0;    // hash of the superstep's registrations and of the tags' size
  Little<std::uint64_t> bytes = 0;    // records in the slot, or more than kSlotBytes at `address`
  Little<std::uint64_t> address = 0;  // of the sender
  Little<std::uint32_t> key = 0;
  Little<std::uint32_t> flags = 0;
};

// Which of two slots and outboxes a superstep uses.
inline unsigned parity_of(std::uint64_t superstep) {
  return without("parity") ? 0 : static_cast<unsigned>(superstep & 1);
}

struct Slot {
  alignas(64) Word word;
  alignas(64) std::byte data[kSlotBytes];
};

}  // namespace shadowib::bsp
