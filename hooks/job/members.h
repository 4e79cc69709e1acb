// A job as a command sees it: its epoch, exchange and members. Internal to hooks/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hooks/command/coordinator.h"
#include "hooks/job/protocol.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

struct JobView {
  std::string directory, job, epoch;
  std::unique_ptr<Exchange> exchange;

  std::string alive(const std::string& who) const { return alive_path(directory, job, epoch, who); }
  std::string key(const std::string& rest) const { return epoch + "/" + rest; }
  Status fields(const std::string& key, Fields* fields, bool* found) const;  // kVersion names the key
};

// kNotFound: no such job in that directory.
Status open_job(const std::string& directory, const std::string& job, const std::string& exchange, JobView* view);

// All members of the epoch, dead ones included, by index.
Status list_members(const JobView& view, std::vector<MemberStatus>* members);

// Waits until nobody is joining and a restart has brought all its members back; kBusy after timeout_ms.
Status wait_for_joining(const JobView& view, int timeout_ms);

std::string describe(const MemberStatus& member);  // "member 1 (pid 123, pingpong on host)"

}  // namespace shadowib
