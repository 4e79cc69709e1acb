/* Programs, and the shim under their calls: shadowib/datapath. */

/* accept_completions, poll.cc: the backend's next goes into the log. `kept`: it is the program's business. Its slot says that
   it is done, so an earlier one may come after a later one. */
inline take(m) {
  cq[m]?what, place, number;
  accept(m)
}

inline accept(m) {
  flow = what / 2;
  if
  :: what & 1 ->
     HOLDS(number == taken[QUEUE(flow)], "violated: receives complete in the order of posting\n");
     taken[QUEUE(flow)]++;
     log[flow].consumed++;
     kept = 1
  :: else ->
     log[flow].retired = (place + 1 > log[flow].retired -> place + 1 : log[flow].retired);
     kept = IS_SIGNALED(REQ(flow, place));
     retire(flow)
  fi
}

/* retire_executed, post.cc */
inline retire(q) {
#if DEPTH < REQUESTS
  do
  :: log[q].tail < EXECUTED(q) && (log[q].tail < log[q].retired || !IS_SIGNALED(REQ(q, log[q].tail))) -> log[q].tail++
  :: else -> break
  od
#else
  skip
#endif
}

/* drain_completions, poll.cc */
inline drain(m) {
  do
  :: len(cq[m]) > 0 ->
     take(m);
     if
     :: kept -> refill[m]!what, place
     :: else
     fi
  :: else -> break
  od;
  forget()
}

/* The program sees a completion: one that is due, and the next of its queue. */
inline tell(m) {
  flow = what / 2;
  if
  :: what & 1 ->
     do
     :: log[flow].arrived < place && !CONSUMES(REQ(flow, log[flow].arrived)) -> log[flow].arrived++
     :: else -> break
     od;
     printf("member %d: the program sees that message %d of flow %d has come\n", m, place, flow);
     HOLDS(log[flow].arrived == place, "violated: messages are seen once, in order\n");
     log[flow].arrived++;
     seen[QUEUE(flow)]++
  :: else ->
     do
     :: log[flow].told < place && !IS_SIGNALED(REQ(flow, log[flow].told)) -> log[flow].told++
     :: else -> break
     od;
     printf("member %d: the program sees the completion of request %d of flow %d\n", m, place, flow);
     HOLDS(log[flow].told == place, "violated: completions are seen once, in order\n");
     HOLDS(result[flow * REQUESTS + place] == found[flow * REQUESTS + place],
           "violated: a fetch-and-add that completes has returned what it found\n");
     log[flow].told++
  fi;
  forget()
}

inline poll_backend(m) {
  take(m);
  if
  :: kept -> tell(m)
  :: else -> forget()
  fi
}

inline forget() { what = 0; place = 0; number = 0; flow = 0; kept = 0 }

#define ROOM(q) (log[q].head - log[q].tail < DEPTH)

#ifdef SPARES
/* force_next: any, but for the first of a queue pair. */
#define MAY_SPARE(q, what) (device && !IS_SIGNALED(what) && log[q].head > log[q].base)
#define ONE_SIDED_TAIL(q) \
  (log[q].head > log[q].base && IS_SPARED(q, log[q].head - 1) && !CONSUMES(REQ(q, log[q].head - 1)))
#endif

/* post_send, post.cc */
proctype poster(byte q) {
  byte what, place, number, flow;
  bit kept;
end:
  do
  :: atomic {
       runs[SENDER(q)] && log[q].head < REQUESTS && ROOM(q) ->
       if
#if OPCODES & 1
       :: what = RDMA_WRITE * 2
#endif
#if OPCODES & 2
       :: what = FETCH_AND_ADD * 2
#endif
#if OPCODES & 4
       :: what = SEND * 2
#endif
#if OPCODES & 8
       :: what = WRITE_WITH_IMM * 2
#endif
       fi;
       if
#if SIGNALS & 1
       :: what = what + 1
#endif
#if SIGNALS & 2
       :: skip
#endif
       fi;
#ifdef SPARES
       if
       :: MAY_SPARE(q, what) -> number = 1
       :: skip
       fi;
#endif
       d_step {
#ifdef SPARES
#ifndef NO_FENCE_BEFORE_MESSAGE
         if /* close_before_message */
         :: CONSUMES(what) && ONE_SIDED_TAIL(q) -> log[q].behind = log[q].head
         :: else
         fi;
#endif
         IS_SPARED(q, log[q].head) = number;
#endif
         REQ(q, log[q].head) = what;
         log[q].head++;
         printf("member %d: the program posts request %d of flow %d: %e, signaled: %d\n", SENDER(q), log[q].head - 1, q,
                what / 2, IS_SIGNALED(what));
         forget()
       }
     }
#if DEPTH < REQUESTS
  :: d_step { /* next_slot: the queue is full, and of requests that only we want completions of */
       runs[SENDER(q)] && log[q].head < REQUESTS && !ROOM(q) && device && !IS_SIGNALED(REQ(q, log[q].tail)) &&
       nempty(cq[SENDER(q)]) ->
       printf("member %d: a post drains the completion queue to make room\n", SENDER(q));
       drain(SENDER(q))
     }
#endif
  od
}

/* poll_beside_drain, poll.cc: a drain came between the looks of a poll, which has one in its hands. `!!` puts it in its place
   among those of its queue; a member that posts and drains has completions of one queue alone. */
inline put_in_order(m) {
  if
  :: kept -> refill[m]!!what, place
  :: else
  fi;
  forget();
  if
  :: len(refill[m]) > 0 -> refill[m]?what, place; tell(m)
  :: else
  fi
}

/* poll_cq, poll.cc: what was drained comes first. A poll takes no lock, and looks again when it has one in its hands. */
proctype poller(byte m) {
  byte what, place, number, flow;
  bit kept, hand;
end:
  do
#ifdef NEW_BEFORE_DRAINED
  :: d_step {
       runs[m] && nempty(refill[m]) && empty(cq[m]) ->
       refill[m]?what, place;
       tell(m)
     }
  :: d_step { runs[m] && nempty(cq[m]) -> poll_backend(m) }
#else
  :: d_step {
       runs[m] && nempty(refill[m]) ->
       refill[m]?what, place;
       tell(m)
     }
#if DEPTH < REQUESTS
  :: d_step {
       runs[m] && empty(refill[m]) && nempty(cq[m]) ->
       printf("member %d: a poll finds nothing drained\n", m);
       inside[m] = 1
     }
     /* Another thread may drain here, */
     d_step {
       if
       :: len(cq[m]) > 0 -> cq[m]?what, place, number; hand = 1
       :: else
       fi
     }
     /* and here. */
     d_step {
       inside[m] = 0;
       if
       :: hand ->
          hand = 0;
          accept(m);
#ifdef NO_SECOND_LOOK
          if
          :: kept -> tell(m)
          :: else -> forget()
          fi
#else
          if
          :: len(refill[m]) > 0 -> put_in_order(m)
          :: kept && len(refill[m]) == 0 -> tell(m)
          :: else -> forget()
          fi
#endif
       :: else
       fi
     }
#else
  :: d_step { runs[m] && empty(refill[m]) && nempty(cq[m]) -> poll_backend(m) }
#endif
#endif
  od
}

/* Posts receives when it likes: holding them back is its flow control. */
proctype receiver(byte r) {
end:
  do
  :: d_step {
       runs[HOST(r)] && posted[r] - seen[r] < RECEIVES && posted[r] < MESSAGES / QUEUES ->
       posted[r]++;
       printf("member %d: the program posts receive %d\n", HOST(r), posted[r] - 1)
     }
  od
}

#ifdef HALF_MADE
proctype connector(byte q) {
end:
  d_step {
    runs[RECEIVER(q)] && !ready[q] ->
    ready[q] = 1;
    printf("member %d: its end of flow %d becomes ready\n", RECEIVER(q), q)
  }
}
#endif

