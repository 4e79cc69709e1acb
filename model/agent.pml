/* What the agent of a member does in each stage: Settler::run (cr/settle.cc), note_frontier (cr/frontier.cc), cr/rebuild.cc. */

#define PUBLISH_FLOW(q) \
  if \
  :: RECEIVER(q) == m -> \
     published_consumed[q] = log[q].consumed; \
     published_left[QUEUE(q)] = LEFT(QUEUE(q)) \
  :: else \
  fi

#ifdef FRONTIER_OF_POLLED
#define NOTED(q) log[q].told
#else
#define NOTED(q) EXECUTED(q)
#endif
#define NOTE_FRONTIER(q) \
  if \
  :: SENDER(q) == m -> log[q].frontier = NOTED(q) \
  :: else \
  fi

#ifdef SPARES
/* post_fence; complete: what is before it has run, and its completion was taken; note_consumed */
#ifdef NO_PROOF
#define FENCE_DUE(q) false
#else
#define FENCE_DUE(q) (UNPROVEN(q) && log[q].closed == 0)
#endif
#define FENCE_DONE(q, fence) (fence > 0 && BY_BACKEND(q) >= fence)
#define COUNTED(q) \
  (UNPROVEN(q) && CONSUMES(REQ(q, EXECUTED(q))) && published[RECEIVER(q)] && published_consumed[q] > BEFORE(q))
#define TO_PROVE(q) \
  (SENDER(q) == m && \
   (FENCE_DUE(q) || FENCE_DONE(q, log[q].closed) || FENCE_DONE(q, log[q].behind) || COUNTED(q)))
#define NOTE_FENCE(q, fence) \
  if \
  :: FENCE_DONE(q, fence) -> \
     log[q].proven = (fence > log[q].proven -> fence : log[q].proven); \
     fence = 0 \
  :: else \
  fi
#define PROVE_FLOW(q) \
  if \
  :: SENDER(q) == m -> \
     NOTE_FENCE(q, log[q].closed); \
     NOTE_FENCE(q, log[q].behind); \
     if \
     :: COUNTED(q) -> log[q].proven = EXECUTED(q) + 1 \
     :: else \
     fi; \
     if \
     :: FENCE_DUE(q) -> log[q].closed = log[q].head \
     :: else \
     fi; \
     retire(q) \
  :: else \
  fi
#define FORGET_PROOF(q) \
  log[q].proven = 0; \
  log[q].closed = 0; \
  log[q].behind = 0; \
  place = log[q].frontier; \
  do \
  :: place < REQUESTS -> IS_SPARED(q, place) = 0; place++ \
  :: else -> break \
  od; \
  place = 0;
#else
#define FORGET_PROOF(q)
#endif

#define REBUILD_FLOW(q) \
  if \
  :: SENDER(q) == m -> \
     FORGET_PROOF(q) \
     log[q].retired = log[q].frontier; \
     log[q].tail = log[q].frontier; \
     log[q].base = log[q].frontier \
  :: else \
  fi; \
  if \
  :: RECEIVER(q) == m -> \
     used[QUEUE(q)] = taken[QUEUE(q)]; /* what was not used is posted again */ \
     FORGET_COUNTS(q) \
  :: else \
  fi
#ifdef FORGETS_COUNTS
#define FORGET_COUNTS(q) log[q].consumed = 0
#else
#define FORGET_COUNTS(q) skip
#endif

#define REFILL_FLOW(q) \
  if \
  :: SENDER(q) == m -> \
     wire[q].up = 1; \
     printf("member %d: posts flow %d again, from request %d of %d on\n", m, q, log[q].frontier, log[q].head) \
  :: else \
  fi

#ifdef SILENT_WHEN_SETTLED
#define LISTENS (!done[m])
#else
#define LISTENS true
#endif

proctype agent(byte m) {
  byte what, place, number, flow;
  bit kept;
end:
  do
  :: d_step {
       stage == STOPPING && runs[m] && !inside[m] ->
       runs[m] = 0;
       printf("member %d: stops\n", m)
     }

  /* Settler::run */
  :: d_step {
       stage == SETTLING && nempty(cq[m]) && LISTENS ->
       printf("member %d: drains\n", m);
       drain(m)
     }
  :: d_step {
       stage == SETTLING && TO_PUBLISH ->
       EACH_FLOW(PUBLISH_FLOW);
       published[m] = 1;
       printf("member %d: publishes its counts\n", m)
     }
  :: d_step {
       stage == SETTLING && !done[m] && !TO_PUBLISH && !ANY_FLOW(MOVING) ->
       done[m] = 1;
       printf("member %d: has settled\n", m)
     }
#ifdef SPARES
  :: d_step {
       stage == SETTLING && !done[m] && ANY_FLOW(TO_PROVE) ->
       EACH_FLOW(PROVE_FLOW)
     }
#endif
#ifdef DRAINS_EMPTY
  :: d_step {
       stage == SETTLING && m == HOST(0) && wire[0].rnr && !AVAILABLE(QUEUE(0)) ->
       extra[QUEUE(0)]++;
       printf("member %d: the agent posts a receive of its own\n", m)
     }
#endif

  /* take_late_receives */
  :: d_step {
       stage == QUIET && !done[m] && nempty(cq[m]) && ANY_FLOW(LATE) ->
       printf("member %d: drains a late receive\n", m);
       drain(m)
     }
  /* note_frontier */
  :: d_step {
       stage == QUIET && !done[m] && !ANY_FLOW(LATE) ->
#ifndef NO_LAST_LOOK
       drain(m);
#endif
       EACH_FLOW(NOTE_FRONTIER);
       done[m] = 1
     }

  /* cr/rebuild.cc up to its barrier "connected", and refill_queue_pairs */
  :: d_step {
       stage == REBUILDING && !done[m] ->
       EACH_FLOW(REBUILD_FLOW);
       done[m] = 1
     }
  :: d_step {
       stage == REFILLING && !done[m] ->
       EACH_FLOW(REFILL_FLOW);
       done[m] = 1
     }

  :: d_step {
       stage == RESUMING && !runs[m] ->
       runs[m] = 1;
       printf("member %d: goes on\n", m)
     }
  od
}

