// Ranks of two launcher's jobs meet: MPI_Comm_spawn, MPI_Comm_connect and MPI_Comm_accept. Open MPI has the launcher
// spawn, and the two roots tell each other by PMIx_Publish and PMIx_Lookup who they are, under a port's name. Then
// all call PMIx_Connect, and the roots agree on numbers by that name, at last with "PORT:activate:...". Between these
// calls no answer is due, but what is still to come only the launcher can do. So no checkpoint is taken in a rank
// from the first of its calls to the return of the last.
#pragma once

#include <pmix.h>

#include <cstddef>
#include <string>

#include "shadowib/base/status.h"

namespace shadowib {

// Any thread; by those who are in the launcher's gate (gate.h), or have a request listed (requests.h). Not inside
// (hooks/threads/stop.h) unless said.

// This process has been spawned by a rank that awaits it. Counts once in the life of a process.
void begin_meeting_if_spawned();
// The port under which `apps`, once they are spawned, await this rank. nullptr: they do not, as programs that do not
// use Open MPI.
const char* port_of(const pmix_app_t apps[], std::size_t napps);
void begin_meeting(const char* port);
// This rank is a root, if that is what `info` tells the other side.
void note_published(const pmix_info_t info[], std::size_t ninfo);
void note_unpublished(char** keys);
// A root has what `data` asks for, or will not get it.
void note_lookup(const pmix_pdata_t data[], std::size_t ndata, pmix_status_t status);
void note_connected(pmix_status_t status);
void forget_meetings();
bool is_meeting();  // inside, too

}  // namespace shadowib
