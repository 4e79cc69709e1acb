// A rank of a launcher's is a member of the job from its first word to the launcher to its last.
#pragma once

namespace shadowib {

// The launcher has answered for the first time; launcher_rank() says who this is. Joins the job, if there is one. Not
// inside (hooks/threads/stop.h).
void join_as_rank();
// It takes leave of the launcher, and nobody waits for it any longer. Not inside.
void leave_as_rank();

}  // namespace shadowib
