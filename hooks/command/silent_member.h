// A member of this host that does not answer a checkpoint request: what can be seen from outside.
#pragma once

#include "hooks/job/members.h"

namespace shadowib {

// kRefused if the process has no descriptor left below its hard RLIMIT_NOFILE, so that its agent cannot answer. Ok if
// it has, and may only be late, or if it cannot be looked at: on another host, in another pid namespace, of another
// user.
Status judge_silence(const MemberStatus& member);

}  // namespace shadowib
