// Where the parts of a restart meet: the job's exchange, below restart_prefix() (job/protocol.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "hooks/imager/descriptors.h"
#include "hooks/job/job_info.h"
#include "hooks/job/protocol.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

// Opens the exchange when it is first needed: a restart in one part does without.
class ExchangeMeeting final : public Meeting {
 public:
  explicit ExchangeMeeting(const JobInfo& job) : job_(job) {}
  Status publish(const std::string& name, const std::string& value) override;
  Status await(const std::string& name, std::string* value) override;
  // Tells the other parts, if there can be any, that this one has failed.
  void abort(const Status& why);
  // Tells the other members that this one is gone, if the restart is not over for it: they would wait for it. Or that
  // it has ended badly, which ends the ranks of a launcher's job.
  void member_ended(std::uint32_t member, int wait_status);
  // Likewise for a member whose parent has its status, and is to judge it.
  void member_left(std::uint32_t member);

 private:
  Status open();
  bool end_if_not_done(std::uint32_t member, const std::string& how);
  std::string key(const std::string& rest) const { return restart_prefix(job_.epoch, job_.recovery) + rest; }

  const JobInfo& job_;
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace shadowib
