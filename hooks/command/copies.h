// Copies of near images on other hosts, made before a set is committed. Internal to hooks/.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/store/keeper_info.h"
#include "hooks/store/mirror.h"
#include "shadowib/base/status.h"

namespace shadowib {

// Where the members of a checkpoint are: by member its host; by host its failure domain.
struct NearHosts {
  std::map<std::uint32_t, std::string> host_of;
  Domains domains;
};

// Has each image copied to the host that plan_mirror() names, checked there against the hash in the manifest, and
// adds the hosts to the placement. All hosts at the same time; waits for their keepers, which members have started.
// The text names image and host. `directory`: the checkpoint directory.
Status make_copies(const std::string& directory, const NearHosts& hosts, std::int64_t deadline_ns,
                   SetManifest* manifest);

// For a store with parity: in groups of hosts each host's keeper makes its own parities, from images that have been
// checked. Adds groups and parities to the placement.
Status make_parities(const std::string& directory, const NearHosts& hosts, std::int64_t deadline_ns,
                     SetManifest* manifest);

// kUsage with what is missing: the hosts cannot keep copies or parities of the store apart.
Status check_hosts(const StoreSpec& store, const NearHosts& hosts);

// A keeper that a member has started a while ago. kTimeout names the host.
Status await_keeper(const std::string& directory, const std::string& job, const std::string& host,
                    std::int64_t deadline_ns, KeeperInfo* info);

// Has the keepers remove the copies and parities of a set that is given up. Whatever fails is left to gc.
void drop_copies(const std::string& directory, const std::string& job, const std::string& place,
                 const std::string& set_id);

}  // namespace shadowib
