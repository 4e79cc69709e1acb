// Phases 30 and 40 of a checkpoint (agent.h): the program's threads stop, and all members settle. Internal to hooks/.
#pragma once

#include <cstdint>
#include <string>

#include "hooks/agent/round_messages.h"

namespace shadowib {

class RoundSettle {
 public:
  RoundSettle(const RoundRequest& request, RoundMessages& messages) : request_(request), messages_(messages) {}

  // Stops the threads where the loader and malloc are usable: a restart needs them before the threads go on (H14).
  Status stop();
  // After stop(). All members find out together whether all have settled; if one has not, all run a moment and stop
  // again. kRefused: one never does, named with what holds it up.
  Status settle();

  std::int64_t stopped_at_ns() const { return stopped_at_ns_; }  // CLOCK_MONOTONIC, of the latest stop()
  std::int64_t settle_ns() const { return settle_ns_; }          // from that to the frontier reached

 private:
  Status stop_all();
  Status await_holder();
  Status settle_once(int attempt);
  Status run_a_moment(int attempt);
  Status ask_for_another(int attempt, const Status& why);
  std::string again_key(int attempt) const;

  const RoundRequest& request_;
  RoundMessages& messages_;
  std::int64_t stopped_at_ns_ = 0, settle_ns_ = 0;
};

}  // namespace shadowib
