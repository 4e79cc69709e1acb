// Test rig: forked processes play the members of a job, are captured, resumed, ended, and restarted as new processes.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "shadowib/base/status.h"

namespace shadowib::test {

// Steps return "" or what went wrong.
using Step = std::function<std::string(int member)>;

struct Job {
  int members = 2;
  std::function<std::string()> make;  // before members are forked: what they inherit
  Step before;                        // in each member, up to the checkpoint
  Step resumed;                       // in each original afterwards, may be empty: as if no checkpoint had been
  Step restarted;                     // in each restarted member
  std::function<void()> command;      // in the restart command before it prepares, may be empty
  bool compares = true;               // members find out what they share; else as in sets from before
  bool apart = false;                 // restart each member by a part of its own, as on machines of their own
  bool unprivileged = false;          // restart as an ordinary user in a user and pid namespace, as pid 1
};

struct Capture {
  std::string failure;                          // of the rig or a step
  std::map<std::uint32_t, std::string> tables;  // empty where refused
  std::map<std::uint32_t, std::string> refusals;
  std::set<std::uint32_t> passing;  // those refused for what may be over in a moment
};

// A process that is nobody's child in the job. False: it could not be made.
bool start_outsider(const std::function<void()>& body);

// Runs make, before, the capture, resumed.
Capture checkpoint(const Job& job);
// Matches and restarts from the tables; runs restarted.
std::string restart(const Job& job, const std::map<std::uint32_t, std::string>& tables);
// Both. "" if all went well.
std::string checkpoint_and_restart(const Job& job);

// Moves `fd` to number `to`.
int put(int fd, int to);
// Reads exactly `bytes`, or what there is before end of file; bounded by 5 s.
std::string read_some(int fd, std::size_t bytes);
// True if the next read finds end of file.
bool at_end(int fd);
// A directory of this test process, removed at its end.
const std::string& scratch_directory();
// Every process of a step reaches this before any passes (same count in each).
void meet();

}  // namespace shadowib::test

#define EXPECT_STEP(condition)                                                                   \
  do {                                                                                           \
    if (!(condition))                                                                            \
      return std::string(__FILE__ ":") + std::to_string(__LINE__) + ": " #condition " (errno " + \
             std::to_string(errno) + ")";                                                        \
  } while (0)
