// A keeper: one process per host, user and job, which gives pieces away, takes copies, and removes them.
//
// Its state is files: a keeper that dies is started anew and knows all that the old one knew. It is found by
// keeper_info.h. Requests are in KEEPER_PROTOCOL.md.
#pragma once

#include <functional>
#include <string>

#include "hooks/store/keeper_info.h"
#include "shadowib/base/networks.h"
#include "shadowib/base/status.h"

namespace shadowib {

struct KeeperOptions {
  std::string directory, job;
  std::vector<HostAddress> addresses;  // to listen on, besides loopback
  std::string domain;                  // "": the machine
  std::function<bool()> wanted;        // asked now and then: false ends the keeper
  // Removes this host's images of the job that belong to no set; *removed are their directories. May be empty.
  std::function<Status(bool dry_run, std::vector<std::string>* removed)> collect;
  std::function<void()> ready;  // called once it can be reached; may be empty
  int turn_ms = 1000;           // looks for its end each fifth of these
};

// Runs until nobody wants it or its job's directory is gone. kBusy: this host has one already.
Status run_keeper(const KeeperOptions& options);

}  // namespace shadowib
