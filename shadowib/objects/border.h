// The border between this process's cluster and the others (docs/internals/federation.md), as the backend keeps it.
//
// The agent tells the state of the cluster; it is kept here, and told to each backend that is loaded, before a device
// is opened. A process that is in no cluster calls nothing of this, and its backend hears of no border.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shadowib/abi/backend.h"

namespace shadowib {

// Tells the backend `state`, and keeps a copy of it for the backends that are loaded later. Without a backend it is
// only kept. Any thread that a checkpoint cannot stop: the agent's, or one inside. 0 or an errno: EOPNOTSUPP if the
// backend has no borders, EINVAL if it refuses the state; that state is kept all the same.
int tell_cluster(const ClusterState& state);

// Whether this process is in a cluster, and a backend that knows of borders is loaded. Threads: as tell_cluster.
bool is_at_border();

// Freezes the border's connections (true), or lets them go on. On return of true no thread is within one of them.
// Does not nest; letting go what is not frozen does nothing. A backend that is loaded while the border is frozen
// begins frozen; one that a restart loads does not. Threads: as tell_cluster.
void freeze_border(bool frozen);

// The border stays frozen behind a CLC that may count or not. If it does, its number is told by tell_cluster before
// the border opens, and what is posted from now on has that number. Threads: as tell_cluster; the program's are
// stopped.
void note_undecided_clc();

// The messages that wait for a CLC of this cluster, one a connection. Fills stamps[0..capacity), returns how many
// there are. Threads: as tell_cluster.
std::size_t held_stamps(HeldStamp* stamps, std::size_t capacity);

// An incarnation of another cluster is over (BackendOps::cluster_gone); the kept state names the next one. Threads:
// as tell_cluster. 0 or an errno: EOPNOTSUPP, EINVAL.
int tell_cluster_gone(std::uint32_t cluster, std::uint32_t incarnation);

// The gate of a cluster that went back (BackendOps::set_gate), kept for the backend that is loaded later. 0 or an
// errno: EOPNOTSUPP, EINVAL. Threads: as tell_cluster.
int tell_gate(std::uint32_t cluster, const GateState& others);
// BackendOps::gate_earliest and logged_since; without a backend kGateNothing and 0.
std::uint64_t gate_earliest(std::uint32_t cluster);
std::uint64_t logged_since(std::uint32_t cluster);
// BackendOps::judge_cluster. Threads: as tell_cluster.
void judge_cluster(std::uint32_t cluster, bool failed);
// BackendOps::border_facts; all zero without a backend.
BorderFacts border_facts();
// BackendOps::clc_collected.
void tell_clc_collected(std::uint32_t sn);
// Call before the program destroys a queue pair, resets it, or puts it into the error state. Waits until clusters
// that went back have got again all that this process has to send them. That lies in queue pairs. Not inside: a
// checkpoint may stop the thread. A process that is in no cluster does not wait.
void await_sending_again();

// `handler` is called when a message waits for a CLC (HostServices::needs_clc). It may be called by any thread of the
// program, with locks of the backend held: it must return at once and call nothing of the backend. nullptr: none.
void set_needs_clc_handler(void (*handler)(std::uint32_t cluster, std::uint32_t sn));

// Likewise when the processes of a cluster may be lost (HostServices::cluster_lost).
void set_cluster_lost_handler(void (*handler)(std::uint32_t cluster));

// Likewise when the log of messages to other clusters is three quarters full, and again with each that is added.
void set_log_fills_handler(void (*handler)());

// Likewise when the gate of a cluster that went back has moved (HostServices::gate_moved).
void set_gate_moved_handler(void (*handler)(std::uint32_t cluster, std::uint64_t earliest, std::uint64_t awaits));

// --- For backend.cc ---
// HostServices::needs_clc.
void host_needs_clc(std::uint32_t cluster, std::uint32_t sn);
// HostServices::cluster_lost.
void host_cluster_lost(std::uint32_t cluster);
// HostServices::gate_moved.
void host_gate_moved(std::uint32_t cluster, std::uint64_t earliest, std::uint64_t awaits);
// The log is so full.
void host_log_fills();
// A backend has been loaded: tells it what has been told before. 0, or an errno as tell_cluster.
int tell_loaded_backend();
// The loaded backend is abandoned: nothing is told until another one is loaded. That one begins as not frozen, and is
// told of gates that are shut.
void forget_border_backend();
// After a restart: gates that the image knows of are of a former life.
void forget_told_gates();
// As forget_border_backend, in a forked child: the lock's holder is not there.
void forget_border_after_fork();

}  // namespace shadowib
