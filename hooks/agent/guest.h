// Guests: processes that share a job's network and are in none of its checkpoints. docs/internals/guests.md
//
// A guest has the job's exchange, key and ids. It joins at any generation, and founds no job. It has no agent: one
// thread looks once a second whether the job still has a member. The process ends when none has lived for 5 s, when
// the job was restarted, or when a command has ended the job: by SIGTERM, and 5 s later by SIGKILL.
#pragma once

#include "shadowib/base/status.h"

namespace shadowib {

// Makes the calling process one. It is in no job. A child that was forked from a process in a job becomes a guest of
// that job, others find theirs by the environment, as members do. kNotFound: the job has no member within 5 s.
// kRefused: the job was restarted since the parent forked the process.
Status become_guest();

}  // namespace shadowib
