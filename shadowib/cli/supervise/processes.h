// Processes of this host: the one that a supervisor has started, and all below it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib::cli {

// Sends SIGKILL to each descendant of `root`. Returns those that were there: call it until there are none, for they
// may have made others. Commands of shadowib are spared, with what is below them: keepers and flushes outlive a job.
std::vector<pid_t> kill_descendants(pid_t root);

// A shell that becomes this process may have children. They, and what is below them, are no part of the job, and
// kill_descendants() spares them. Call it before anything is started.
void spare_present_children();
void spare(pid_t pid);  // likewise a child of this process
// This one is of the job, with what is below it, though a process that is spared may have started it.
void claim(pid_t pid);

// "process 42 (lmp)", and how it stands: "; it is in state D: ...".
std::string describe_process(pid_t pid);
std::string describe_state(char state);

enum class TakenOutput { kAll, kWithoutErrors };
enum class ProcessGroup { kShared, kOwn };  // kOwn: the terminal's signals are not for it
// A command line as a child of this process. `output`: 1 and, with kAll, 2 of the child; -1: as here. It has signals
// as this process has inherited them. kIo.
Status start_process(const std::vector<std::string>& words, int output, pid_t* pid,
                     TakenOutput taken = TakenOutput::kAll, ProcessGroup group = ProcessGroup::kShared);

// The file of this command, as it was called at the first call: an upgrade may put another one there.
const std::string& own_program();

}  // namespace shadowib::cli
