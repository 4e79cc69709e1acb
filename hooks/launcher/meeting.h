// Ranks of two launcher's jobs meet: MPI_Comm_spawn, MPI_Comm_connect and MPI_Comm_accept. Open MPI has the launcher
// spawn, the two roots tell each other by PMIx_Publish and PMIx_Lookup who they are, and then all call PMIx_Connect.
// Between these calls no answer is due, but what is still to come only the launcher can do. So no checkpoint is taken
// from the first of them to the return of the last.
#pragma once

#include <pmix.h>

#include <cstddef>

#include "shadowib/base/status.h"

namespace shadowib {

// Any thread; by those who are in the launcher's gate (gate.h), or have a request listed (requests.h).

// This rank has been spawned by one that awaits it.
void begin_meeting_if_spawned();
// Whether `apps`, once they are spawned, await this rank. Programs that do not use Open MPI do not.
bool will_meet(const pmix_app_t apps[], std::size_t napps);
void begin_meeting();
// It has told the other side who it is, if that is what `info` says.
void begin_meeting_if_told(const pmix_info_t info[], std::size_t ninfo);
// The other side was looked for in vain, if that is what `data` asks for.
void end_meeting_if_sought(const pmix_pdata_t data[], std::size_t ndata);
// They are connected, or will never be.
void end_meeting();

}  // namespace shadowib
