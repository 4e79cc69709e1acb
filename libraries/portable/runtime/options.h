// The runtime's options, from the environment. A value that is not understood ends the program with exit code 2.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shadowib::portable {

struct Options {
  std::uint64_t everywhere = 0;  // SHADOWIB_PORTABLE_EVERYWHERE: leave and enter at this many first visits of sites
  // SHADOWIB_PORTABLE_INTERVAL: leave and enter at the first site after so many seconds; 0: none
  std::uint64_t interval_s = 0;
  // SHADOWIB_PORTABLE_AT: leave and enter at these visits of sites, from 1; 0: at the site where a restart begins
  std::vector<std::uint64_t> at;
  bool report = false;       // SHADOWIB_PORTABLE_REPORT=1: counts of leaves and refusals on stderr, at the end
  std::string directory;     // SHADOWIB_PORTABLE_DIR: where images go; empty: none is written
  std::uint32_t member = 0;  // SHADOWIB_PORTABLE_MEMBER: N of member-N.psi
  std::string from;          // SHADOWIB_PORTABLE_FROM: the image to begin with; empty: the program's begin
  std::string job;           // SHADOWIB_PORTABLE_JOB: the job's directory, where commands ask; empty: no job
  int job_lock = -1;         // SHADOWIB_PORTABLE_LOCK: the descriptor by which others see that this process lives
  std::string record;        // SHADOWIB_PORTABLE_RECORD: the line by which others know that it has begun
  bool exact = false;        // SHADOWIB_PORTABLE_EXACT=1: refuse a restart that would round a float
};

const Options& options();

// A decimal number without anything around it. Returns false if `text` is another, or greater than 2^63 - 1.
bool parse_number(const char* text, std::uint64_t* number);

}  // namespace shadowib::portable
