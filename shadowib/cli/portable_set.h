// Sets of portable images: what their manifests say besides, and starting their processes again.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/restart.h"
#include "shadowib/base/json_value.h"
#include "shadowib/cli/common.h"

namespace shadowib::cli {

struct PortableSet {
  bool is_bsp = false;  // one program of several processes, saved at one superstep
  std::uint64_t superstep = 0;
  std::string interval;               // seconds between checkpoints that bsprun takes; "": it takes none
  unsigned keep = 0;                  // so many newest sets; 0: all
  std::vector<std::string> programs;  // with which the job was started: each host runs those for it; none: the
                                      // members' own
  std::vector<std::string> runners;   // ARCHITECTURE=COMMAND
  struct Member {
    std::uint32_t index = 0;
    std::string target;     // of the compiler, as x86_64-pc-linux-gnu
    std::string directory;  // where it was started
    Arguments command;
    std::uint64_t visits = 0;  // of sites
  };
  std::vector<Member> members;
};

// Reads what the manifest, which read_manifest() has checked, says besides. kCorrupt.
Status read_portable_set(const SetManifest& manifest, PortableSet* set);

struct PortableRestart {
  // Instead of the members' own: member i runs number i modulo their count, of those for its host.
  std::vector<std::string> programs;
  std::vector<std::string> runners;  // ARCHITECTURE=COMMAND; before the set's
  // Where processes of a BSP job run, as HOST:SLOTS[:ARCHITECTURE],...; "": here.
  std::string hosts, shell;
  double lease_s = 0;  // they end after so long without a word from here; 0: they do not
};
// Takes the job for a restart, until this command ends: its processes end with it. kBusy: it is alive, or another
// restart has it.
Status take_portable_job(const std::string& directory, const std::string& job);

// Starts the processes of a verified set of a job that has been taken, calls `started`, and waits for them. Signals
// that end this process end them. Takes the job into a new epoch. kNotFound, before that: there is no such program.
// *processes of a BSP job is its bsprun alone. *lost_host: the host that it has lost; "": none.
Status restart_portable(const Common& common, const SetManifest& manifest, const PortableSet& set,
                        const PortableRestart& how, const std::function<void()>& started,
                        std::vector<RestartedProcess>* processes, std::string* lost_host);

// Prints the values of an image by shadowib-values, which lies beside this command or in PATH. Returns its exit code.
int print_values(const std::string& image);

}  // namespace shadowib::cli
