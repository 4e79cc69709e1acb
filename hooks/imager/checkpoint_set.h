// A checkpoint set: <directory>/sets/<job>.<NNNN>/ with manifest.json, its checksum, and one image per member.
//
// The images of a near set lie on the members' hosts (job/near_directory.h). Its directory has placement.json, and
// the members' descriptor tables, which a restart needs on every host.
//
// Written into <directory>/sets/.<job>.<NNNN>.staging-<random>/ and committed by sync + rename: it exists whole or
// not (P3).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hooks/federation/rule.h"
#include "hooks/store/placement.h"
#include "hooks/store/store.h"
#include "shadowib/base/status.h"

namespace shadowib {

// A file that an image has pages in, beside it: an earlier image of the member (image_format.h).
struct SetPack {
  std::string file;  // relative
  std::uint64_t bytes;
};
std::string pack_file(std::uint32_t member, const std::string& set_id_hex);

struct SetMember {
  std::uint32_t index;
  int pid;
  std::string file;  // relative
  std::uint64_t bytes;
  std::string xxh3;  // 32 hex digits, XXH3-128 of the file
  std::string comm, host;
  std::int64_t settle_ns, save_ns;
  // How many RDMA objects of each kind it had; none in sets of shadowib 0.1 and before.
  std::vector<std::pair<std::string, std::uint64_t>> objects;
  std::vector<SetPack> packs = {};  // of an incremental checkpoint
  // If it is not the set's, since the member's cluster has gone back alone.
  std::optional<std::uint32_t> generation = {};
};

// The set is a CLC: it holds one cluster of a federation (docs/internals/federation.md). It counts if `claim` is
// committed in the job's exchange.
struct SetCluster {
  std::string name;
  federation::ClcRecord record;  // `claim` stays undecided
  std::string claim;             // the key of the decision, with the epoch
  // Indices of the clusters to which it was wired in its epoch. None: the set is of a shadowib that did not tell.
  std::optional<std::vector<unsigned>> wired = {};
  // When its members were asked, in milliseconds of CLOCK_REALTIME: they were as they are saved only later. 0: the
  // set is of a shadowib that did not tell.
  std::int64_t asked_ms = 0;
  // For each cluster, of the member where it is latest: since when the logs of messages to it that lie in the images
  // are whole, in nanoseconds of CLOCK_REALTIME. 0: there was no connection. Beyond the end: it was not told.
  std::vector<std::uint64_t> logged_since = {};
  // Likewise: the latest CLC of that cluster for which those logs were trimmed; 0: none was.
  std::vector<federation::Sn> trimmed = {};
};

// The clusters of a federation, in a set of the whole job.
struct SetFederation {
  struct Cluster {
    std::string name;
    unsigned index = 0;
    std::vector<std::uint32_t> members;
  };
  std::string policy;
  std::vector<Cluster> clusters;  // by index; empty: the job has none
};

struct SetManifest {
  std::string set_id;  // 32 hex digits
  std::string job;
  std::uint32_t number;      // NNNN
  std::uint32_t generation;  // the greatest of its members'
  std::string shadowib_version;
  std::string created;  // ISO 8601, UTC
  std::string backend;
  std::vector<SetMember> members;
  // Every mapped file of any member with its build-id (hex, empty if it has none).
  std::vector<std::pair<std::string, std::string>> files;
  std::string path = {};        // where it was read from; not stored
  SetPlacement placement = {};  // stored apart, by near sets only
  std::optional<SetCluster> cluster = {};
  SetFederation federation = {};
};

// The job, or "<job>.<cluster>": sets of a cluster have numbers and names of their own.
std::string owner_of(const SetManifest& manifest);
// "<owner>.<NNNN>".
std::string name_of(const SetManifest& manifest);

// Descriptor tables by member.
using MemberTables = std::map<std::uint32_t, std::string>;

// Syncs the images that members have written into `staging`, writes the manifest, and commits. *set_path is absolute.
// A near set gets its placement and the `tables`, too; its images are the caller's to sync.
Status commit_set(Store& store, const std::string& staging, const SetManifest& manifest, std::string* set_path,
                  const MemberTables& tables = {});

// Where a member's image lies on this host. kCorrupt: it is missing. kNotFound: it is on another host, which the text
// names.
Status find_image(const SetManifest& manifest, const SetMember& member, std::string* path);
// The tables of a near set.
Status read_tables(const SetManifest& manifest, MemberTables* tables);

// Reads a manifest and checks it against its checksum. kNotFound, kCorrupt, kVersion.
Status read_manifest(const std::string& set_path, SetManifest* manifest);
bool has_packs(const SetManifest& manifest);
enum class VerifyDepth {
  kEverything,
  kForRestart,  // all but the content of pages, which restart_set() checks as it reads it; older images whole
};
// read_manifest + every image verified by every byte, belongs to this set and rank, none missing, not empty,
// descriptor tables match. `progress` (may be null) is called with bytes done and total. If there are `members`, only
// their images are read, and tables are not matched.
Status verify_set(const std::string& set_path, SetManifest* manifest, void (*progress)(std::uint64_t, std::uint64_t),
                  const std::set<std::uint32_t>& members = {}, VerifyDepth depth = VerifyDepth::kEverything);
// All committed sets, newest last; unreadable ones are returned with their Status.
struct ListedSet {
  SetManifest manifest;
  Status status;
};
Status list_sets(const std::string& directory, std::vector<ListedSet>* sets);

}  // namespace shadowib
