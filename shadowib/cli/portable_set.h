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
  std::string interval;  // seconds between checkpoints that bsprun takes; "": it takes none
  unsigned keep = 0;     // so many newest sets; 0: all
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
  std::vector<std::string> programs;  // instead of the members' own: member i runs number i modulo their count
  std::vector<std::string> runners;   // ARCHITECTURE=COMMAND
};
// Takes the job for a restart, until this command ends: its processes end with it. kBusy: it is alive, or another
// restart has it.
Status take_portable_job(const std::string& directory, const std::string& job);

// Starts the processes of a verified set of a job that has been taken, calls `started`, and waits for them. Signals
// that end this process end them. Takes the job into a new epoch. kNotFound, before that: there is no such program.
Status restart_portable(const Common& common, const SetManifest& manifest, const PortableSet& set,
                        const PortableRestart& how, const std::function<void()>& started,
                        std::vector<RestartedProcess>* processes);

// Prints the values of an image by shadowib-values, which lies beside this command or in PATH. Returns its exit code.
int print_values(const std::string& image);

}  // namespace shadowib::cli
