// Finding keepers: what each publishes in the job's directory, DIR/jobs/<job>/keepers/<host>, beside a lock that it
// holds from then on while it lives. For commands.
#pragma once

#include <string>
#include <vector>

#include "hooks/store/peer_connection.h"
#include "shadowib/base/status.h"

namespace shadowib {

struct KeeperInfo {
  std::string host;    // base/this_host.h
  std::string name;    // for people
  std::string domain;  // SHADOWIB_DOMAIN, else the machine
  int pid = 0;
  std::vector<PeerAddress> addresses;
};

// Replaces what an earlier keeper of the host has published. For the one that takes its lock next.
Status publish_keeper(const std::string& directory, const std::string& job, const KeeperInfo& info);
// kNotFound: there is none, or it is dead.
Status find_keeper(const std::string& directory, const std::string& job, const std::string& host, KeeperInfo* info);
// All that live, by host.
std::vector<KeeperInfo> live_keepers(const std::string& directory, const std::string& job);

// The job's key. kNotFound, kIo.
Status read_job_key(const std::string& directory, const std::string& job, std::string* key);

}  // namespace shadowib
