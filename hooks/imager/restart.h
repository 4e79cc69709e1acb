// Restarting a verified set on this machine: the plan for the set, and the supervisor that carries it out.
//
// Members that were in different pid namespaces, on different machines perhaps, get supervisors of their own. Other
// commands may restart other members of the set. They find each other through the job's exchange.
//
// A supervisor makes a pid namespace, where it is pid 1, and a mount namespace for /proc. It makes a user namespace
// only if unprivileged, and a time namespace if CLOCK_MONOTONIC would run back. It creates shared descriptors, then
// each member with its recorded pid by clone3(set_tid). The member's restorer rebuilds the member. A supervisor never
// needs the original launcher.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/descriptors.h"
#include "hooks/job/job_info.h"

namespace shadowib {

struct RestartOptions {
  JobInfo job;                                          // member filled in per process
  std::function<void(const std::string& line)> report;  // one line per event, for people
  std::set<std::uint32_t> members;                      // to be started here; none: all of the set
  // Asked now and then while processes run, may be empty: a failure ends them.
  std::function<Status()> watch;
  // Called once, when all content is checked and before the first member runs. If the set comes back in several
  // parts, which meet in the job's new epoch: before any process is made. May be empty: the job has begun.
  std::function<Status()> begin;
  std::vector<ChangedFile> cut;  // cut when all members are ready, before the first of them runs
  bool others_cut = false;       // so may other commands that restart members of the set: all are ready together
};

struct RestartedProcess {
  std::uint32_t member;
  int pid;          // recorded pid (inside)
  int exit_status;  // as waitpid's; 0 of one that has left
  bool left;        // it was a member's child, which has its status
};

// The set's members, in companies of those that one restart has to bring back together, on one machine: of one at
// least, all by ascending index. Reads no more of the images than their tables. kNotFound, kCorrupt, kVersion.
Status find_companies(const SetManifest& manifest, std::vector<std::vector<std::uint32_t>>* companies);

// Restarts the members and waits for all. Forwards SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH to
// them; those that a terminal sends go to their process groups.
// `kPermission` names the denied call and the remedy (user namespaces...).
Status restart_set(const SetManifest& manifest, const RestartOptions& options,
                   std::vector<RestartedProcess>* processes);

}  // namespace shadowib
