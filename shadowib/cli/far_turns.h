// Leases and turns: one command at a time works on a set or a far place. They end with their process.
#pragma once

#include <string>

#include "shadowib/base/status.h"

namespace shadowib::cli {

// A flush has a lease on its set, and so has a command that rebuilds or removes it: one at a time.
// A lease ends with its process.
class SetLease {
 public:
  SetLease() = default;
  ~SetLease();
  SetLease(const SetLease&) = delete;
  SetLease& operator=(const SetLease&) = delete;
  // kBusy: another process has it.
  Status take(const std::string& set_path);

 private:
  std::string path_;
  int fd_ = -1;
};

// One flush of a job at a time. kBusy unless `wait`.
class FlushTurn {
 public:
  FlushTurn() = default;
  ~FlushTurn();
  FlushTurn(const FlushTurn&) = delete;
  FlushTurn& operator=(const FlushTurn&) = delete;
  Status take(const std::string& directory, const std::string& job, bool wait);
  static bool taken(const std::string& directory, const std::string& job);

 private:
  int fd_ = -1;
};

// Several commands of one restart share DIR: the first one fetches.
class FetchTurn {
 public:
  FetchTurn() = default;
  ~FetchTurn();
  FetchTurn(const FetchTurn&) = delete;
  FetchTurn& operator=(const FetchTurn&) = delete;
  Status take(const std::string& directory, const std::string& job);
  // True while a fetch fills a staging directory of the job.
  static bool taken(const std::string& directory, const std::string& job);

 private:
  int fd_ = -1;
};

}  // namespace shadowib::cli
