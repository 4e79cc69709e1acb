// Numbered fault points: every phase of checkpoint, commit, restart and rebuild passes one.
//
// SHADOWIB_FAULT=<point>:<action>[:<member>[:<passage>]]. The actions: crash (SIGKILL to itself), stop (SIGSTOP),
// term (SIGTERM), fault (SIGILL, by an instruction), slow (waits 2 s), stuck (waits until the program's threads go
// on), fail, emfile, enomem (the phase returns an error: EIO, or that), enospc (writes fail). With a passage it acts
// only when the process passes the point for that time, counted from 1. Read once, and in what a restart has restored
// from the restarting command's environment; a point costs one load when unset.
#pragma once

#include "shadowib/base/status.h"

namespace shadowib {

// Passes fault point `point` (job/phase.h lists them).
// Ok unless SHADOWIB_FAULT says fail.
Status fault_point(int point);

// True if writes of image data are to fail with ENOSPC.
bool fault_no_space();

// In a restored process: the restarting command's SHADOWIB_FAULT, or "", in place of what was read before.
void fault_begin_anew(const char* text);

// Which member this process is, for the ":member" part; set by the agent.
void fault_set_member(unsigned member);

}  // namespace shadowib
