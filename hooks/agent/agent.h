// The agent: one thread in each member that takes part in checkpoints, and what it calls.
//
// hooks/ knows no verbs: the shim (shadowib/cr/) registers a Participant; programs register through
// shadowib/shadowib.h. All callbacks run in the agent thread.
//
// A checkpoint and a restart go phase by phase: job/phase.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hooks/federation/rule.h"
#include "hooks/imager/pinned_copies.h"
#include "hooks/job/current_job.h"
#include "hooks/job/job_info.h"
#include "shadowib/base/status.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

// The services that a settling participant may use. Lives for one call.
struct SettleContext {
  const JobInfo* job;
  Exchange* exchange;
  const char* prefix;            // keys of this checkpoint: "<epoch>/ckpt/<n>"
  const char* abort_key;         // exists as soon as anybody gave up
  const std::uint32_t* members;  // [0..member_count), the members of this checkpoint
  std::uint32_t member_count;
  std::string again_key;     // exists as soon as a member wants the job to run a moment
  std::int64_t deadline_ns;  // CLOCK_MONOTONIC, of the whole checkpoint
  // A CLC: members of other clusters go on, and connections to them stand still as they are.
  bool one_cluster;
  // Null unless a whole federation is saved. Messages that wait for a CLC do so no more. To be called now and then.
  void (*let_held)();
};

class Participant {
 public:
  virtual ~Participant() = default;
  // Threads are about to be stopped, here first or elsewhere in the job. resume() ends it.
  virtual void stopping() {}
  // Threads of all members are stopped. Reach the frontier: until the deadline, while requests go on being executed.
  // kTimeout: they do not. Let the job run a moment, and try again. kRefused: give up, with the object's name in the
  // text. Reports the time taken, for figures.
  virtual Status settle(const SettleContext& context) = 0;
  // Everybody settled. Park helper threads; afterwards nothing moves in this process.
  virtual Status quiesce() = 0;
  // The program's threads are about to go on: in the original process after a commit, an abort or a refusal, whatever
  // phase was reached; in a restarted one after restart().
  virtual void resume() = 0;
  // A new process from an image. Threads parked, owned descriptors and mappings gone and forgotten.
  virtual Status restart(const JobInfo& job, Exchange* exchange) = 0;
  // Threads are stopped, everybody is quiet. Appends "name=number" for each kind of object the program has, with
  // blanks between.
  virtual void count_objects(std::string* text) { (void)text; }
  // Appends ranges of memory, in no order and of any bytes, that a device may have pinned. Threads run.
  virtual void list_pinned(std::vector<PinnedRange>* ranges) { (void)ranges; }
  // Appends a JSON object that describes this member's objects for `shadowib status`. Threads run.
  virtual void describe(std::string* json) = 0;

  // Federations. A member that is in no cluster calls none of these.
  //
  // The member's cluster and what it has delivered, from now on. kRefused: the backend has no borders.
  virtual Status tell_cluster(const federation::RunningCluster& cluster, federation::Policy policy) {
    (void)cluster, (void)policy;
    return {};
  }
  // That incarnation of another cluster is over: what comes of it is not delivered any more, and what is held of it
  // is dropped, before this returns. Connections to it wait for the next incarnation, which tell_cluster() names.
  // Threads may run. kRefused: the backend has no borders, or there is no such cluster.
  virtual Status cluster_gone(unsigned cluster, federation::Incarnation incarnation) {
    (void)cluster, (void)incarnation;
    return {};
  }
  // Connections to other clusters stand still (true), or go on. Does not nest.
  virtual void freeze_border(bool frozen) { (void)frozen; }
  // They stand still behind a CLC of which nobody knows yet whether it counts, and threads are about to go on.
  // Requests that they post have the CLC's number if it does.
  virtual void note_undecided_clc() {}
  // Before restart(): whether this member's cluster goes back alone, from a set of its own. Connections to other
  // clusters then go on where the image has them, and the adapter is who it was. Else the whole job begins anew from
  // one set. `over`: of other clusters that go back by the same line, the incarnation that is over; else 0.
  virtual void go_back_alone(bool alone, const federation::PerCluster& over) { (void)alone, (void)over; }
  // The gate of a cluster that went back (docs/internals/federation.md). Times are nanoseconds of CLOCK_MONOTONIC;
  // the greatest number: none. `earliest`: of what other members still send again, 0: not all have said; `first`:
  // this member goes first at the same time. Before cluster_gone() for a cluster whose others have not said.
  virtual void set_gate(unsigned cluster, std::uint64_t earliest, bool first) {
    (void)cluster, (void)earliest, (void)first;
  }
  virtual std::uint64_t gate_earliest(unsigned cluster) {
    (void)cluster;
    return ~std::uint64_t{0};
  }
  // The answer to note_lost_cluster(): whether a process of the cluster has died, so that it may go back.
  virtual void judge_cluster(unsigned cluster, bool failed) { (void)cluster, (void)failed; }
  // No CLC of this member's cluster before that one is gone back to: other clusters forget what it has.
  virtual void clc_collected(federation::Sn sn) { (void)sn; }
  // Whether a cluster could be served that goes back: to a moment after this.
  virtual std::uint64_t logged_since(unsigned cluster) {
    (void)cluster;
    return 0;
  }
  // Whether the log of messages to other clusters is full, or nearly so.
  virtual bool log_fills() { return false; }
  // How much memory that log takes.
  virtual std::size_t log_bytes() { return 0; }
  // Tells what has been delivered of each cluster, and for which of its CLCs a log was trimmed (BorderFacts).
  // Messages posted so far are traced before it returns.
  virtual void border_facts(federation::PerCluster* delivered, federation::PerCluster* trimmed) {
    *delivered = *trimmed = federation::PerCluster(federation::kMaxClusters);
  }
  // The stamps of messages that wait for a CLC, one for each connection.
  virtual void held_at_border(std::vector<federation::Stamp>* held) { held->clear(); }
};

// For the participant: a message waits for a CLC of this member's cluster. Any thread, with locks held; returns at
// once.
void note_held_message();

// Likewise: the log of messages to other clusters gets full. CLCs of theirs would give it room.
void note_log_filling();

// Likewise: requests to that cluster have run out of retries, and wait until Participant::judge_cluster().
void note_lost_cluster(unsigned cluster);

// Likewise: Participant::gate_earliest() is `earliest` now. `awaits`: how far others have to have come, as
// Participant::set_gate() tells, before this member can go on. Other members hear of it at once. A participant that
// does not call this is looked at now and then.
void note_gate_moved(unsigned cluster, std::uint64_t earliest, std::uint64_t awaits);

// A message between clusters, of a member whose cluster is traced (SHADOWIB_TRACE).
struct TracedMessage {
  enum class Kind : std::uint8_t { kPost, kHold, kDeliver };
  Kind kind;
  federation::Sn sn;  // of this member's cluster; of a post: when the message was posted
  federation::Incarnation incarnation;
  unsigned peer;                          // the other cluster
  std::uint64_t flow;                     // a queue pair and direction
  std::uint32_t number;                   // ascends in a flow
  std::span<const std::uint32_t> vector;  // what a post carries; empty unless the policy does
};
// For the participant: messages are to be traced. Does not change.
bool is_traced();
// Likewise: it happens now. Any thread, with locks held; writes to a file.
void trace_message(const TracedMessage& message);

// Likewise, before this process connects a queue pair or an address handle to a process of `cluster`: the job hears
// that both clusters are wired. Any thread of the program's, and the agent's. Fails if the exchange does: then
// nothing may be connected. Does nothing for the process's own cluster, and after the first time for each.
[[nodiscard]] Status note_wired(unsigned cluster);
// Likewise before it comes to a multicast group, or sends to one: nobody knows who else is there.
[[nodiscard]] Status note_wired_by_multicast();

// Registers the one participant (before join_job). Not owned.
void set_participant(Participant* participant);

// Tells the participant of the member's cluster, once. For a process that is a member before it has a participant.
// Does nothing in a member that is in no cluster. kRefused as tell_cluster().
Status introduce_cluster();

// Reads the job's secret to `key` from <directory>/jobs/<job>/key. That has 32 bytes and mode 0600, and is created by
// the first who needs it. No copy is left anywhere else: other memory may be saved in an image.
Status read_job_key(std::uint8_t key[32]);

// Program hooks (shadowib.h). `event`: 0 before checkpoint, 1 resume, 2 restart. Returns an id.
using HookFunction = void (*)(int event, void* arg);
int add_hook(HookFunction function, void* arg);
void remove_hook(int id);

// Asks for a checkpoint of the caller's own job: starts the command `shadowib checkpoint` beside the program and
// waits. Returns 0 on resume, 1 in the restarted process, or a Status through *status. May be called by any program
// thread.
int request_checkpoint(bool kill, int timeout_ms, Status* status, std::string* set_path);

}  // namespace shadowib
