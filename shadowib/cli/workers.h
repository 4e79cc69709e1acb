// Keys by which commands ask the master of a job for workers: values of shadowib_lookup(), docs/internals/guests.md.
#pragma once

#include <cstdint>
#include <string>

namespace shadowib::cli {

// How many wishes the master has taken: a number in decimal digits, published by the master.
inline constexpr char kWishesTakenKey[] = "value/mw.taken";
// Wish `number`, from 0 on: how many workers it asks for.
inline std::string wish_key(std::uint64_t number) { return "value/mw.wish." + std::to_string(number); }
// The number of workers that a restarted master makes.
inline constexpr char kWorkersKey[] = "value/mw.workers";

}  // namespace shadowib::cli
