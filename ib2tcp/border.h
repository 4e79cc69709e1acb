// The border of this process's cluster: connections to processes of other clusters, and what waits there for a
// checkpoint of this cluster (CLC). The rule itself is hooks/federation/rule.h.
//
// A process that is in no cluster has no Border, and runs no code of it. Links and queue pairs at a border take other
// ways at branches that they have anyway (Link::judged_, Qp::odd_), so that the others pay nothing. Under the
// engine's lock. The methods of links and queue pairs are in border_link.cc and border_queue.cc.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "hooks/federation/rule.h"
#include "ib2tcp/gate.h"
#include "ib2tcp/transport.h"
#include "ib2tcp/wire.h"
#include "shadowib/abi/backend.h"

namespace shadowib::ib2tcp {

class Border {
 public:
  static_assert(federation::kMaxClusters == kMaxBackendClusters);

  explicit Border(unsigned index);

  unsigned index() const { return running_.index; }
  federation::Sn sn() const { return running_.sn; }
  federation::Policy policy() const { return policy_; }
  federation::Incarnation incarnation_of(unsigned cluster) const { return running_.incarnations[cluster]; }
  bool frozen() const { return frozen_; }
  bool is_behind_clc() const { return behind_clc_; }
  // D of this process. A message counts from when it begins to be placed: a CLC may hold half of it.
  void note_delivered(unsigned cluster, federation::Sn sn) {
    delivered_[cluster] = std::max(delivered_[cluster], sn);
  }
  // That CLC of another cluster has let something of its log go.
  void note_trimmed(unsigned cluster, federation::Sn sn) { trimmed_[cluster] = std::max(trimmed_[cluster], sn); }
  BorderFacts facts() const;
  // False from note_gone() until take() names a later incarnation.
  bool has_come_back(unsigned cluster) const { return told_incarnations_[cluster] >= oldest_alive_[cluster]; }

  void take(const ClusterState& state);
  // That incarnation of another cluster is over: the next one is awaited, whatever take() says.
  void note_gone(unsigned cluster, federation::Incarnation incarnation);
  void set_frozen(bool frozen) { frozen_ = frozen, behind_clc_ = false; }
  // Requests posted from now on are behind a CLC that may count or not (Qp::note_behind_clc).
  void note_behind_clc() { behind_clc_ = true; }
  federation::Arrival judge(const federation::Stamp& stamp) const {
    return federation::judge(policy_, running_, stamp);
  }
  // D as it was under that SN of this cluster, with the SN itself. Valid until take().
  const federation::PerCluster& dependencies_under(federation::Sn sn) const;
  // Messages wait for CLC 1 of this cluster.
  void ask_for_first() const;

  const Gate& gate(unsigned cluster) const { return gates_[cluster]; }
  // As in Gate. Queue pairs that wait there look again.
  void set_gate(unsigned cluster, std::uint32_t queue_pair, std::uint64_t completed);
  void set_others(unsigned cluster, const GateState& others);
  // This process goes back: what left for others behind its CLC is in no log, and its log may have times of another
  // clock. So nobody goes back to what was before, or to what was while it sent that again. A cluster that goes back
  // with it, as note_gone() has told, needs nothing of that: its log is whole since `logged_since`, unless that is
  // nullptr.
  void note_came_back(const std::uint64_t* logged_since);
  // It came back: peers send it again what it has forgotten.
  bool went_back() const { return went_back_; }
  // Messages leave from here again, or may do so.
  bool sends_again() const;
  // As in Gate. The queue pair is looked at again when it may go on (Qp::look_at_gate_again).
  void wait_at_gate(unsigned cluster, std::uint32_t queue_pair, std::uint64_t left, std::uint64_t completed) {
    gates_[cluster].wait(queue_pair, left, completed);
    tell_of_gate(cluster);
  }
  void wait_until_gate_opens(unsigned cluster, std::uint32_t queue_pair) {
    gates_[cluster].wait_until_open(queue_pair);
    tell_of_gate(cluster);
  }
  // A cluster that goes back to before now could not be served. For something has left for it, or may have, that is
  // in no log any more. Or it has read from here, or its connection is new.
  void note_lost(unsigned cluster);
  void note_never_logged(unsigned cluster) { logged_since_[cluster] = kNothingLeft; }
  std::uint64_t logged_since(unsigned cluster) const { return logged_since_[cluster]; }
  // Nanoseconds of CLOCK_MONOTONIC, so that nobody sets the clock; no two are alike.
  std::uint64_t stamp();

 private:
  struct Past {
    federation::Sn sn;
    federation::PerCluster depends;
  };
  void forget_past();
  void wake_at_gate(unsigned cluster);
  void tell_of_gate(unsigned cluster);

  federation::RunningCluster running_;
  federation::PerCluster oldest_alive_;  // incarnations before these are over
  federation::PerCluster told_incarnations_;
  federation::PerCluster delivered_, trimmed_;
  federation::Policy policy_ = federation::Policy::kPaper;
  bool frozen_ = false, behind_clc_ = false, went_back_ = false;
  // This process came back beside that cluster, and may still send again what was in no log.
  std::array<bool, federation::kMaxClusters> came_back_{};
  std::array<Gate, federation::kMaxClusters> gates_;
  // The last values for HostServices::gate_moved.
  struct Told {
    std::uint64_t earliest = kNothingLeft, awaits = kNothingLeft;
  };
  std::array<Told, federation::kMaxClusters> told_of_gates_;
  std::array<std::uint64_t, federation::kMaxClusters> logged_since_{};
  std::uint64_t last_stamp_ = 0;
  std::vector<Past> past_;  // ascending, the last one is now; older ones only while requests of then may leave
};

// The part of a link that crosses a border.
struct BorderSide {
  unsigned cluster = 0;  // of the peer
  federation::Incarnation incarnation = 0;
  bool shut = false;  // the peer's incarnation is not the cluster's
  bool held = false;  // at a message that waits for a CLC: `stamp`
  federation::Stamp stamp;
  federation::Sn admitted = 0;  // of the message that was let in last
  bool frozen = false;
  std::vector<FrameHeader> parting;  // refusals by queue pairs that are gone; they wait for CLC 1 of this cluster
  std::unique_ptr<Stream> parked;    // of a frozen link
  bool was_confirming = false;       // when it was frozen
  // Told by the last kVector on this connection, 0: none yet.
  federation::Sn told_in = 0, told_out = 0;
  federation::PerCluster dependencies{federation::kMaxClusters};  // with told_in
};

// Tells of a message of the connection between two queue pairs, if the job is traced. `from`: the sender's LID and
// queue pair. `number`: that of the request, also of an answer. `vector`: of a post, or nullptr.
void trace_message(BorderEvent::Kind kind, const Border& border, federation::Sn sn, unsigned peer, Opcode opcode,
                   std::uint16_t from_lid, std::uint32_t from, std::uint32_t to, std::uint32_t number,
                   const federation::PerCluster* vector);

// Whether a frame of this opcode makes the receiver depend on the sender's cluster.
bool is_message(const FrameHeader& header);

// Slots of BackendOps.
int set_cluster(const ClusterState* state);
void freeze_border(int phase);
std::size_t held_stamps(HeldStamp* stamps, std::size_t capacity);
void border_facts(BorderFacts* facts);
int cluster_gone(std::uint32_t cluster, std::uint32_t incarnation);
int border_state(ibv_qp* qp, BorderState* state, BorderResult* results, std::size_t capacity);
int restore_border(ibv_qp* qp, const BorderState* state, const BorderResult* results);
void clc_collected(std::uint32_t sn);
std::uint64_t gate_earliest(std::uint32_t cluster);
int set_gate(std::uint32_t cluster, const GateState* others);
std::uint64_t logged_since(std::uint32_t cluster);
int judge_cluster(std::uint32_t cluster, int failed);
std::size_t identity(void* buffer, std::size_t capacity);
int restore_identity(const void* buffer, std::size_t bytes);
int want_number(BackendNumber kind, std::uint32_t number);

}  // namespace shadowib::ib2tcp
