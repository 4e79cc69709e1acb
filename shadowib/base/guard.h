// The steps that stand between a checkpoint and the hazards H1 to H29 (docs/internals/hazards.md), each by a name, so
// that a test can leave one out and see the harm that it prevents.
//
// Only in the library that the tests of hazards load (SHADOWIB_GUARDS): it leaves out what SHADOWIB_GUARD_OFF names,
// "h1" or "h7.order,h7.purge", and keeps to that over restarts. In the product there is no such variable and
// guarded() is a constant.
#pragma once

#include <cstdint>

namespace shadowib {

enum class Guard : std::uint8_t {
  kAwaitWrites,        // h1: settling waits for RDMA writes that may have run
  kAwaitAtomics,       // h2: and for atomics
  kCountConsumed,      // h3: messages that the peer has consumed are not taken for held back
  kAwaitLate,          // h3.late: what has been acknowledged is awaited at its receiver
  kForceSignals,       // h4: where only completions tell, requests have one
  kSwallowForced,      // h4.swallow: and the program does not see those it has not asked for
  kProveTails,         // h4.fence: messages that have none are not taken for held back before a fence has told
  kBlockedSettles,     // h5.blocked: who waits for a receive has settled, and so has all behind it
  kPauseRetries,       // h5.retries: refusals use up no retries while threads are stopped
  kArmLimitsLast,      // h6.limit: a shared queue's limit is armed when its receives are back
  kTakePurged,         // h6.purged: what goes with a queue pair's completions is not posted again
  kServeDrainedFirst,  // h7.order: completions that a checkpoint has taken come before later ones
  kPurgeDrained,       // h7.purge: and go with their queue pair
  kKeepEvents,         // h8.fired: events that nobody has read are there after a restart
  kRearm,              // h8.armed: a completion queue is armed again
  kReattach,           // h8.descriptor: the program's descriptor becomes ready by the new channel
  kHideForcedEvents,   // h8.forced: none for completions that are ours alone
  kAwaitReads,         // h9.read: settling waits for reads
  kCopyInline,         // h9.inline: inline data is kept from the post on
  kHoldAgain,          // h10.held: a held send queue is held before its requests are posted again
  kPeerInInit,         // h10.init: a peer that is not ready yet is no dead one
  kFailAgain,          // h10.error: who was in error is again
  kReserveNumbers,     // h11.numbers: new ids are none that anybody has been told
  kAskForLateKeys,     // h11.lookup: an unknown key is asked for
  kAwaitDatagrams,     // h12.once: settling waits for unreliable requests
  kTurnSources,        // h12.source: a sender has the number it had
  kCountFromRestart,   // h13: what has run is counted on from the restart
  kParkOutside,        // h14.inside: nobody is stopped inside the shim or a backend
  kRehearseReload,     // h14.loader: nor in the loader or malloc
  kBindAgain,          // h15.bound: windows are bound again
  kForgetInvalidated,  // h15.invalidated: but not those that a peer has invalidated
  kFlushPlacement,     // h16: what has completed elsewhere lies in memory before the image is taken
  kCountSharedXrc,     // h17: the receives that an XRC request may take are those of the queue it names
  kListenAgain,        // h18.listen: listeners are found after a restart
  kAskAgain,           // h18.ask: what a connection manager has not been answered it says again
  kForeignInChild,     // h19: a child has none of its parent's objects
  kBuryDoomed,         // h20.gone: requests to a peer that is gone end as an adapter would have them end
  kBeginAnew,          // h20.pause: retries that run out while threads are stopped are nobody's error
  kGateReplays,        // h29: what a cluster that went back gets again comes in the order of completions
};

#if defined(SHADOWIB_GUARDS)
bool guarded(Guard guard);
#else
constexpr bool guarded(Guard) { return true; }
#endif

}  // namespace shadowib
