// How a checkpoint ends for a member: what the command decides, and who is told. Internal to hooks/.
#pragma once

#include <string>

#include "hooks/agent/round_messages.h"

namespace shadowib {

class RoundOutcome {
 public:
  RoundOutcome(const RoundRequest& request, RoundMessages& messages) : request_(request), messages_(messages) {}

  // Waits for the command's word. kAborted: the checkpoint is not taken.
  Status wait();
  // With its image saved a member has no say any more: the command may commit, and kill, whatever becomes of the
  // member. So a member that gives up then waits for the decision as long as somebody can make it. If nobody is to be
  // killed, the wait is no longer than a stop may be: the program may go on whatever the decision is.
  //
  // An exchange that does not answer ends no wait. Others may still write their images, and this member must not
  // reach into them. It stands, claims the abort as soon as it can, and says so in the log. It goes on
  //   - by an answer of the exchange;
  //   - without `kill`: once the command has ended, since only the command commits; or by the end of a stop, when the
  //     command is too late to commit unless all images were saved before;
  //   - with `kill`, once the command has ended: if the set is not there.
  // With `kill` it dies if the set is there and the exchange has not answered by the end of a stop. That loses
  // nothing: the set has all that this member did, and who asked wanted its end. To go on could give the job two
  // lives.
  void await_decision();

  // A CLC, once this member's image is saved: unless the command has told of its commit, the exchange says whether it
  // counts, and who finds no decision there claims it as void. False: the exchange does not answer.
  bool decide_clc();

  bool committed() const { return committed_; }
  const federation::ClcRecord& clc() const { return clc_; }  // of a CLC that is committed
  bool kill_ourselves() const { return kill_ourselves_; }
  void die();

  // Tells the command, which may wait for it, and the log: as a warning if `warns`. `status` is this member's own end
  // of the round. The program runs on already.
  void tell(const Status& status, bool warns);

  // The member's image, if it lies near: one that no set can have.
  void remove_near();

 private:
  enum class SetState { kAbsent, kThere, kUnknown };
  SetState look_for_set(std::string* path) const;
  bool may_end_by_set();
  bool is_late() const;  // a stop would have ended by itself
  void tell_of_the_end();
  Status obey(const std::string& text);
  void remove_leavings();

  const RoundRequest& request_;
  RoundMessages& messages_;
  bool committed_ = false, kill_ourselves_ = false;
  std::string set_path_;  // once committed
  federation::ClcRecord clc_;
};

}  // namespace shadowib
