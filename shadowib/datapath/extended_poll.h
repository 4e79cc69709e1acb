// Extended completion queues: start_poll, next_poll, end_poll and the fields of the completion they stand at.
#pragma once

#include "shadowib/objects/completion.h"

namespace shadowib {

// The fields that ibv_create_cq_ex may ask for: all that an ibv_wc holds. Time stamps, VLAN, flow tags and tag
// matching are absent.
inline constexpr std::uint64_t kExtendedFields = IBV_WC_STANDARD_FLAGS;

// Sets the functions of a queue the program is about to see. `single_threaded`: it promises that one thread at a time
// polls.
void offer_extended_poll(ShadowCq& cq, bool single_threaded);

}  // namespace shadowib
