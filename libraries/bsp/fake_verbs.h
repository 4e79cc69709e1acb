// Verbs that are made up, in their functions' place: a word that is sent comes back from its receiver.
//
// For one process, number 0, whose peers answer at once. One thread.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

inline constexpr std::uint64_t kFakeEpoch = 1;
extern int fake_processes;                    // set it before the mesh is made
extern std::vector<ibv_wc> fake_completions;  // in the completion queue; more may be added
extern unsigned fake_reads;                   // READs so far
extern std::vector<std::uint32_t> fake_told;  // immediate data of words that tell of an end, as they were sent
