// The notes on this process as a rank of a launcher's job. In the image like any memory of ours.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hooks/launcher/stored_value.h"
#include "shadowib/base/lock.h"

namespace shadowib {

struct LauncherRank {
  // From the first PMIx_Init that succeeded, or PMI-1's init, to the last PMIx_Finalize, or its finalize. The rank's
  // identity stays as it is afterwards.
  std::atomic<bool> connected{false};
  const char* kind = "pmix";      // literal: how it talks to the launcher
  std::atomic<bool> gone{false};  // there is no launcher any more: a restart lies behind this process
  char name[256] = {};            // the namespace
  std::uint32_t rank = 0, size = 0;

  SpinLock lock;  // of what follows; held inside only
  int inits = 0;
  StoredValues puts;            // others may ask for them when they are committed:
  StoredValues committed_puts;  // as they were at the latest commit, if there was one
  bool committed = false;
  std::map<std::string, std::uint64_t> fences;  // come to, by set
  std::vector<std::uint32_t> done;              // ranks that had left at the latest checkpoint
  // Its session's: where the launcher has them, what was there at the latest checkpoint, and what a restart has made.
  std::vector<std::string> session_roots, directories, directories_made;
  char unanswerable[160] = {};  // why a restart could not answer for this rank; empty: it can
  std::size_t handlers = 0;     // event handlers registered after a restart

  SpinLock
      telling;  // one event at a time, so that they come to others in the order of their numbers; held inside only
  std::uint64_t events_told = 0;  // by this rank, in its life
  // The agent's alone: up to where it has taken in the others', and the board's mark then.
  std::map<std::uint32_t, std::uint64_t> events_seen;
  std::string events_mark;
};

LauncherRank& launcher_rank();

}  // namespace shadowib
