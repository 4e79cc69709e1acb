// Events between backend and program: completion events and async events, and their acknowledgement.
#pragma once

#include <infiniband/verbs.h>

#include "shadowib/objects/completion.h"

namespace shadowib {

// The next completion event of a channel: what a checkpoint had drained first, then the backend's. Null if none.
ShadowCq* next_event(ShadowChannel& channel);
// Moves all events of the backend's channel to channel.pending and signals the program's descriptor (H8).
void drain_events(ShadowChannel& channel);
// The program is about to ask for an event, and one may lie in the backend's channel that is the answer to a request
// of ours (Arming::note_surplus): taken for the answer to the program's, it would be told early, and the program's
// own could be taken for ours.
void withdraw_surplus(ShadowCq& cq);
// An event was taken that was not told: tell_of_drained will tell of what it was for. An adapter whose completions
// are swallowed tells again itself, or does so of new ones only.
void drain_untold(ShadowCq& cq);
// The program has asked for an event. Adapters tell at once of completions that lie there unpolled (mlx5 does, and
// Open MPI's udcm relies on it): so do we of those that we have taken out of the backend.
void tell_of_drained(ShadowCq& cq);
// A completion queue is going away: its unread events too.
void withdraw_events(ShadowChannel& channel, ShadowCq& cq);

// The next async event, its object the program's. False if none.
bool next_async_event(ShadowContext& context, ibv_async_event* event);
void acknowledge_async(const ibv_async_event& event);
// Moves the backend's async events to the context's pending list.
void drain_async_events(ShadowContext& context);
// Drops pending async events that name an object which is being destroyed.
void withdraw_async_events(ShadowContext& context, const void* object);
// Drops the last event of this kind about the object, if there is one unread: a step of ours caused it.
void withdraw_newest_event(ShadowContext& context, const void* object, ibv_event_type type);

}  // namespace shadowib
