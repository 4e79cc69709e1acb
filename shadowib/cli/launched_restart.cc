#include "shadowib/cli/launched_restart.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>

#include "hooks/imager/set/set_files.h"
#include "hooks/protocol.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"

namespace shadowib::cli {
namespace {

constexpr int kLookMs = 200;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// -1: it is none.
int number(const std::string& text) {
  if (text.empty() || text.size() > 7 || text.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::atoi(text.c_str());
}

// A component of keys.
std::string as_component(std::string text) {
  for (char& c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_') c = '_';
  return text.substr(0, 60);
}

std::string this_host() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

struct Launch {
  std::string name;  // "": there is none
  int rank = -1, size = -1;
};

Launch of_open_mpi() {
  return {variable("PMIX_NAMESPACE"), number(variable("OMPI_COMM_WORLD_RANK")),
          number(variable("OMPI_COMM_WORLD_SIZE"))};
}

// srun tells the step's tasks only to those of a step: what a batch script starts by itself is no rank of any. Other
// launchers start their daemons by srun, whose tasks those are, and not the ranks that inherit the words.
Launch of_slurm() {
  const std::string step = variable("SLURM_STEP_ID");
  const Launch launch{"slurm-" + variable("SLURM_JOB_ID") + "." + step, number(variable("SLURM_PROCID")),
                      number(variable("SLURM_STEP_NUM_TASKS"))};
  const int rank = number(variable("PMI_RANK"));
  if (step.empty() || !variable("OMPI_COMM_WORLD_RANK").empty() || (rank >= 0 && rank != launch.rank)) return {};
  if (rank >= 0 && number(variable("PMI_SIZE")) != launch.size) return {};
  // A job that was queued again keeps its number and counts its steps from 0.
  const std::string times = variable("SLURM_RESTART_COUNT");
  return {launch.name + (times.empty() ? "" : ".r" + times), launch.rank, launch.size};
}

}  // namespace

Status find_launcher(Launched* launched, bool* found) {
  *found = false;
  const Launch launches[] = {of_open_mpi(), of_slurm()};
  for (const Launch& l : launches) {
    if (l.name.empty() || l.rank < 0 || l.size < 2 || l.rank >= l.size) continue;
    *launched = {as_component(l.name), l.rank, l.size};
    *found = true;
    return {};
  }
  if (number(variable("PMI_RANK")) < 0 || number(variable("PMI_SIZE")) < 2) return {};
  return Status(Code::kUsage, 0,
                "this launcher does not tell its ranks what they have in common; start one command, or one on each "
                "host with --members");
}

std::set<std::size_t> share_of(int rank, int size, std::size_t members) {
  std::set<std::size_t> share;
  for (std::size_t m = 0; m < members; ++m)
    if (m * static_cast<std::size_t>(size) / members == static_cast<std::size_t>(rank)) share.insert(m);
  return share;
}

LaunchedRestart::~LaunchedRestart() { close_owned_descriptor(lock_); }

std::string LaunchedRestart::key(const std::string& what, int rank) const {
  return "launch/" + launched_.launch + "/" + what + (rank < 0 ? "" : "/" + std::to_string(rank));
}

std::string LaunchedRestart::lock_path(int rank) const {
  return top_ + "/launch/" + launched_.launch + "." + std::to_string(rank);
}

Status LaunchedRestart::read_hosts(std::vector<std::string>* hosts, std::string* missing) {
  std::vector<std::string> keys;
  std::vector<bool> found;
  for (int rank = 0; rank < launched_.size; ++rank) keys.push_back(key("host", rank));
  SHADOWIB_TRY(exchange_->lookup(keys, hosts, &found));
  missing->clear();
  for (std::size_t rank = 0; rank < found.size(); ++rank)
    if (!found[rank]) *missing += (missing->empty() ? "" : ",") + std::to_string(rank);
  return {};
}

Status LaunchedRestart::gather(const std::string& exchange, const SetManifest& manifest, int timeout_s,
                               std::set<std::uint32_t>* members) {
  SHADOWIB_TRY(ensure_directory(top_ + "/launch"));
  SHADOWIB_TRY(Exchange::open(exchange, true, &exchange_));
  if ((lock_ = hold_alive_lock(lock_path(launched_.rank))) < 0)
    return Status::of(Code::kBusy, errno, "rank %d of this launch restarts the set already", launched_.rank);
  const std::string host = this_host();
  // What a launch has told once stands there for good: who tried again would take it for the second time's.
  if (const Status s = exchange_->claim(key("host", launched_.rank), host); !s.ok())
    return s.code() != Code::kBusy
               ? s
               : Status::of(Code::kBusy, 0,
                            "rank %d of this launch has restarted a set of job %.64s before; start another launcher",
                            launched_.rank, manifest.job.c_str());
  const std::int64_t deadline = monotonic_ns() + std::int64_t{timeout_s} * 1'000'000'000;
  std::vector<std::string> hosts;
  std::uint64_t token = 0;
  for (std::string missing;;) {
    SHADOWIB_TRY(read_hosts(&hosts, &missing));
    if (missing.empty()) break;
    if (monotonic_ns() >= deadline)
      return Status::of(Code::kTimeout, 0, "after %d s rank %.200s of the launcher's %d has not come", timeout_s,
                        missing.c_str(), launched_.size);
    const Status watched = exchange_->watch(key("host", -1), &token, kLookMs, -1);
    if (!watched.ok() && watched.code() != Code::kTimeout) return watched;
  }
  leader_ = static_cast<int>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin());
  std::vector<std::uint32_t> all;
  for (const SetMember& m : manifest.members) all.push_back(m.index);
  for (int rank = 0; rank < launched_.size; ++rank) {
    if (hosts[static_cast<std::size_t>(rank)] != host) continue;
    for (const std::size_t m : share_of(rank, launched_.size, all.size())) members->insert(all[m]);
  }
  return {};
}

void LaunchedRestart::told(int exit_code) {
  (void)exchange_->publish(key("ended", launched_.rank), std::to_string(exit_code)).ok();
}

Status LaunchedRestart::follow(int* exit_code) {
  std::uint64_t token = 0;
  for (;;) {
    const bool alive = is_alive(lock_path(leader_));  // before the look: it tells, and then goes
    std::string text;
    bool found = false;
    SHADOWIB_TRY(exchange_->get(key("ended", leader_), &text, &found));
    if (found) {
      *exit_code = std::atoi(text.c_str());
      return {};
    }
    if (!alive)
      return Status::of(Code::kAborted, 0, "rank %d of the launcher, which restarts this host's members, is gone",
                        leader_);
    const Status watched = exchange_->watch(key("ended", -1), &token, kLookMs, -1);
    if (!watched.ok() && watched.code() != Code::kTimeout) return watched;
  }
}

}  // namespace shadowib::cli
