// Recoveries: clusters of a federation that go back while others run on, as the exchange has them.
//
// Keys, beside those of cluster.h. Before a cluster goes back, a job has none of them but `wired`.
//
// `<epoch>/recovery/<r>/failed`  Claimed by the command, whose recovery is number r then: `clusters=0,2`.
// `<epoch>/recovery/<r>/line`    Claimed by it: where clusters go, and what they are afterwards (RecoveryPlan).
//                                It binds the next recovery until it is reached.
// `<epoch>/recovery/<r>/gate/<m>` Published by member m, again and again: `left=0:NS,2:NS`. The first completion of
//                                what it still has to send again to those clusters (agent/gate.h).
// `<epoch>/recovery/<r>/reached` All members of clusters that went back run.
// `<epoch>/recovery/<r>/restart/...`
//                                That restart's keys (protocol.h). `ready/<m>`: the content of member m's image
//                                is checked.
// `<epoch>/control/recovery`     The latest word to members (IncarnationWord).
// `<epoch>/wired/<a>.<b>`        Published by a process of cluster a, before it connects its first queue pair or
//                                address handle to cluster b. `<a>.m`: before it comes to a multicast group.
//
// `alive/recovery` is the lock of the command, from before it claims a number until the line is reached. It holds
// the turns of all clusters until the line is claimed, and of those that go back until it is reached.
//
// For agents and commands. Any thread; uses the heap of the caller.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/federation/rule.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/status.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

struct RecoveryPlan {
  std::uint64_t number = 0;              // r
  std::vector<unsigned> back;            // clusters that go back
  federation::PerCluster sns;            // of all clusters, once the line is reached
  federation::PerCluster incarnations;   // of all clusters from then on
  std::uint32_t generation = 0;          // of members that come back
  std::vector<std::uint32_t> replaying;  // members that stay or come back: each says what it sends again
  bool reached = false;

  bool goes_back(unsigned cluster) const;
};
// `number` and `reached` are no fields.
Fields encode_plan(const RecoveryPlan& plan);
[[nodiscard]] Status decode_plan(const Fields& fields, RecoveryPlan* plan);  // kCorrupt names the field

// Which incarnations of clusters live. A process of an earlier one ends as soon as it hears of it.
struct IncarnationWord {
  std::uint64_t n = 0;  // grows with each word; 0: there was none
  federation::PerCluster incarnations;
};
Fields encode_word(const IncarnationWord& word);
[[nodiscard]] Status decode_word(const Fields& fields, IncarnationWord* word);  // kCorrupt names the field

std::string recovery_key(std::string_view epoch, std::uint64_t number, std::string_view rest);
// The name of a file in the job's directory (agent/gate_board.h).
std::string gate_board_name(std::string_view epoch, std::uint64_t number);
std::string incarnations_key(std::string_view epoch);
// `to` kManyClusters: a multicast group, where all meet that have come to any.
inline constexpr unsigned kManyClusters = federation::kMaxClusters;
std::string wired_key(std::string_view epoch, unsigned from, unsigned to);
// The number behind "g" in an epoch's name.
std::uint32_t generation_of(std::string_view epoch);

// Plans of the epoch, by number. A recovery without a line is not among them; *latest (may be null) counts it.
[[nodiscard]] Status read_plans(Exchange& exchange, std::string_view epoch, std::vector<RecoveryPlan>* plans,
                                std::uint64_t* latest);
// word->n is 0 if there was none.
[[nodiscard]] Status read_word(Exchange& exchange, std::string_view epoch, IncarnationWord* word);
// Pairs of clusters that have been wired in the epoch, the lesser index first.
[[nodiscard]] Status read_wired(Exchange& exchange, std::string_view epoch,
                                std::set<std::pair<unsigned, unsigned>>* wired);

// The cluster has gone back behind this CLC since: it counts no more.
bool is_undone(const std::vector<RecoveryPlan>& plans, const federation::ClcRecord& record);

}  // namespace shadowib
