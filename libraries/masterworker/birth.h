// A worker is born as a fork of the master at a safe point. It takes nothing of the master's outer world along.
//
// The new process goes on where the master is, so it has the shared data of this moment without a replay. It is no
// child of the master and has its own session. It keeps descriptors 0 to 2, and files open for reading with offsets
// of its own. All others become /dev/null: a worker must not write the master's files (M15). Shared mappings become
// private (M10). SIGTERM is blocked in it, until it can leave in an orderly way.
#pragma once

#include <sys/types.h>

namespace shadowib::masterworker {

enum class Born { kMaster, kWorker, kFailed };

// Forks twice. kMaster: in the calling process, with the new one's number in *worker. kWorker: in the new one, cut
// off. kFailed: no process could be made (errno). Call outside of callbacks only, in the master's one thread.
Born fork_worker(pid_t* worker);

// Whether the process has ended. One that nobody has waited for yet has.
bool is_gone(pid_t process);

// For tests: the two steps that fork_worker() takes in the new process.
void separate_descriptors();
void separate_mappings();

}  // namespace shadowib::masterworker
