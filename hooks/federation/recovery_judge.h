// Whether clusters may go back to their CLCs, and which members then have something to send again. Pure: the command
// (hooks/command/recovery.cc) collects the facts.
//
// A cluster that goes back asks again for messages. Members that stay have them in their logs, and members that go
// back have them in the logs of their images. A recovery is refused unless those logs are known to be whole, and to
// be ordered by one clock. docs/internals/federation.md has the rule in words.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hooks/federation/rule.h"
#include "shadowib/base/status.h"

namespace shadowib::federation {

// A member of the job as it is now.
struct MemberFacts {
  std::uint32_t index = 0;
  std::string name;  // for messages
  std::string host;
  std::optional<unsigned> cluster = {};  // none: it is in none
  bool gone = false;                     // it has ended in an orderly way
  // For each cluster: since when the log of its connections there is whole, in nanoseconds of CLOCK_REALTIME. 0: it
  // has no connection. None, or beyond the end: it does not say.
  std::vector<std::optional<std::uint64_t>> logged_since = {};
  // For each cluster: its latest CLC for which the member has trimmed a log. Beyond the end: it does not say.
  std::vector<Sn> trimmed = {};
};

// A cluster that goes back, and the set of its CLC.
struct BackFacts {
  struct Member {
    std::uint32_t index = 0;
    std::string host;
  };
  unsigned cluster = 0;
  Sn sn = 0;
  std::string set;                                  // for messages
  std::vector<Member> members = {};                 // in the set
  std::optional<std::vector<unsigned>> wired = {};  // to these clusters, at the CLC. None: the set does not tell
  std::int64_t asked_ms = 0;  // when its members were asked for the CLC. 0: the set does not tell
  // For each cluster: since when the logs in the images are whole, as in MemberFacts. Beyond the end: the set does
  // not tell.
  std::vector<std::uint64_t> logged_since = {};
  std::vector<Sn> trimmed = {};  // likewise, as in MemberFacts
};

// The line of an earlier recovery of the epoch.
struct EarlierLine {
  std::vector<unsigned> back;  // clusters that went back
  PerCluster sns;              // of all clusters from then on
  std::vector<std::uint32_t> replaying = {};
};

struct RecoveryFacts {
  struct Cluster {
    std::string name;
    std::vector<ClcRecord> clcs = {};  // committed in this epoch and not undone, by SN; also those without a set
  };
  std::vector<Cluster> clusters;  // by index
  std::vector<BackFacts> back;
  std::vector<MemberFacts> members;
  std::vector<EarlierLine> earlier;               // by number
  std::set<std::pair<unsigned, unsigned>> wired;  // pairs of the epoch, the lesser index first
  bool tells_wiring = true;                       // false: clusters that are not in `wired` may be wired

  const BackFacts* going_back(unsigned cluster) const;  // null: it stays
};

// Whether two clusters that go back were wired at the CLC of either.
bool were_wired(const BackFacts& a, const BackFacts& b);

// Whether the logs in the images of `other` may have been trimmed for a later CLC of `back`, so that they lack what
// `back` asks for. A set that does not tell is judged by what it depends on.
bool has_known_of(const RecoveryFacts& facts, const BackFacts& back, const BackFacts& other);

// kRefused names the cluster and the reason: a message might be lost, come twice, or come too early.
[[nodiscard]] Status judge_recovery(const RecoveryFacts& facts);

// Members that may have something to send again once the clusters are back, ascending. Members hear of each other by
// the latest line alone, so this has those of earlier lines, too.
std::vector<std::uint32_t> list_replaying(const RecoveryFacts& facts);

}  // namespace shadowib::federation
