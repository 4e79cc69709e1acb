// The rule of a federation: which checkpoint of one cluster (CLC) a message from another one forces.
//
// A job's processes belong to clusters, and each cluster is checkpointed alone. A cluster's SN is the number of its
// last CLC; 0: it has none yet. A message between clusters carries the sender's SN, as it was when the message was
// posted. D[i] is the greatest SN of cluster i whose messages the receiver has delivered. A message above D waits
// until a CLC of the receiver has committed, so no CLC holds half of what came of it.
//
// Nothing here does I/O, allocates or locks: agents, commands, the simulator (perftest/fedsim) and tests share it.
// Each object belongs to its caller; functions may be called by any thread that owns their arguments.
//
// Source: S. Monnet, C. Morin, R. Badrinath, "Hybrid Checkpointing for Parallel Applications in Cluster Federations"
// (CCGrid 2004), sections 3.1, 3.2 and 3.4; docs/internals/federation.md tells what differs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "shadowib/base/status.h"

namespace shadowib::federation {

using Sn = std::uint32_t;           // number of a CLC; 0: before the first one
using Incarnation = std::uint32_t;  // how often a cluster went back

inline constexpr unsigned kMaxClusters = 32;

// One number for each cluster of a federation, by index. At most kMaxClusters.
struct PerCluster {
  unsigned clusters = 0;
  std::array<std::uint32_t, kMaxClusters> of{};

  explicit constexpr PerCluster(unsigned count = 0) : clusters(count) {}
  constexpr std::uint32_t& operator[](unsigned i) { return of[i]; }
  constexpr std::uint32_t operator[](unsigned i) const { return of[i]; }
  bool operator==(const PerCluster& other) const = default;
  // Each entry takes the greater one.
  void raise(const PerCluster& other);
  // Each entry takes the lesser one.
  void cut(const PerCluster& other);
  // No entry of `other` is above ours.
  bool covers(const PerCluster& other) const;
};

enum class Policy : std::uint8_t {
  kPaper,   // force if the SN is above D[sender]
  kVector,  // all of D is carried; force if any entry is above the receiver's
  kIndex,   // force if the SN is above the receiver's own, and take it as the CLC's number
  kNone,    // force nothing: what the others are compared with
};

// The part of a message that the rule needs. `vector` is the sender's D with its own SN at its own place; kVector
// alone looks at it.
struct Stamp {
  unsigned cluster = 0;
  Incarnation incarnation = 0;
  Sn sn = 0;
  PerCluster vector;
};

// A running cluster. Members of a cluster agree on it between two CLCs.
struct RunningCluster {
  unsigned index = 0;
  Sn sn = 0;
  PerCluster depends;       // D of the running interval; [index] stays 0
  PerCluster incarnations;  // of all clusters, its own included
};

// A CLC in its set's manifest.
struct ClcRecord {
  enum class Claim : std::uint8_t { kUndecided, kCommitted, kVoid };

  unsigned cluster = 0;
  Sn sn = 0;
  Incarnation incarnation = 0;  // of the cluster that made it
  PerCluster before;            // D as the interval before it ended
  PerCluster after;             // D as its own interval began
  bool forced = false;
  Claim claim = Claim::kUndecided;

  bool operator==(const ClcRecord& other) const = default;
};

enum class Arrival : std::uint8_t {
  kDeliver,  // at once
  kHold,     // stop its link at this message, ask for a CLC, deliver after the commit
  kDead,     // of an incarnation that is gone, or impossible: never deliver
};

// Tells how the receiver treats a message. A stamp of an unknown cluster, of the receiver itself, or of SN 0 is dead:
// nothing leaves a cluster before its CLC 1.
Arrival judge(Policy policy, const RunningCluster& receiver, const Stamp& stamp);

// The stamp of a message that `sender` posts now. Precondition: sender.sn > 0.
Stamp stamp_of(const RunningCluster& sender);

// Notes a delivery: D takes the stamp, whatever the policy. Precondition: judge() does not say kDead.
void note_delivered(Policy policy, RunningCluster* receiver, const Stamp& stamp);

// The record of the CLC that comes next, with all that is held when the cluster has settled. It is undecided.
// `held` may be empty. kRefused: SNs are used up.
[[nodiscard]] Status next_clc(Policy policy, const RunningCluster& cluster, std::span<const Stamp> held,
                              ClcRecord* record);

// The CLC has been claimed as committed: the cluster's SN and D are the record's. Must come before a thread runs.
void commit(RunningCluster* cluster, const ClcRecord& record);

// The cluster went back to `record`. `sns` and `incarnations` are those of all clusters as the recovery published
// them. D is cut at `sns`: what was held for this CLC comes again, and forces no second one.
void go_back(RunningCluster* cluster, const ClcRecord& record, const PerCluster& sns, const PerCluster& incarnations);

}  // namespace shadowib::federation
