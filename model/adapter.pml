/* Adapters: ib2tcp/requester.cc and responder.cc, or a device. */

#ifdef DRAINS_EMPTY
byte extra[QUEUES]; /* receives posted by the agent */
#define AVAILABLE(r) (used[r] < posted[r] + extra[r])
#else
#define AVAILABLE(r) (used[r] < posted[r])
#endif
#ifdef PAPERS_RULE /* spares it what moves between the image of one member and that of another */
#define MOVES (stage != QUIET)
#else
#define MOVES true
#endif

#ifdef LATE_RECEIVES
chan late[MEMBERS] = [ENTRIES] of { byte, byte, byte };
#define COMPLETED(m) late[m]
#else
#define COMPLETED(m) cq[m]
#endif

inline execute(q) {
  printf("member %d: request %d of flow %d runs\n", RECEIVER(q), log[q].base + s, q);
  HOLDS(log[q].base + s == ran[q], "violated: requests run once, in order\n");
  HOLDS(stage != QUIET, "violated: what has settled stands\n");
  if
  :: CONSUMES(REQ(q, ran[q])) ->
     HOLDS(used[QUEUE(q)] < posted[QUEUE(q)], "violated: nothing lands that the program has posted no receive for\n");
     COMPLETED(RECEIVER(q))!2 * q + 1, ran[q], used[QUEUE(q)];
     used[QUEUE(q)]++
  :: IS_ATOMIC(REQ(q, ran[q])) ->
     counter[RECEIVER(q)]++;
     found[q * REQUESTS + ran[q]] = counter[RECEIVER(q)];
     results[q]!s, counter[RECEIVER(q)]
  :: else
  fi;
  ran[q]++;
  wire[q].expected++;
  wire[q].rnr = 0;
  answers[q]!s
}

/* Qp::complete_ready: a fetch-and-add has run when its result is in memory. */
inline complete_ready(q) {
  do
  :: wire[q].executed < wire[q].acked &&
     (!IS_ATOMIC(REQ(q, BY_BACKEND(q))) || result[q * REQUESTS + BY_BACKEND(q)]) ->
     if
#ifdef NO_FORCED_SIGNALS
     :: IS_SIGNALED(REQ(q, BY_BACKEND(q))) -> cq[SENDER(q)]!2 * q, BY_BACKEND(q), 0
#else
     :: device && !IS_SPARED(q, BY_BACKEND(q)) || IS_SIGNALED(REQ(q, BY_BACKEND(q))) -> cq[SENDER(q)]!2 * q, BY_BACKEND(q), 0
#endif
     :: else
     fi;
     wire[q].executed++
  :: else -> break
  od;
  retire(q)
}

proctype adapter(byte q) {
  byte s, value;
end:
  do
  :: d_step { /* a request leaves */
       MOVES && wire[q].up && ready[q] && wire[q].next < GIVEN(q) && !wire[q].waiting && nfull(requests[q]) ->
       requests[q]!wire[q].next;
       wire[q].next++
     }
  :: d_step { /* a request arrives */
       MOVES && nempty(requests[q]) ->
       requests[q]?s;
       if
       :: s == wire[q].expected && CONSUMES(REQ(q, log[q].base + s)) && !AVAILABLE(QUEUE(q)) ->
          wire[q].rnr = 1;
          answers[q]!REFUSED + s;
          printf("member %d: refuses request %d of flow %d for want of a receive\n", RECEIVER(q), log[q].base + s, q)
       :: s == wire[q].expected && (!CONSUMES(REQ(q, log[q].base + s)) || AVAILABLE(QUEUE(q))) -> execute(q)
       :: else -> HOLDS(s > wire[q].expected && wire[q].rnr, "violated: only what is behind a refused request is dropped\n")
       fi;
       s = 0
     }
  :: d_step { /* an answer arrives */
       MOVES && nempty(answers[q]) ->
       answers[q]?s;
       if
       :: s >= REFUSED ->
          wire[q].next = wire[q].acked;
          wire[q].waiting = 1
       :: else ->
          HOLDS(stage != QUIET || log[q].base + s < EXECUTED(q), "violated: what has settled stands\n");
          wire[q].acked++;
          printf("member %d: request %d of flow %d is acknowledged\n", SENDER(q), log[q].base + s, q);
          complete_ready(q)
       fi;
       s = 0
     }
  :: d_step { /* what a fetch-and-add returned arrives */
       MOVES && nempty(results[q]) ->
       results[q]?s, value;
       HOLDS(stage != QUIET, "violated: what has settled stands\n");
       result[q * REQUESTS + log[q].base + s] = value;
       complete_ready(q);
       s = 0; value = 0
     }
  :: d_step { MOVES && wire[q].waiting && AVAILABLE(QUEUE(q)) -> wire[q].waiting = 0 }
  od
}

#ifdef LATE_RECEIVES
proctype late_adapter(byte m) {
  byte what, place, number;
end:
  do
  :: d_step {
       nempty(late[m]) ->
       late[m]?what, place, number;
       cq[m]!what, place, number;
       what = 0; place = 0; number = 0
     }
  od
}
#endif

