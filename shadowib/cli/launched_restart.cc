#include "shadowib/cli/launched_restart.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/forwarded_signals.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/processes.h"

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

std::vector<std::set<std::uint32_t>> deal(const Companies& companies, const std::vector<int>& hosts) {
  std::vector<std::uint32_t> all;
  for (const auto& company : companies) all.insert(all.end(), company.begin(), company.end());
  std::sort(all.begin(), all.end());
  std::vector<std::set<std::uint32_t>> dealt(
      hosts.empty() ? 0 : static_cast<std::size_t>(*std::max_element(hosts.begin(), hosts.end())) + 1);
  for (std::size_t m = 0; m < all.size(); ++m)
    dealt[static_cast<std::size_t>(hosts[m * hosts.size() / all.size()])].insert(all[m]);
  const auto is_together = [&dealt](const std::vector<std::uint32_t>& company) {
    return std::any_of(dealt.begin(), dealt.end(), [&company](const std::set<std::uint32_t>& host) {
      return std::all_of(company.begin(), company.end(), [&host](std::uint32_t m) { return host.contains(m); });
    });
  };
  if (std::all_of(companies.begin(), companies.end(), is_together)) return dealt;

  // The largest first, each to the first host that has room for it, or else to the one that has most.
  std::vector<std::ptrdiff_t> room;
  for (std::set<std::uint32_t>& host : dealt) room.push_back(std::ssize(host)), host.clear();
  Companies by_size = companies;
  std::stable_sort(by_size.begin(), by_size.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  for (const std::vector<std::uint32_t>& company : by_size) {
    auto at = std::find_if(room.begin(), room.end(),
                           [&company](std::ptrdiff_t places) { return places >= std::ssize(company); });
    if (at == room.end()) at = std::max_element(room.begin(), room.end());
    *at -= std::ssize(company);
    dealt[static_cast<std::size_t>(at - room.begin())].insert(company.begin(), company.end());
  }
  return dealt;
}

LaunchedRestart::~LaunchedRestart() { close_owned_descriptor(lock_); }

std::string LaunchedRestart::key(const std::string& what, int rank) const {
  return "launch/" + launched_.launch + "/" + what + (rank < 0 ? "" : "/" + std::to_string(rank));
}

std::string LaunchedRestart::lock_path(int rank) const {
  return top_ + "/launch/" + launched_.launch + "." + std::to_string(rank);
}

Status LaunchedRestart::read_hosts(std::string* missing) {
  std::vector<std::string> keys;
  std::vector<bool> found;
  for (int rank = 0; rank < launched_.size; ++rank) keys.push_back(key("host", rank));
  SHADOWIB_TRY(exchange_->lookup(keys, &hosts_, &found));
  missing->clear();
  for (std::size_t rank = 0; rank < found.size(); ++rank)
    if (!found[rank]) *missing += (missing->empty() ? "" : ",") + std::to_string(rank);
  return {};
}

Status LaunchedRestart::gather(const std::string& exchange, const std::string& job, int timeout_s) {
  SHADOWIB_TRY(ensure_directory(top_ + "/launch"));
  SHADOWIB_TRY(Exchange::open(exchange, true, &exchange_));
  if ((lock_ = hold_alive_lock(lock_path(launched_.rank))) < 0)
    return Status::of(Code::kBusy, errno, "rank %d of this launch restarts the set already", launched_.rank);
  (void)!::ftruncate(lock_, 0);
  const std::string host = host_name();
  // What a launch has told once stands there for good: who tried again would take it for the second time's.
  if (const Status s = exchange_->claim(key("host", launched_.rank), host); !s.ok())
    return s.code() != Code::kBusy
               ? s
               : Status::of(Code::kBusy, 0,
                            "rank %d of this launch has restarted a set of job %.64s before; start another launcher",
                            launched_.rank, job.c_str());
  const Deadline deadline = Deadline::in_ms(timeout_s * std::int64_t{1000});
  std::uint64_t token = 0;
  for (std::string missing;;) {
    SHADOWIB_TRY(read_hosts(&missing));
    if (missing.empty()) break;
    if (deadline.has_passed())
      return Status::of(Code::kTimeout, 0, "after %d s rank %.200s of the launcher's %d has not come", timeout_s,
                        missing.c_str(), launched_.size);
    const Status watched = exchange_->watch(key("host", -1), &token, kLookMs, -1);
    if (!watched.ok() && watched.code() != Code::kTimeout) return watched;
  }
  leader_ = static_cast<int>(std::find(hosts_.begin(), hosts_.end(), host) - hosts_.begin());
  return {};
}

std::set<std::uint32_t> LaunchedRestart::members(const Companies& companies) const {
  std::vector<std::string> names;  // in the order of their lowest ranks
  std::vector<int> hosts;
  for (const std::string& host : hosts_) {
    const auto at = std::find(names.begin(), names.end(), host);
    hosts.push_back(static_cast<int>(at - names.begin()));
    if (at == names.end()) names.push_back(host);
  }
  return deal(companies, hosts)[static_cast<std::size_t>(hosts[static_cast<std::size_t>(launched_.rank)])];
}

// In the file of the lock, so that followers need nothing but the directory for as long as the job runs.
void LaunchedRestart::told(int exit_code) {
  const std::string text = std::to_string(exit_code);
  (void)!::pwrite(lock_, text.data(), text.size(), 0);
}

Status LaunchedRestart::follow(int* exit_code) {
  const sigset_t for_the_leader = forwarded_signals();  // the launcher sends each to all its ranks
  ::pthread_sigmask(SIG_BLOCK, &for_the_leader, nullptr);
  constexpr int kFirstPauseMs = 20, kLongestPauseMs = 1000;
  const std::string path = lock_path(leader_);
  for (int pause_ms = kFirstPauseMs; is_alive(path); pause_ms = std::min(2 * pause_ms, kLongestPauseMs))
    ::usleep(static_cast<useconds_t>(pause_ms) * 1000);
  std::ifstream file(path);
  if (file >> *exit_code) return {};
  return Status::of(Code::kAborted, 0, "rank %d of the launcher, which restarts this host's members, is gone",
                    leader_);
}

}  // namespace shadowib::cli
