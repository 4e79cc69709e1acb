// The interface topc.h stands on it: a farm over verbs, or all in one process.
#pragma once

#include <cstdint>
#include <memory>

#include "libraries/masterworker/master.h"

namespace shadowib::masterworker {

struct Settings {
  int workers = 0;  // forks to keep alive on this host
  int ahead = 1;
  int wait_s = 0;     // workers sleep first
  int keep_mib = 0;   // of updates, for workers that are no forks
  int timeout_s = 0;  // of a worker with a task; 0: never
  bool aborts = true;
  bool verbose = false;
};

class Runtime {
 public:
  virtual ~Runtime() = default;
  // One farm, in the master and in each worker.
  virtual void run(Callbacks callbacks) = 0;
  virtual void raw_begin(Callbacks callbacks) = 0;
  virtual void submit(Payload input) = 0;
  virtual bool wait_for_result() = 0;
  virtual void raw_end() = 0;
  virtual void finalize() = 0;

  virtual bool is_master() const = 0;
  virtual int rank() const = 0;
  virtual int workers() const = 0;
  virtual int idle_workers() const = 0;
  virtual bool up_to_date() const = 0;
  // Belongs to the task that is done or checked now.
  virtual Round round() const = 0;
  virtual void abort_tasks() = 0;
  virtual bool abort_pending() const = 0;
  // Ends the farm that runs, without its results: Master::abandon().
  virtual void abandon() = 0;
  virtual Counts counts() const = 0;
};

// Over verbs, or in one process: that depends on the library that the program links.
std::unique_ptr<Runtime> make_runtime(const Settings& settings);

}  // namespace shadowib::masterworker
