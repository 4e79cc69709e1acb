// A restart under a launcher: `mpirun -np N shadowib restart SET` starts N commands, on as many hosts as it likes.
//
// Members are spread over the launcher's ranks in order, unless that would part some that share memory, or more,
// which one command has to make: then they are spread so that these stay together. On each host one command, that of
// the lowest rank, starts what falls to all of the host's; the others wait for it and end as it does, as the launcher
// expects.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib::cli {

struct Launched {
  std::string launch;  // what its ranks have in common, and no other launch
  int rank, size;
};

// From the environment of Open MPI's mpirun (or PRRTE) and of Slurm's srun. False: no launcher has started this
// command, or one rank only. kUsage: it was a launcher that cannot be used so.
Status find_launcher(Launched* launched, bool* found);

// Members by host, if rank r of the launcher is on host hosts[r], which are numbered from 0 on: as even as can be by
// ranks, in order; and no company (restart.h) on two hosts, though a host has more than its part then.
using Companies = std::vector<std::vector<std::uint32_t>>;
std::vector<std::set<std::uint32_t>> deal(const Companies& companies, const std::vector<int>& hosts);

class LaunchedRestart {
 public:
  // `top`: the job's directory, for locks among the commands of one host.
  LaunchedRestart(const Launched& launched, std::string top) : launched_(launched), top_(top) {}
  ~LaunchedRestart();
  LaunchedRestart(const LaunchedRestart&) = delete;
  LaunchedRestart& operator=(const LaunchedRestart&) = delete;

  // Waits until all ranks are there, by an exchange that all hosts reach. Then either leads() its host's, or has to
  // follow(). kTimeout names the ranks that have not come. kBusy: a launch restarts a job once.
  Status gather(const std::string& exchange, const std::string& job, int timeout_s);
  bool leads() const { return leader_ == launched_.rank; }
  // The members that fall to this host, perhaps none.
  std::set<std::uint32_t> members(const Companies& companies) const;
  // Tells the followers of this host.
  void told(int exit_code);
  // Waits for the leader, which passes signals on to the members: forwarded_signals() are blocked from then on, in
  // this thread, for good. kAborted: the leader is gone without a word.
  Status follow(int* exit_code);

 private:
  std::string key(const std::string& what, int rank) const;
  std::string lock_path(int rank) const;
  Status read_hosts(std::string* missing);

  Launched launched_;
  std::string top_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<std::string> hosts_;  // by rank
  int leader_ = -1, lock_ = -1;
};

}  // namespace shadowib::cli
