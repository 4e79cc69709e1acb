// A command's place in a restart: alone, or as one of several that each start their share of the members.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "hooks/imager/checkpoint_set.h"
#include "shadowib/cli/common.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib::cli {

// Locks (hooks/job/protocol.h) and files, in the job's directory:
//   alive/restart          held by the command that began, while it lives
//   alive/renewing         held by it until the job has its new epoch: who would join meanwhile waits
//   (hooks/agent/join.cc) alive/<epoch>.share<M> held by each command of a shared restart; M: its lowest member
//   sharing                held for a moment by who begins or joins
//   share                  fields epoch, set, files: what was begun
// Keys below <epoch>/restart/: started/<member> is claimed with the name of the share's lock.
class RestartPlace {
 public:
  RestartPlace(std::string directory, std::string exchange) : directory_(directory), exchange_uri_(exchange) {}
  ~RestartPlace();
  RestartPlace(const RestartPlace&) = delete;
  RestartPlace& operator=(const RestartPlace&) = delete;

  // No live job, no other restart: kBusy says who. Held until the end. Nothing is changed yet.
  Status take_alone(const SetManifest& manifest);
  // Names the new epoch. After take_alone().
  void choose(const SetManifest& manifest);
  // How many workers a master of the set is to make once it is back. Before begin(); if not called, as many as it
  // had.
  void ask_for_workers(unsigned workers) { workers_ = std::to_string(workers); }
  // Gives the job the new epoch.
  Status begin();

  // Joins the restart of this set that another command began, or begins it. `files`: "keep" or "roll-back"; kUsage if
  // it began with the other one, since members wait for a cut that each command makes.
  Status share(const SetManifest& manifest, const std::set<std::uint32_t>& members, const std::string& files);
  // Waits until every member has a command that starts it. kTimeout names those that have none.
  Status await_others(int timeout_s);
  // Others have died before all was running: this share's members are told to give up, too. For
  // RestartOptions::watch.
  Status watch();

  const std::string& epoch() const { return epoch_; }

 private:
  Status joinable(const SetManifest& manifest, const std::string& files, bool* can) const;
  Status open_exchange();
  Status claim(const std::set<std::uint32_t>& members);
  // Members that were started by a command that is gone and do not run, as text; empty if all is well.
  Status lost(std::string* text);
  std::string key(const std::string& rest) const { return epoch_ + "/restart/" + rest; }
  std::string share_path(const std::string& name) const;

  std::string directory_, exchange_uri_, job_, epoch_;
  std::string workers_;          // asked for; "": not
  std::set<std::uint32_t> all_;  // members of the set
  SetFederation federation_;     // of the set
  std::unique_ptr<Exchange> exchange_;
  int restart_lock_ = -1, renewing_lock_ = -1, share_lock_ = -1;
  bool all_run_ = false;
};

}  // namespace shadowib::cli
