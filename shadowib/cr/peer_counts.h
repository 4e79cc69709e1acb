// The counts that members publish while they settle, and where the peers of queue pairs are found in them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hooks/agent/agent.h"
#include "shadowib/base/deadline.h"
#include "shadowib/cr/judge.h"
#include "shadowib/objects/queue_pair.h"

namespace shadowib {

// The exchange may hang for so long that parked threads have gone on: the registry is the program's again. Asked
// after each of its answers, before the registry is looked at. kRefused: they have.
[[nodiscard]] Status still_stopped();

// Receives completed since the connection began, and those left.
std::pair<std::uint32_t, std::uint32_t> receive_counts(ShadowQp& qp);
// Receive-consuming messages posted before `sequence` since the connection began; wraps.
std::uint32_t messages_before(ShadowQp& qp, std::uint64_t sequence);

// For one attempt to settle, by one thread.
class PeerCounts {
 public:
  explicit PeerCounts(const SettleContext& context) : context_(context) {}

  // Notes this member's own counts. If they have changed, they are due to be published.
  void note();
  const std::vector<Exchange::Value>& due() const { return due_; }
  // Those that were due are published: nothing is due any more. They are long with many queue pairs, so nothing is
  // copied.
  void are_published();
  // Publishes what is due: before the counts of others are read, and with the entry of a member that has settled.
  [[nodiscard]] Status publish();
  // Reads the counts of those members that a queue pair of ours that `matters` is connected to. A member that has not
  // published yet is left out, and the queue pairs to it keep moving.
  [[nodiscard]] Status read(const std::function<bool(ShadowQp&)>& matters);

  // When counts were last seen to change.
  std::int64_t changed_ns() const { return changed_ns_; }
  // Grows as long as requests are executed in members whose counts are known.
  std::uint64_t progress() const;
  // The first error of the exchange in a place that cannot return it. A peer that the exchange does not tell of may
  // be there all the same: its queue pairs must not be given up.
  const Status& failure() const { return failure_; }

  // The counts of a queue pair's peer.
  struct Peer {
    const QpCounts* row = nullptr;
    const std::vector<QpCounts>* counts = nullptr;  // all of its member
    bool connected = false;                         // it says so, too
    bool may_come = false;                          // not known yet: a member at the address has not published
  };
  // Several members may be at an address, and each of a member's adapters may have the number. One says that it is
  // connected to this queue pair; else any that has the number will do, to see that it is not.
  Peer find_peer(const ShadowQp& qp);
  // The row of a shared receive queue in a member's counts, or null.
  static const QpCounts* find_queue(const std::vector<QpCounts>& counts, std::uint32_t number, std::uint32_t adapter);

  // Where the peers at one address may be.
  struct Candidates {
    std::vector<std::uint32_t> members;  // of this checkpoint
    bool guests = false;
    bool elsewhere = false;  // of a CLC: it is a member of another cluster
  };
  // Asks the exchange once. No member opens a device while we are settling.
  const Candidates& candidates_at(const RemoteEnd& remote);

 private:
  bool is_in_checkpoint(std::uint32_t member) const;
  // Whether a member that takes no part in this CLC is in another cluster, rather than one that came too late, or
  // died.
  bool is_of_another_cluster(std::uint32_t member);
  void note_failure(const Status& status);
  std::string key(std::uint32_t member) const;

  const SettleContext& context_;
  std::map<std::uint32_t, std::vector<QpCounts>> counts_;                   // by member, sorted by qp_num
  std::map<std::pair<std::uint32_t, std::string>, Candidates> candidates_;  // by LID and GID
  Status failure_;
  std::string last_published_;
  bool noted_ = false;
  std::vector<Exchange::Value> due_;
  std::int64_t changed_ns_ = monotonic_ns();
};

}  // namespace shadowib
