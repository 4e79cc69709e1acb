// Requests whose answers come later, as far as the agent has to know of them (requests.h).
#pragma once

#include "shadowib/base/status.h"

namespace shadowib {

// The launcher is gone: what is listed is answered by us.
void wake_answering();
// kRefused names a listed request that could not be answered after a restart.
Status judge_requests();
void reset_requests_after_fork();

}  // namespace shadowib
