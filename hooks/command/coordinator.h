// The command's side of a checkpoint: finds a job's members, asks for a checkpoint, judges, commits, reports.
//
// For commands (`shadowib checkpoint`, `shadowib status`); in-process code never links it. It uses the exchange
// and the alive locks only (protocol.h). So it needs no rights over the members beyond their files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/compression.h"
#include "hooks/job/members.h"
#include "hooks/store/choice.h"
#include "hooks/store/store_spec.h"
#include "shadowib/base/status.h"

namespace shadowib {

// Where a checkpoint stands. `phase` is the lowest phase any member has reached (job/phase.h).
struct CheckpointProgress {
  int phase = 0;
  std::uint32_t members = 0;        // taking part
  std::uint32_t members_saved = 0;  // their images are complete
};

struct CheckpointReport;

// A store that each checkpoint chooses by what its hosts have free (store/choice.h).
struct StoreChoice {
  std::string mem_place, disk_place;  // absolute paths, on every host
  int survive = 1;
  StoreRates rates;
  std::optional<Tier> newest;  // of the job's newest set
  bool may_compress = false;   // by lz4, if no store has room for plain images
};

// While its image is written a program stands, until the set is committed; goes on, where that can be; or goes on if
// its host has the memory for what it may write meanwhile.
enum class SaveWay { kStopped, kForked, kAuto };

struct CheckpointOptions {
  std::string directory;  // SHADOWIB_DIR; made absolute here
  std::string job;
  std::string cluster;                // of a federation: a CLC of it alone. "": the whole job
  std::string exchange;               // URI; empty: dir:<directory>/jobs/<job>/x
  StoreSpec store;                    // where images are to lie
  std::string near_place;             // of a near store: an absolute path, on every host
  bool keepers = false;               // keepers on hosts with images, also without copies
  std::optional<StoreChoice> choice;  // instead of both
  SaveWay save = SaveWay::kStopped;   // kStopped with `kill`, and of a CLC
  bool incremental = false;           // only pages that the job's newest set does not have are written
  Compression compression = Compression::kNone;
  bool kill = false;                                        // members end by SIGKILL once the set is committed
  int timeout_ms = 60000;                                   // for the whole checkpoint
  std::function<void(const CheckpointProgress&)> progress;  // may be empty; called in the calling thread, on changes
  // May be empty. With `kill`: called once the set is committed, before members are told to end. The end of the
  // members may end the caller too: in a pid namespace, a container, a job step.
  std::function<void(const CheckpointReport&)> before_kill;
  // Likewise, behind it and right before members are told: SIGINT, SIGTERM and SIGHUP wait until they are. To be
  // quick.
  std::function<void(const CheckpointReport&)> at_kill;
  // Called if members could not be told to end after all, with the reason. The command still holds its lock: who
  // finds that free finds in the history what this has noted.
  std::function<void(const CheckpointReport&, const Status&)> at_no_end;
};

struct MemberReport {
  std::uint32_t index = 0;
  int pid = 0;
  std::string host, comm;
  std::int64_t settle_ns = 0;   // from the last thread stopped to the frontier reached
  std::int64_t save_ns = 0;     // writing and syncing the image
  std::int64_t stopped_ns = 0;  // from the first stop to the image saved: what the program lost so far
  std::uint64_t bytes = 0;      // of the image
  std::string save;             // of a checkpoint that is taken forked: "forked" or "stopped"
  std::string why_stopped;
  std::uint64_t borrowed_bytes = 0;                           // of pages that earlier sets have written
  std::string why_whole;                                      // why there are none though an earlier set is there
  std::string compression;                                    // of a checkpoint that is compressed: "lz4" or "zstd"
  std::uint64_t page_bytes = 0;                               // then: of the pages in the image, before that
  std::string why_plain;                                      // why they are not, though asked for
  std::vector<std::pair<std::string, std::uint64_t>> phases;  // by name (job/phase.h), in ns
};

struct CheckpointReport {
  std::string set_path;      // absolute, of the committed set
  std::string set_id;        // 32 hex digits
  std::uint32_t number = 0;  // NNNN
  std::uint32_t generation = 0;
  StoreSpec store;
  bool incremental = false;  // as asked for
  Compression compression = Compression::kNone;
  std::vector<StoreOption> considered;  // of options.choice: what could have been, quickest first
  bool compressed_for_room = false;     // by options.choice: none had room for plain images
  std::string why_stopped;              // with kAuto: programs stood after all, since a saver had died; "": none had
  std::string job, near_place;
  std::uint64_t most_bytes = 0;       // of a host that has the most; of a near store
  std::optional<SetCluster> cluster;  // the set is a CLC
  std::int64_t commit_ns = 0;         // from the last image saved to the set committed
  std::int64_t copies_ns = 0;         // the part of it that made copies or parities
  std::vector<MemberReport> members;  // by index
};

// Takes one checkpoint of the job. On failure nothing is committed, the staging directory is gone and the members run
// on. A member that has left is no part of the set. The errors are:
//   `kNotFound`: there is no such job, or no such cluster of it. ESRCH: none of its members is alive.
//   `kBusy`: another checkpoint is under way, of the job or of the cluster. Or a member was still joining after 5 s.
//            One of the whole job waits for those of its clusters until options.timeout_ms has run out.
//   `kRefused`: something cannot be captured. Or a member is still connected to one that has left.
//               The text names member, pid and object (P4).
//   `kAborted`: a member died in the middle, or gave up.
//   `kTimeout`: options.timeout_ms ran out.
//   `kIo`: the directory or the exchange failed (ENOSPC, EACCES...), with the path.
//   `kVersion`: a member speaks another protocol.
// A CLC's set may be there although this returns an error: its decision (job/cluster.h) says whether it counts.
// With `kill` an error after options.at_kill: the set is committed, members could not be told to end, and run on.
Status run_checkpoint(const CheckpointOptions& options, CheckpointReport* report);

}  // namespace shadowib
