// Guests: processes that share a job's network and are in none of its checkpoints. docs/internals/guests.md
//
// A guest has the job's exchange, key and ids. It joins at any generation, and founds no job. It has no agent: one
// thread looks once a second whether to end the process, by SIGTERM and 5 s later by SIGKILL. There are three
// reasons: no member has lived for 5 s, the job was restarted, or a command has ended the job.
#pragma once

#include "shadowib/base/status.h"

namespace shadowib {

// Makes the calling process a guest; it is in no job before. A child that a member or a guest has forked joins its
// parent's job. Any other process finds its job by the environment, as members do. Errors:
//   `kNotFound`: the job has no member within 5 s.
//   `kRefused`: the job was restarted since the parent forked the process.
//   `kBusy`: the job is still being restarted after ten minutes.
Status become_guest();

}  // namespace shadowib
