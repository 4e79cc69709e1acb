/* The command and the barriers between stages, a kill, and what a checkpoint is to meet. */

inline lose_everything() {
  flow = 0;
  do
  :: flow < FLOWS ->
     do
     :: len(requests[flow]) > 0 -> requests[flow]?_
     :: len(answers[flow]) > 0 -> answers[flow]?_
     :: len(results[flow]) > 0 -> results[flow]?_, _
     :: else -> break
     od;
     wire[flow].next = 0;
     wire[flow].acked = 0;
     wire[flow].executed = 0;
     wire[flow].expected = 0;
     wire[flow].waiting = 0;
     wire[flow].rnr = 0;
     wire[flow].up = 0;
     flow++
  :: else -> break
  od;
  flow = 0;
  do
  :: flow < MEMBERS ->
     do
     :: len(cq[flow]) > 0 -> cq[flow]?_, _, _
#ifdef LATE_RECEIVES
     :: len(late[flow]) > 0 -> late[flow]?_, _, _
#endif
     :: else -> break
     od;
     flow++
  :: else -> break
  od;
  flow = 0
}

/* What nobody looks at any more shall make no states. */
#define CLEAR_FLOW(q) published_consumed[q] = 0; published_left[QUEUE(q)] = 0; log[q].frontier = 0

/* What a checkpoint may meet. model/check has the checker tell which of these lines it never came to. */
#define UNACKNOWLEDGED(q) (wire[q].expected > wire[q].acked)
#define UNDER_WAY(q) (len(requests[q]) > 0)
#define UNRETURNED(q) (len(results[q]) > 0)
#define REFUSED_ONE(q) (wire[q].waiting)
#define REFUSED_MORE(q) (wire[q].waiting && GIVEN(q) > wire[q].acked + 1)
#define TAIL_RAN(q) \
  (UNACKNOWLEDGED(q) && ran[q] == log[q].head && !IS_SIGNALED(REQ(q, log[q].head - 1)))
#ifdef SPARES
#define SPARED_TAIL(q) (device && log[q].head > log[q].base && IS_SPARED(q, log[q].head - 1))
#define SPARED_RAN(q) (SPARED_TAIL(q) && ran[q] == log[q].head && wire[q].executed == GIVEN(q))
#define SPARED_REFUSED(q) (SPARED_TAIL(q) && wire[q].waiting && GIVEN(q) > wire[q].acked + 1)
#define FENCE_LEFT(q) (log[q].closed > 0)
#endif
#define NOT_DONE(q) (log[q].frontier < log[q].head)
#define AGAIN(q) (NOT_DONE(q) && log[q].base > 0)
#define UNREADY(q) (!ready[q] && log[q].head > 0)
#define FOUND(condition, text) \
  if \
  :: condition -> printf(text) \
  :: else \
  fi

active proctype command() {
  byte flow;
  d_step {
    FILL(runs, 1);
    do
    :: flow < FLOWS ->
       wire[flow].up = 1;
#ifndef HALF_MADE
       ready[flow] = 1;
#endif
       flow++
    :: else -> break
    od;
    flow = 0
  }
end:
  do
  :: d_step {
       stage == RUNNING && checkpoints < CHECKPOINTS ->
       checkpoints++;
       stage = STOPPING;
       printf("checkpoint\n")
     }
  :: atomic {
       stage == STOPPING && NONE(runs) ->
       FOUND(ANY_FLOW(UNDER_WAY), "found: a request under way\n");
       FOUND(ANY_FLOW(UNACKNOWLEDGED), "found: an acknowledgement under way\n");
       FOUND(ANY_FLOW(TAIL_RAN), "found: an unsignaled tail that ran and is not acknowledged\n");
       FOUND(ANY_FLOW(UNRETURNED), "found: what a fetch-and-add returned under way\n");
       FOUND(ANY_FLOW(REFUSED_ONE), "found: a request refused for want of a receive\n");
       FOUND(ANY_FLOW(REFUSED_MORE), "found: requests behind a refused one\n");
       FOUND((len(cq[0]) > 0) || (len(cq[1]) > 0), "found: completions not polled\n");
       FOUND((len(refill[0]) > 0) || (len(refill[1]) > 0), "found: completions that an earlier checkpoint drained\n");
       FOUND(ANY_FLOW(UNREADY), "found: requests to a peer that is not ready\n");
#ifdef SPARES
       FOUND(ANY_FLOW(SPARED_RAN), "found: a tail without signals that ran\n");
       FOUND(ANY_FLOW(SPARED_REFUSED), "found: requests without signals behind a refused one\n");
       FOUND(ANY_FLOW(FENCE_LEFT), "found: a fence of an earlier checkpoint under way\n");
#endif
       d_step {
         FILL(done, 0);
         FILL(published, 0);
         stage = SETTLING
       }
     }
  :: d_step {
       stage == SETTLING && ALL(done) ->
       FILL(done, 0);
       stage = QUIET
     }
#ifdef GIVES_UP
  :: d_step {
       stage == SETTLING ->
       FILL(done, 0);
       stage = RESUMING
     }
#endif
  :: d_step {
       stage == QUIET && ALL(done) ->
       FILL(done, 0);
       stage = RESUMING;
       printf("resume\n")
     }
  :: atomic {
       stage == QUIET && ALL(done) ->
       FOUND(ANY_FLOW(NOT_DONE), "found: requests to be posted again\n");
#if FLOWS == 2
       FOUND(NOT_DONE(0) && NOT_DONE(1), "found: requests of both flows to be posted again\n");
#endif
       FOUND(ANY_FLOW(AGAIN), "found: requests to be posted again, after an earlier restart\n");
       d_step {
         FILL(done, 0);
         printf("kill and restart\n");
         lose_everything();
         stage = REBUILDING
       };
#ifdef CROSSES
       if
       :: skip
       :: device = 1 - device
       fi
#endif
     }
  :: d_step {
       stage == REBUILDING && ALL(done) ->
       FILL(done, 0);
       stage = REFILLING
     }
  :: d_step {
       stage == REFILLING && ALL(done) ->
       FILL(done, 0);
       stage = RESUMING
     }
  :: d_step {
       stage == RESUMING && ALL(runs) ->
       EACH_FLOW(CLEAR_FLOW);
       FILL(published, 0);
       stage = RUNNING
     }
  od
}

