// Descriptors held in reserve, so that the agent can hear of a checkpoint and answer in a process that has none left.
//
// A process-wide pool of numbers that are owned (base/descriptors.h) and open on nothing of use. All functions are
// thread-safe and take no heap.
#pragma once

namespace shadowib {

inline constexpr int kSpareDescriptors = 2;

// Fills the pool as far as RLIMIT_NOFILE allows. Call when the process joins its job, and after a restart.
void reserve_spare_descriptors();

// Closes a spare descriptor, whose number the next open(2) may have. False if there is none.
bool give_up_spare_descriptor();

// Puts a spare descriptor in the place of the owned descriptor `fd`, which is to be closed, if the pool lacks one.
// The number is free at no moment between. False: close `fd`. A single load while the pool is full.
bool keep_as_spare_descriptor(int fd);

// Forgets the pool without closing: in a forked child and after a restart.
void forget_spare_descriptors();

}  // namespace shadowib
