// Clusters of a federation as agents and commands name them: names, keys of the exchange, what keys hold.
//
// Keys, beside those of protocol.h; a job without clusters has none of them:
//
// `<epoch>/federation`          Claimed by the first member of the epoch that is in a cluster: `policy=NAME`.
// `<epoch>/cluster/<name>`      Claimed by its first member: `index=I`.
// `<epoch>/control/checkpoint.<c>`
//                               The latest request for a CLC of cluster c, as `control/checkpoint`, with
//                               `cluster=<c>`.
// `<epoch>/control/room.<c>`    A process of another cluster asks for a CLC of cluster c: `n=N`, which grows. Its log
//                               of messages to that cluster gets full.
// `<epoch>/ckpt/<c>.<n>/...`    That CLC's keys, as protocol.h has them. Its command's lock is `<epoch>.ckpt<c>.<n>`.
//                               `border/<index>`: the member's SN and D, and the messages that it holds.
// `<epoch>/clc/<c>/<incarnation>.<sn>.<attempt>`
//                               The decision over a CLC, claimed once (Decision). `attempt` is the n of its request,
//                               so a void decision keeps no SN from being used.
//
// `<epoch>.ckpt<c>.turn` is the lock of a cluster's turn: a CLC holds its own, a checkpoint of the whole job all.
//
// For agents and commands. Any thread; uses the heap of the caller.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/federation/rule.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/status.h"

namespace shadowib {

// 1 to 32 of [A-Za-z0-9_-], the first no '-'. No dot: names of sets have the cluster's name between dots.
bool valid_cluster_name(std::string_view name);
inline constexpr char kClusterNameRule[] = "use 1 to 32 of A-Za-z0-9_-, first a letter, a digit or _";

// "paper", "vector", "index". False: no such policy. `none` is none of a job's.
const char* policy_name(federation::Policy policy);
bool parse_policy(std::string_view name, federation::Policy* policy);

// Sets of a cluster lie beside those of jobs, as if "<job>.<cluster>" were one: <job>.<cluster>.<NNNN>.
std::string set_owner(std::string_view job, std::string_view cluster);

std::string federation_key(std::string_view epoch);
std::string cluster_key(std::string_view epoch, std::string_view name);
// A checkpoint's name in keys and locks: "7" of the whole job's, "1.7" of a CLC of cluster 1. kWholeJob: no cluster.
inline constexpr unsigned kWholeJob = ~0u;
std::string checkpoint_id(unsigned cluster, std::uint64_t n);
std::string checkpoint_key_of(std::string_view epoch, const std::string& id, std::string_view rest);
// Below `<epoch>/control/`: "checkpoint", "checkpoint.1".
std::string request_name(unsigned cluster);
std::string room_name(unsigned cluster);  // "room.1"
std::string clc_key(std::string_view epoch, unsigned cluster, std::string_view name);
std::string clc_name(federation::Incarnation incarnation, federation::Sn sn, std::uint64_t attempt);
// The part of the lock's name behind "<epoch>.".
std::string turn_lock(unsigned cluster);

// "3,0,1": one number for each cluster. decode: false if it is no list of 1 to 32 numbers.
std::string encode_numbers(const federation::PerCluster& numbers);
bool decode_numbers(std::string_view text, federation::PerCluster* numbers);

// A member tells this of its border once its cluster has settled.
struct BorderReport {
  federation::RunningCluster running;
  std::vector<federation::Stamp> held;
  // For each cluster: since when the member's log of messages to it is whole (BackendOps::logged_since). Empty: the
  // member does not tell.
  std::vector<std::uint64_t> logged_since = {};
  // Likewise: the latest CLC of that cluster for which the log was trimmed (BorderFacts::trimmed). Empty: as above.
  std::vector<federation::Sn> trimmed = {};
};
Fields encode_border(const BorderReport& report);
[[nodiscard]] Status decode_border(const Fields& fields, BorderReport* report);  // kCorrupt names the field

// Whether a CLC counts. The first claim decides. It is made by its command, once the set is there; or a member that
// has seen its command's end, as void.
struct Decision {
  federation::ClcRecord
      record;               // `claim` is kCommitted or kVoid; of a void one only cluster, SN and incarnation count
  std::string set, set_id;  // the set's name, and its id of 32 hex digits
  std::int64_t at_ms = 0;   // when it was committed, in milliseconds since 1970
  std::string by;           // "command", or "member 3"
};
Fields encode_decision(const Decision& decision);
[[nodiscard]] Status decode_decision(const Fields& fields, Decision* decision);  // kCorrupt

}  // namespace shadowib
