// A job's directory: making it, and telling whether the job is alive.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "shadowib/cli/common.h"

namespace shadowib::cli {

// Puts a whole file in place: an existing one is kept (keep) or replaced.
Status place_file(const std::string& path, const std::string& content, bool keep);

// Makes the job's directory with a key if there is none, for a keeper of a job that gc has taken.
Status ensure_job(const std::string& directory, const std::string& job);

// Makes the job's directory with key and epoch if it has none (several `run` may do so at once), and records the URI
// of its exchange and the calling process, which is about to become the program.
Status prepare_job(const std::string& directory, const std::string& job, const std::string& exchange);

// Gives the job this epoch and a new key, for a restart. Its directory is made if gc has taken it. In the new epoch
// `members` are those that come back, and later ones get indices above.
Status renew_job(const std::string& directory, const std::string& job, const std::string& exchange,
                 const std::set<std::uint32_t>& members, const std::string& epoch);

// True if a member, a checkpoint or a restart of the job holds its lock; *who says which. Guests do not count.
bool job_alive(const std::string& directory, const std::string& job, std::string* who);

// Likewise for a restart that holds its own locks: members and checkpoints only. It waits for processes that were
// joining when it took them, and for a checkpoint that has no member: one that finds nobody, or whose members it has
// ended. For 20 s at most.
bool members_alive(const std::string& directory, const std::string& job, std::string* who);

// job_alive, or a process that `run` has started still exists, which may become a member any time. One on another
// host counts as existing for a week.
bool job_in_use(const std::string& directory, const std::string& job, std::string* who);

// Keeps everybody from joining and restarting a job while it is removed. Its file of locks may go meanwhile.
class RemovalLocks {
 public:
  RemovalLocks() = default;
  ~RemovalLocks();
  RemovalLocks(const RemovalLocks&) = delete;
  RemovalLocks& operator=(const RemovalLocks&) = delete;

  // False, and nothing is held: the job is in use (job_in_use), or somebody joins or restarts it just now.
  bool take(const std::string& directory, const std::string& job, std::string* who);

 private:
  bool take_all(const std::string& directory, const std::string& job, std::string* who);
  void release();

  std::vector<int> locks_;
};

// Somebody looks after the job, or after one of its clusters, and will bring back what is dead: `supervise`, `tend`.
bool is_supervised(const std::string& directory, const std::string& job);

// The processes that `run` has started on this host and that still exist.
std::vector<int> started_here(const std::string& directory, const std::string& job);

// A lock's file says which process holds it: restarts and supervisors. Before, or by an earlier version: pid 0.
struct LockHolder {
  std::string host;
  int pid = 0;
  std::uint64_t start_time = 0;
};
Status note_lock_holder(int lock, const std::string& path);
LockHolder lock_holder(const std::string& path);

// The processes on this host that stand for a running job, so that a signal to them is one to the job: its restart
// commands, or what `run` has started and no other such process has.
std::vector<int> heads_here(const std::string& directory, const std::string& job);

// Why no member of the job is alive: kBusy, a process has been started since the last one joined; kNotFound, they
// have ended, with the set to go on from.
Status why_no_member(const std::string& directory, const std::string& job);

// True if a checkpoint of the job is under way.
bool checkpoint_running(const std::string& directory, const std::string& job);

// "" if it has none.
std::string present_epoch(const std::string& directory, const std::string& job);
// Epochs before the job's present one, of which no lock is held. Each restart of a job begins another.
std::vector<std::string> earlier_epochs(const std::string& directory, const std::string& job);
// Removes what they have left in the job's exchange, and their locks.
Status remove_epoch(const std::string& directory, const std::string& job, const std::string& exchange,
                    const std::string& epoch);

std::vector<std::string> jobs_in(const std::string& directory);

// The job a command means: `given`, or the only one alive. kNotFound, kUsage if there are several.
Status choose_job(const std::string& directory, const std::string& given, std::string* job);

}  // namespace shadowib::cli
