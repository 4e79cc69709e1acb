// The phases of a checkpoint and of a restart: the one list of their numbers, names and words.
//
// A phase's number is also its fault point (SHADOWIB_FAULT=<number>:<action>, threads/fault.h). Numbers are a
// contract: members publish them, `status --json` and tests show them. New ones go between.
#pragma once

#include "hooks/threads/fault.h"
#include "shadowib/base/status.h"

namespace shadowib {

enum class Phase : int {
  kNone = 0,     // no checkpoint under way
  kHelper = 5,   // before any checkpoint: the shim's helper thread begins
  kJoined = 10,  // barrier: every member has seen the request
  kHooks = 20,  // the program's hooks run, then calls to a launcher end (launcher/gate.h); threads still run; barrier
  kStop = 30,   // all members stop_threads() together; barrier
  kStopping = 35,  // this member's threads are about to be stopped
  kSettle = 40,    // Participant::settle until the frontier; barriers, one a try
  kQuiesce = 50,   // Participant::quiesce: helper threads are parked; barrier
  kInspect =
      60,  // descriptors, children, mappings are captured and judged (P4); barrier. Nothing is written before "go"
  kSnapshot =
      65,         // --save forked: all are about to have their memory copied; barriers "65.all" and, afterwards, "65"
  kClone = 66,    // this member's memory is about to be copied
  kSaver = 68,    // in the saver: it is about to write
  kWritten = 69,  // in the saver: it has written
  kSave = 70,     // the image is written to the staging directory and synced; the result is published
  kGive = 72,     // in a keeper: a piece, or a part of one, is about to be given
  kTake = 74,     // in whoever takes or makes a piece: it is written, and about to get its name
  kCommit = 80,   // the command writes the manifest, syncs, renames, publishes the outcome
  kOutcome = 90,  // resume: Participant::resume, release_threads(); or kill; or abort: as resume
  kRestored = 110,   // memory, threads, descriptors are back; all threads still parked
  kRebuild = 120,    // Participant::restart begins
  kLoaded = 121,     // the backend is about to be loaded
  kObjects = 122,    // objects are about to be made
  kPublish = 123,    // what peers need is about to be published; barrier
  kConnect = 124,    // queue pairs are about to be connected; barrier
  kRefill = 125,     // what has not run is about to be posted again
  kRestarted = 130,  // the launcher's stand-in is told; the program's restart hooks run
  kGo = 140,         // barrier; then release_threads()
  kRuns = 145,       // all may go, and this member is about to say that it does
  // In the checkpoint command.
  kRequested = 200,  // the request is published
  kMatched = 210,    // the tables match; "go" follows
  kCollected = 220,  // all images are there; copies are made, or the set is about to be committed
  kCopied = 225,     // all copies are there and checked; the set is about to be committed
  kRenamed = 228,    // the set of a cluster is there; it counts once that is claimed
  kCommitted = 230,  // the set is committed; the outcome follows
  kEndNoted = 232,   // --kill: the history says that the job ends; members are about to be told
  // In the restart command, when clusters of a federation go back in their epoch (command/recovery.h).
  kRecoveryClaimed = 240,  // its number is claimed; members are about to be told
  kRecoveryEnded = 250,    // who goes back has ended; the line is about to be published
  kRecoveryLine = 260,     // the line is published; members are about to be started
  kRecoveryRuns = 330,     // all of them run; the line is about to be marked as reached
  // In the restart and rebuild commands.
  kSurveyed = 290,  // hosts with what is left of lost images are known; images are about to be made from it
  // In the flush command.
  kFlush = 400,    // a set's objects are about to be sent
  kFlushed = 410,  // all of them are there; the set is about to be listed
  // In the restart command.
  kPlace = 300,     // namespaces are made
  kPlan = 310,      // descriptors and shared memory are planned
  kProcesses = 320  // all processes are restored
};

struct PhaseText {
  Phase phase;
  const char* name;   // one word, for logs and `status`
  const char* doing;  // for progress: "settling the network"
  bool barrier;       // all members of a checkpoint meet at its end, at a barrier named by the number
};

// A member passes these in order.
inline constexpr PhaseText kCheckpointPhases[] = {
    {Phase::kNone, "wait", "waiting for the members", false},
    {Phase::kJoined, "join", "running the program's hooks", true},
    {Phase::kHooks, "hooks", "running the program's hooks", true},
    {Phase::kStop, "stop", "stopping threads", true},
    {Phase::kSettle, "settle", "settling the network", true},
    {Phase::kQuiesce, "quiesce", "checking what must be saved", true},
    {Phase::kInspect, "inspect", "checking what must be saved", true},
    {Phase::kSnapshot, "snapshot", "saving memory", true},
    {Phase::kSave, "save", "saving memory", false},
    {Phase::kCommit, "commit", "committing", false},
    {Phase::kOutcome, "outcome", "committing", false},
};

constexpr int number_of(Phase phase) { return static_cast<int>(phase); }

// The entry of the latest phase that is not behind `number`; numbers come from other processes, which may be newer.
constexpr const PhaseText& phase_text(int number) {
  const PhaseText* found = kCheckpointPhases;
  for (const PhaseText& entry : kCheckpointPhases)
    if (number_of(entry.phase) <= number) found = &entry;
  return *found;
}
constexpr const PhaseText& phase_text(Phase phase) { return phase_text(number_of(phase)); }

inline Status fault_point(Phase phase) { return fault_point(number_of(phase)); }

}  // namespace shadowib
