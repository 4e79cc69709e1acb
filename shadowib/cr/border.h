// The border's part of a checkpoint of one cluster, so that the cluster can go back alone. It says how far each
// connection to another cluster has come, and by which addresses and numbers peers know this process's adapter.
//
// The agent's thread, while the program's threads are stopped. A process that is in no cluster keeps nothing.
#pragma once

#include "hooks/federation/rule.h"
#include "shadowib/base/status.h"
#include "shadowib/objects/registry.h"

namespace shadowib {

// With note_frontier(): the border is frozen, nothing moves. A backend that cannot tell keeps nothing, and a restart
// that needs it says so.
void note_border();

// The restart that follows brings this process's cluster back alone: from a set of its own, beside others that go on
// or go back to theirs: over[i] is the incarnation of cluster i that is over, else 0. Or the whole job from one
// moment: then connections begin anew (the default).
void set_goes_back(const federation::PerCluster& over);
void set_goes_not_back();
bool goes_back();

// --- For rebuild.cc, in this order. They do nothing unless goes_back(). ---
// The backend has been loaded, and no device listed. Freezes the border. kRefused: the image has no such state, or
// the backend cannot take it.
Status restore_adapter();
// The real object that comes next has the number that this one had. kRefused: another one has it.
Status want_number_of(const ShadowMr& mr);
Status want_number_of(const ShadowMw& mw);
Status want_number_of(const ShadowSrq& srq);
Status want_number_of(const ShadowQp& qp);
// The real queue pair is in INIT.
Status restore_border_of(ShadowQp& qp);
// All is posted: connections to other clusters go on.
void open_restored_border();

// The whole job begins anew: logs are of connections that are gone.
void forget_border_logs();

}  // namespace shadowib
