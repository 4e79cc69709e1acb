// The cluster of a federation that this member is in (docs/internals/federation.md). A member that is in none runs
// nothing of this but is_in_cluster().
//
// For the agent's thread, except where said. The state lies in memory that images hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hooks/federation/rule.h"
#include "hooks/job/cluster.h"
#include "hooks/job/job_info.h"
#include "hooks/job/recovery.h"
#include "shadowib/base/json_writer.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

struct OwnCluster {
  char name[33] = {};  // "": none
  federation::Policy policy = federation::Policy::kPaper;
  double hold_s = 10;  // of a refused CLC; then messages are delivered without one
  // After a CLC, none is taken for that long to give others' logs room. 0: none ever is.
  std::int64_t log_interval_ns = 60'000'000'000;
  federation::RunningCluster running;
  std::uint64_t last_request = 0;     // the latest request for a CLC of the cluster that was seen
  std::uint64_t last_room = 0;        // of others, for one that gives their logs room
  std::uint64_t last_word = 0;        // and the latest word of a recovery (job/recovery.h)
  std::uint64_t stops = 0;            // how often a checkpoint has stopped the program
  std::uint64_t delivered_early = 0;  // messages that waited for hold_s in vain
};

// Any thread.
bool is_in_cluster();
const OwnCluster& own_cluster();

// Reads SHADOWIB_CLUSTER, SHADOWIB_CLUSTER_POLICY, SHADOWIB_CLUSTER_HOLD and SHADOWIB_LOG_INTERVAL. kUsage names the
// variable.
Status read_cluster_choice();

// On joining, while no other process does: claims the cluster's index, and takes SN and D over from its last CLC.
// `members`: names of the member keys so far. *waits: a checkpoint of the cluster is under way, and this process
// joins after it. kUsage: other members are in no cluster, or
// have another policy; there are more than 32 clusters; or the exchange is a launcher's.
Status enter_cluster(const JobInfo& info, Exchange& exchange, const std::vector<std::string>& members, bool* waits);

// In a process restarted from a set of the whole job: every cluster begins anew, of the generation's incarnation. The
// participant has yet to hear of it.
void begin_cluster_anew(Exchange& exchange);
// In a process restarted from a CLC in the epoch that it was saved in: the cluster is at that CLC, in the incarnation
// that the recovery has published. kCorrupt: the recovery has no such line.
Status begin_cluster_again(Exchange& exchange);
// Behind it: of other clusters that go back by the same line, the incarnation that is over; else 0.
const federation::PerCluster& incarnations_over();

// Takes the incarnations of other clusters. False: this process's own is over.
bool take_word(const IncarnationWord& word);

// A request for a CLC of this member's cluster that was not seen before. It is seen now.
bool is_new_clc_request(unsigned cluster, std::uint64_t number);
// Likewise of another cluster, whose log gets full.
bool is_new_room_request(std::uint64_t number);

// The program's threads are about to be stopped. For a CLC the border stands still.
void close_border(bool clc);
// While the whole job settles no message waits for a CLC: each has run or not when all have settled.
void let_held();
// The program's threads are about to go on. Does nothing if the border is open.
void open_border();
// After a CLC of which nobody can tell whether it counts: the border stays closed until settle_undecided() knows.
// Requests posted meanwhile are behind that CLC, and have its number if it counts. Before a thread runs.
void keep_border_closed(std::uint64_t attempt, federation::Sn sn);
void settle_undecided();
bool is_undecided();
// kRefused with EAGAIN: an earlier CLC is undecided.
Status judge_border();

// D, with what this member has delivered.
federation::PerCluster delivered_so_far();
// SN, D and the messages that wait, with the border closed.
BorderReport report_border();
// The CLC is committed: SN and D are its record's. Before a thread runs.
void adopt_clc(const federation::ClcRecord& record);
// Claims a CLC as void, unless another decision was made before.
Status decide_as_void(std::uint64_t attempt, federation::Sn sn, Decision* decided);

// Messages that have waited too long are delivered into the running interval, and nothing waits for CLC 1 any more.
void let_through();

// A member, as `shadowib status` shows it.
void describe_own_cluster(JsonWriter& writer);

}  // namespace shadowib
