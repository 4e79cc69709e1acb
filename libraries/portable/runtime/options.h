// The runtime's options, from the environment. A value that is not understood ends the program with exit code 2.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shadowib::portable {

struct Options {
  std::uint64_t everywhere = 0;  // SHADOWIB_PORTABLE_EVERYWHERE: leave and enter at this many first visits of sites
  std::uint64_t interval_s =
      0;  // SHADOWIB_PORTABLE_INTERVAL: a checkpoint at the first site after so many seconds; 0: none
  std::vector<std::uint64_t> at;  // SHADOWIB_PORTABLE_AT: a checkpoint at these visits of sites, from 1
  std::string to;                 // SHADOWIB_PORTABLE_TO: the image to write
  std::string from;               // SHADOWIB_PORTABLE_FROM: the image to restart from
  bool stop = false;              // SHADOWIB_PORTABLE_STOP=1: the program ends after its checkpoint
  bool report = false;            // SHADOWIB_PORTABLE_REPORT=1: counts of leaves and refusals on stderr, at the end
  bool exact = false;             // SHADOWIB_PORTABLE_EXACT=1: refuse values that would be rounded
};

const Options& options();

// A decimal number without anything around it. Returns false if `text` is another, or greater than 2^63 - 1.
bool parse_number(const char* text, std::uint64_t* number);

}  // namespace shadowib::portable
