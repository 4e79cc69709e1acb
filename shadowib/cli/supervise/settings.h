// The options of `supervise`, as its strands use them.
#pragma once

#include <string>
#include <vector>

#include "shadowib/cli/common.h"
#include "shadowib/cli/supervise/notice.h"
#include "shadowib/cli/supervise/pace.h"
#include "shadowib/cli/supervise/retry_on.h"
#include "shadowib/command_line/hosts.h"

namespace shadowib::cli {

struct SuperviseSettings {
  Common common;
  const char* name = "supervise";  // of the command, for what it tells
  std::string job;
  Arguments command;
  Pace pace;
  unsigned keep = 0, most_restarts = 10;
  ExitCodes retry_on;                     // results that are failures
  std::int64_t begun_s = 0, until_s = 0;  // since 1970; 0: no end
  bool roll_back = true;                  // files, after a failure that nobody had announced
  double timeout_s = 60;                  // of a checkpoint
  std::string metrics;
  std::string on_event;  // a command for sh(1); "": none
  NoticeSource notice;
  std::vector<command_line::Host> hosts;  // none: this one
  std::string rsh = "ssh";
  double lease_s = 0;  // of members on hosts; 0: none
};

// Exit codes of `supervise` beyond those of other commands (shadowib-supervise(1)).
inline constexpr int kSavedAndEnded = 75;
inline constexpr int kGivenUp = 70;
inline constexpr int kBySignal = 128;  // and its number

// "shadowib: supervise J: TEXT" on standard error.
void tell(const SuperviseSettings& settings, const std::string& text);

// One supervisor a job: takes the lock of `path`. *lock is owned by the caller: release_alive_lock(). One that a lost
// host seems to hold ends with the file server's lease, which is waited for. kBusy: the job has a supervisor, or one
// of its clusters has.
Status take_supervisor_lock(const SuperviseSettings& settings, const std::string& path, int* lock);
// Likewise for one cluster, by PATH.<cluster>, or for the job for the moment in which clusters' locks are taken.
Status take_cluster_lock(const SuperviseSettings& settings, const std::string& path, int* lock);

// A command of shadowib for the job, with its directory and exchange.
std::vector<std::string> command_line_of(const SuperviseSettings& settings, std::vector<std::string> words);

}  // namespace shadowib::cli
