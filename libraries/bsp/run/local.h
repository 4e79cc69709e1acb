// The processes of this host: started, watched and ended.
#pragma once

#include <sys/types.h>

#include "libraries/bsp/run/plan.h"

namespace shadowib::bsprun {

// Two things end processes besides their own end.
struct Stop {
  int signals = -1;  // a signalfd of SIGINT, SIGTERM, SIGHUP and SIGCHLD
  int control = -1;  // end of file on it: nobody wants the share any more; -1: none
};

// The command `shadowib`: beside bsprun, else by PATH.
std::string shadowib_command();
// Replaces this process by words[0] with its arguments, looked for in PATH. Returns an exit code if that fails.
int execute(std::vector<std::string> words);

long now_ms();   // of a clock that nobody sets
long boot_ms();  // and that runs on while the host sleeps

// Checkpoints of portable processes, each by a command: others take their own.
class Checkpoints {
 public:
  explicit Checkpoints(const Options& options);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Milliseconds until the next is due; -1: none is.
  int wait_ms() const;
  // Starts one that is due, unless one is under way.
  void step();

 private:
  bool is_under_way();

  const Options& options_;
  long interval_ms_ = 0;  // 0: none
  long next_at_ = 0;
  pid_t command_ = 0;
};

// Blocks the signals that Stop reads, and returns the descriptor; -1 and errno if there is none.
int catch_signals();

// Runs processes first to first + count - 1 of `options.processes` to their end. `epoch` is of the run. Process 0 has
// the standard input unless `stop.control` has it. After a failure the others are ended.
Outcome run_here(const Options& options, const Stop& stop);

// Makes the directory where portable processes find each other. False: it cannot be made.
bool make_meeting(const Options& options);

// Removes that, and the files by which processes that wait in bsp_begin() learn of others' ends. Once all of the job
// have ended.
void forget_ends(const Options& options);

}  // namespace shadowib::bsprun
