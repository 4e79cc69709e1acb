/* When a send queue has settled, and what of it has run: shadowib/cr/settle.cc. All is read by the agent of member m; the
   counts of its peers are as they have published them, which may be a while ago. */

/* executed_frontier, datapath/post.cc */
#define BY_BACKEND(q) (log[q].base + wire[q].executed)
#ifdef PAPERS_RULE
#define EXECUTED(q) (log[q].retired)
#else
#ifdef SPARES
#define BY_PROOF(q) (log[q].proven > log[q].retired -> log[q].proven : log[q].retired)
#else
#define BY_PROOF(q) log[q].retired
#endif
#define EXECUTED(q) ((!device && BY_BACKEND(q) > log[q].retired) -> BY_BACKEND(q) : BY_PROOF(q))
#endif

/* is_spared: it may have run, and nothing has told */
#ifdef SPARES
#define UNPROVEN(q) (device && EXECUTED(q) < log[q].head && IS_SPARED(q, EXECUTED(q)))
#else
#define UNPROVEN(q) false
#endif

/* owes_completion */
#define OWED_ONE(q, s) ((s) >= log[q].retired && (s) < EXECUTED(q) && IS_SIGNALED(REQ(q, s)))
#define OWED(q) ANY(OWED_ONE, q)

/* messages_before */
#define BEFORE_ONE(q, s) (((s) < EXECUTED(q) && CONSUMES(REQ(q, s))) -> 1 : 0)
#define BEFORE(q) SUM(BEFORE_ONE, q)

/* judge */
#ifdef BLIND_TO_CONSUMED
#define ALL_CONSUMED(q) true
#else
#define ALL_CONSUMED(q) (published_consumed[q] == BEFORE(q))
#endif
#ifdef BLIND_TO_LEFT
#define NONE_LEFT(q) true
#else
#define NONE_LEFT(q) (published_left[QUEUE(q)] == 0)
#endif
#define EMPTY(q) (EXECUTED(q) == log[q].head && !OWED(q))
#define BLOCKED(q) \
  (EXECUTED(q) < log[q].head && !OWED(q) && CONSUMES(REQ(q, EXECUTED(q))) && ALL_CONSUMED(q) && NONE_LEFT(q))
#ifdef TAIL_FOR_HELD
#define HELD(q) (!OWED(q) && (!ready[q] || UNPROVEN(q)))
#else
#define HELD(q) (!OWED(q) && !ready[q] && !UNPROVEN(q))
#endif
#ifdef PAPERS_RULE
#ifdef SLEEPS_LONG /* until nothing moves any more */
#define STANDS(q) \
  (len(requests[q]) + len(answers[q]) + len(cq[SENDER(q)]) == 0 && (wire[q].next == GIVEN(q) || wire[q].waiting))
#else
#define STANDS(q) (len(cq[SENDER(q)]) == 0)
#endif
#elif defined(DRAINS_EMPTY)
#define STANDS(q) EMPTY(q)
#else
#define STANDS(q) (EMPTY(q) || published[RECEIVER(q)] && (BLOCKED(q) || HELD(q)))
#endif
#define MOVING(q) (SENDER(q) == m && !STANDS(q))

/* first_late: when all have settled, what senders publish of it is what they know */
#ifdef NO_WAIT_FOR_LATE
#define LATE(q) false
#else
#define LATE(q) (RECEIVER(q) == m && device && log[q].consumed < BEFORE(q))
#endif

/* publish_counts: only if they differ */
#define UNPUBLISHED(q) \
  (RECEIVER(q) == m && (published_consumed[q] != log[q].consumed || published_left[QUEUE(q)] != LEFT(QUEUE(q))))
#if defined(PAPERS_RULE)
#define TO_PUBLISH false
#elif defined(PUBLISHES_ONCE)
#define TO_PUBLISH (!published[m])
#elif defined(SILENT_WHEN_SETTLED)
#define TO_PUBLISH (!published[m] || !done[m] && ANY_FLOW(UNPUBLISHED))
#else
#define TO_PUBLISH (!published[m] || ANY_FLOW(UNPUBLISHED))
#endif

