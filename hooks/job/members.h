// A job as a command sees it: its epoch, exchange and members. Internal to hooks/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hooks/job/cluster.h"
#include "hooks/job/protocol.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

// The facts that a command learns about a member.
struct MemberStatus {
  std::uint32_t index = 0;
  int pid = 0;
  std::uint64_t start_time = 0;  // as /proc/PID/stat tells it
  std::string host, comm, exe, version;
  std::uint64_t meets = 1;    // kMeetingVersion of its library
  std::uint64_t expects = 0;  // how many processes the job is to have, as `run --processes` was told; 0: it was not
  std::string cluster;        // of a federation; "": none
  unsigned cluster_index = 0;
  bool alive = false;  // holds its lock
  bool gone = false;   // left in an orderly way
  // A member that left tells D of its cluster, with its own deliveries. No entries: it was in no cluster, or it did
  // not tell.
  federation::PerCluster left_depends = federation::PerCluster();
  bool answered = false;  // within the time-out
  std::string json;       // what it said: {"index":..,"pid":..,"phase":..,"objects":{...}}; empty if not answered
};

struct JobView {
  std::string directory, job, epoch;
  std::unique_ptr<Exchange> exchange;

  std::string alive(const std::string& who) const { return alive_path(directory, job, epoch, who); }
  std::string key(const std::string& rest) const { return epoch + "/" + rest; }
  // Whether the job has got another epoch since: a restart has made one.
  bool is_outdated() const;
  Status fields(const std::string& key, Fields* fields, bool* found) const;              // kVersion names the key
  Status decode(const std::string& key, const std::string& text, Fields* fields) const;  // the same of its value
};

// kNotFound: no such job in that directory.
Status open_job(const std::string& directory, const std::string& job, const std::string& exchange, JobView* view);

// All members of the epoch, dead ones included, by index.
Status list_members(const JobView& view, std::vector<MemberStatus>* members);

// Guests of the epoch that live, by index. *ended: how many no longer do.
Status list_guests(const JobView& view, std::vector<MemberStatus>* guests, std::size_t* ended);

// Waits until nobody is joining and a restart has brought all its members back; kBusy after timeout_ms.
Status wait_for_joining(const JobView& view, int timeout_ms);

std::string describe(const MemberStatus& member);  // "member 1 (pid 123, pingpong on host)"

// Members of the job's current epoch, by index, dead and gone ones included; live ones are asked to describe
// themselves and given `timeout_ms` to answer (a member inside a checkpoint answers later). kNotFound: no such job.
// *epoch (may be null) is the job's current epoch.
Status query_status(const std::string& directory, const std::string& job, const std::string& exchange, int timeout_ms,
                    std::vector<MemberStatus>* members, std::string* epoch);

// Why the restart in `epoch` failed: what the first of `members` said that did not give up because another
// had; ok if none said anything, and the programs ran, or if the exchange is gone, and nobody can tell. `recovery`:
// as in JobInfo.
Status failure_of_restart(const std::string& exchange, const std::string& epoch, std::uint64_t recovery,
                          const std::vector<std::uint32_t>& members);

// The set that the latest checkpoint of `epoch` has committed before it ended the members on request; "" if it was
// not to end them, or if the exchange is gone.
std::string saved_before_end(const std::string& exchange, const std::string& epoch);

}  // namespace shadowib
