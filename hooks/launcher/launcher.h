// The launcher of a parallel job, shadowed. Requests of its processes are passed on and noted. After a restart
// without a launcher they are answered from the note, and by messages of the other processes in the exchange.
//
// Here is what the agent calls; all in the agent's thread. A process that has no launcher, or none that we know
// (PMIx, PMI-1), passes through everything with nothing done. docs/reference/launcher-calls.md lists the answers.
//
// A *rank* is the launcher's number of a process, in a *namespace*; a member's index in our job is another number.
//
//   membership.h  when a rank joins the job, and leaves
//   gate.h        calls that wait for the launcher come to their end before threads are stopped
//   rank.h        what is noted
//   requests.h    calls whose answer comes later, and the thread that brings it when the launcher does not
//   events.h      events that ranks tell each other when there is no launcher to carry them
//   board.h       what ranks tell each other after a restart
//   stored_value.h, pmix_*    PMIx
//   pmi_*                     PMI-1: pmi_calls.cc (how we come between), pmi_descriptor.h, pmi_request.h,
//   pmi_server.h
#pragma once

#include <cstdint>
#include <string>

#include "shadowib/base/status.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

// Before threads are stopped: no call waits for the launcher from here on. kRefused after timeout_ms names one that
// does; at once, if this rank is about to meet ranks of another of the launcher's jobs.
Status launcher_hold_calls(int timeout_ms);
// They go on. Idempotent.
void launcher_release_calls();

// Threads are stopped. In two steps, with a barrier of the members between. First this rank takes part in the
// checkpoint, with keys below `prefix`. Then kRefused if another rank of its namespace does not, or if something
// cannot be answered after a restart.
Status launcher_announce(Exchange* exchange, const std::string& prefix);
Status launcher_judge(Exchange* exchange, const std::string& epoch, const std::string& prefix);

// In a restarted process, threads still parked: from here on there is no launcher. Tells the others what they may ask
// of this rank, under the new epoch. `member`: this process's index in our job. `went_back`: in an epoch where this
// rank may have been without a launcher before. Removes what that life has told.
Status launcher_is_gone(Exchange* exchange, const std::string& epoch, std::uint32_t member, bool went_back = false);

// Without a launcher: if another rank has asked for the end of the job, or of this rank, or has died, ends this
// process, as a launcher would.
void end_with_the_job(Exchange* exchange, const std::string& epoch);

// Without a launcher: takes in events that other ranks have told, for the program.
void launcher_take_events(Exchange* exchange, const std::string& epoch);

// Appends ',"launcher":{...}' for `shadowib status`, or nothing.
void launcher_describe(std::string* json);

// In a forked child, which is no rank.
void launcher_reset_after_fork();

}  // namespace shadowib
