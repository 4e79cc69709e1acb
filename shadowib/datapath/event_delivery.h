// Events between backend and program: completion events and async events, and their acknowledgement.
#pragma once

#include <infiniband/verbs.h>

#include "shadowib/base/lock.h"
#include "shadowib/objects/completion.h"
#include "shadowib/objects/context.h"

namespace shadowib {

// The next completion event of a channel: what a checkpoint had drained first, then the backend's. Null if none. It
// counts as delivered: the queue stays until it is acknowledged.
ShadowCq* next_event(ShadowChannel& channel);
// Moves all events of the backend's channel to channel.pending and signals the program's descriptor (H8).
void drain_events(ShadowChannel& channel);
// The program is about to ask for an event, and the backend's channel may hold one that answers a request of ours
// (Arming::note_surplus). Taken for the answer to the program's request, it would be told early, and the program's
// own event could be taken for ours.
void withdraw_surplus(ShadowCq& cq);
// An event was taken that was not told: tell_of_drained will tell of what it was for. An adapter whose completions
// are swallowed tells again itself, or does so of new ones only.
void drain_untold(ShadowCq& cq);
// The program has asked for an event. Adapters tell at once of completions that lie there unpolled (mlx5 does, and
// Open MPI's udcm relies on it). So the shim does, too, for completions that it has taken out of the backend.
void tell_of_drained(ShadowCq& cq);
// Destroys the queue's real one, and drops the queue's events that no thread has got. As verbs have it: 0 or an
// error.
int destroy_real_cq(ShadowCq& cq);

// The next async event, its object the program's. False if none.
bool next_async_event(ShadowContext& context, ibv_async_event* event);
void acknowledge_async(const ibv_async_event& event);
// Moves the backend's async events to the context's pending list.
void drain_async_events(ShadowContext& context);
void drain_async_events_locked(ShadowContext& context) SHADOWIB_REQUIRES(context.async_events.lock);
// Destroys a real object, by the backend's function, while no thread is about to ask it whose it is: async events
// that name it are the program's by then.
template <typename Real>
int destroy_real(ShadowContext& context, int (*destroy)(Real*), Real* real) {
  SpinGuard guard(context.async_events.lock);
  drain_async_events_locked(context);
  return destroy(real);
}
// Drops pending async events that name an object which is being destroyed.
void withdraw_async_events(ShadowContext& context, const void* object);
// Drops the last event of this kind about the object, if there is one unread: a step of ours caused it.
void withdraw_newest_event(ShadowContext& context, const void* object, ibv_event_type type);

}  // namespace shadowib
