// The checkpoints that a supervisor has taken: when the next is due, and the command that takes it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/cli/supervise/settings.h"

namespace shadowib::cli {

// The job's history; empty if it has none.
Status read_events(const SuperviseSettings& settings, std::vector<PastEvent>* events);
// Likewise, and empty if it cannot be read: for what may be missed, as times for the next checkpoint.
std::vector<PastEvent> events_of(const SuperviseSettings& settings);

class Checkpoints {
 public:
  explicit Checkpoints(const SuperviseSettings& settings) : settings_(settings) {}
  ~Checkpoints() { stop(); }
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // The job runs from now on.
  void begin();
  // `members`: how many have joined since. The first checkpoint waits for those who come late.
  void note_members(std::size_t members);
  // It does not. Ends a command that is under way: nothing is left of its checkpoint.
  void stop();
  // True if it is time for a checkpoint, and none is under way.
  bool due() const;
  // Takes one. `keep`: how many sets stay; 0: all.
  void start(unsigned keep) { start(keep, settings_.timeout_s, false); }
  // The last one: members end once it is committed.
  void start_last(unsigned keep, double timeout_s) { start(keep, timeout_s, true); }
  // One is due now.
  void hurry();
  // Looks after the one under way. True if it has been committed since the last call.
  bool step();

  pid_t command() const { return command_; }

 private:
  void start(unsigned keep, double timeout_s, bool kill);
  void take_output();
  bool finish(int wait_status);

  const SuperviseSettings& settings_;
  pid_t command_ = -1;
  int output_ = -1;
  std::string said_;
  std::int64_t due_ns_ = 0;  // CLOCK_MONOTONIC; 0: the job does not run
  std::int64_t began_ns_ = 0;
  double first_interval_s_ = 0;  // 0: the first checkpoint has been begun
  std::size_t members_ = 0;
  unsigned failures_ = 0;  // in a row
  bool is_last_ = false;   // the one under way
};

}  // namespace shadowib::cli
