// The moment at which a restart rolls files back: every member is ready to go, and none has gone.
//
// Until then a restart may fail, and leaves the files as they are. Members wait for the restart command, which looks
// at the files once more, cuts them and lets its members go. Members of other commands wait at the last barrier.
#pragma once

#include <sys/types.h>

#include <memory>
#include <set>
#include <vector>

#include "hooks/imager/restart.h"
#include "hooks/imager/restore/members.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

// Whether the members' libraries wait for the command. Older ones do not: then files are cut before members run.
bool members_await_cut(const OpenedSet& set);

// In the restart command, in one thread.
class RollBack {
 public:
  RollBack(const OpenedSet& set, const RestartOptions& options);

  // There is something to do. False once it is done.
  bool pending() const { return pending_; }
  // Call now and then while pending, when all members are restored. Cuts if every member of the set is ready.
  // `starters` have started the members' first processes. A failure is told to the other commands of the restart.
  Status step(const std::vector<pid_t>& starters);

 private:
  Status look(const std::vector<pid_t>& starters);
  Status find_ready(bool* all);
  Status cut(const std::vector<pid_t>& starters);
  Status let_go();

  const OpenedSet& set_;
  const RestartOptions& options_;
  std::unique_ptr<Exchange> exchange_;
  std::set<std::uint32_t> members_;  // that come back in this restart, here or elsewhere
  std::set<std::uint32_t> awaited_;  // those that are not ready yet
  bool pending_;
};

}  // namespace shadowib
