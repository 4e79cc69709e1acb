// The kinds of restart, each in a file of its own, for the command `restart`.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/restart.h"
#include "hooks/job/job_info.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/far_options.h"
#include "shadowib/cli/portable_set.h"
#include "shadowib/cli/recover.h"
#include "shadowib/cli/restart_told.h"

namespace shadowib::cli {

struct RestartArguments {
  Common common;
  std::string set, backend, network, files = "keep";
  std::string hosts, shell;
  bool held = false;
  double lease_s = 0;
  std::optional<std::string> members;
  int workers = -1;  // -1: not given
  bool lazy = false;
  int wait_s = 300, timeout_s = 60;
  FarOptions far;
  PortableRestart portable;
  std::string job;                    // of a federation:
  std::vector<std::string> clusters;  // its clusters' own sets
  bool fenced = false;
  double patience_s = 0;
  std::string in_recovery;
  RecoveryPart part;
};

// On this machine; other commands restart the others at the same time. `members`: none is all. Returns the command's
// exit code. restart_members.cc
int restart_members(const RestartArguments& arguments, SetManifest manifest, const std::string& exchange,
                    std::set<std::uint32_t> members);
// A cluster's set, or options->members of it, in the epoch that it was saved in. The command that recovers the job's
// clusters has started this one, and holds all locks. restart_part.cc
Status restart_part(const RestartArguments& arguments, SetManifest* manifest, const std::string& exchange,
                    RestartOptions* options, RestartTold* told, std::vector<RestartedProcess>* processes);
// Spread over hosts. Each host's command finds the set, and what the job was started with, in DIR.
// restart_on_hosts.cc
int restart_on_hosts(const RestartArguments& arguments, const SetManifest& manifest);
// Restarts a set of portable images. restart_portable.cc
int restart_portable_set(const RestartArguments& arguments, SetManifest manifest);

// For these, in restart_job.cc.
// The backend to go on over; "": the environment names none either.
std::string wanted_backend(const RestartArguments& arguments);
// $SHADOWIB_IBVERBS. A path is meant from where the command stands, not the programs.
std::string verbs_library();
// The words for a restarted member. kUsage: a text is too long for them.
Status fill_job(const RestartArguments& arguments, const SetManifest& manifest, const std::string& exchange,
                const std::string& epoch, JobInfo* info);
// The images of these members, near or far; near ones are fetched, copied or decoded first if they have to be.
Status verify_here(const RestartArguments& arguments, const std::set<std::uint32_t>& members, SetManifest* manifest);
// A member that could not be rebuilt says why where the program's standard error leads, which may be anywhere.
Status failure_of(const std::string& exchange, const std::string& epoch, std::uint64_t recovery,
                  const std::vector<RestartedProcess>& processes);

}  // namespace shadowib::cli
