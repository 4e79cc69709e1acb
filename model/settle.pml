/* Settle, resume and restart as the code does them, for the model checker Spin. model/check runs this in several sizes, and has
   it refute what is not the rule. docs/internals/settling.md says which part stands for which code.

   A flow is one direction of a reliable connection: a sender posts requests, a receiver posts receives, an adapter moves
   requests one way and acknowledgements the other. Checkpoints come at any moment; members stop and go on one after the
   other. A checkpoint ends in a resume, or in a kill and restart: what is on the wire or in an adapter is lost then, what is
   in a process's memory is not. A restart from an older set is one from the newest with all that came since undone, so a
   kill right after the images stands for all.

   Not in here: errors and doomed queue pairs, SQD, unreliable queues, XRC, windows, events, a wire that repeats.

   A step that would change nothing is not taken: a refused request is sent again when there is a receive, counts are
   published when they differ, a poll finds something. So there are no cycles (model/check looks), every run comes to an end,
   and one that would settle for ever ends in the assertion that settling ends.

   What is chosen by -D:
   SHAPE            who talks to whom: 1 to 4, see job.pml
   REQUESTS         of each flow: 1 to 4
   OPCODES          that a program chooses from: 1 RDMA_WRITE, 2 FETCH_AND_ADD, 4 SEND, 8 WRITE_WITH_IMM, or a sum
   SIGNALS          1 all are signaled, 2 none, 3 each as it likes
   RECEIVES         that a program has posted and not seen completed, at most
   CHECKPOINTS      each may end in a restart
   DEPTH            of a send queue; as many as there are requests
   WINDOW           requests under way
   BACKEND          IB2TCP tells how many requests have run (BackendOps::sq_executed), a DEVICE only completes them
                    (BackendOps::needs_signals)
   CROSSES          a restart may be on the other backend
   HALF_MADE        the receiver's queue pair becomes ready (RTR) at any time
   GIVES_UP         a checkpoint may be given up while it settles
   Other rules:     PAPERS_RULE, and with it SLEEPS_LONG; DRAINS_EMPTY
   Faults in ours:  PUBLISHES_ONCE, SILENT_WHEN_SETTLED, NO_LAST_LOOK, BLIND_TO_CONSUMED, BLIND_TO_LEFT, FRONTIER_OF_POLLED,
                    FORGETS_COUNTS, NEW_BEFORE_DRAINED, NO_FORCED_SIGNALS, NO_SECOND_LOOK, NO_WAIT_FOR_LATE,
                    NO_PROOF, NO_FENCE_BEFORE_MESSAGE, TAIL_FOR_HELD
   SPARES           of a device's unsignaled requests any may be spared a forced signal, but the first; fences tell
   LATE_RECEIVES    complete some time after their message was acknowledged, as a device may have it

   Properties are what HOLDS names. What FOUND names is what checkpoints have to meet, or the model would show little. */

#include "job.pml"
#include "rule.pml"
#include "program.pml"
#include "adapter.pml"
#include "agent.pml"
#include "command.pml"

/* The end of every run. */
#define UNTOLD(q, s) ((s) >= log[q].told && IS_SIGNALED(REQ(q, s)))
#define UNSEEN(q, s) ((s) >= log[q].arrived && CONSUMES(REQ(q, s)))
#define UNANSWERED(q, s) (result[(q) * REQUESTS + (s)] != found[(q) * REQUESTS + (s)])
#define UNFINISHED(q) (ran[q] < REQUESTS || ANY(UNTOLD, q) || ANY(UNSEEN, q) || ANY(UNANSWERED, q))

active proctype end_of_run() {
  timeout ->
  HOLDS(stage == RUNNING, "violated: settling ends\n");
  HOLDS(!ANY_FLOW(UNFINISHED), "violated: the job comes to its end\n")
}

#define START_FLOW(q) run poster(q); run adapter(q)
#define START_MEMBER(m) run poller(m); run agent(m)

init {
  atomic {
    EACH_FLOW(START_FLOW);
    START_MEMBER(0);
    START_MEMBER(1);
#if MEMBERS == 3
    START_MEMBER(2);
#endif
    run receiver(0);
#if QUEUES == 2
    run receiver(1);
#endif
#ifdef HALF_MADE
    EACH_FLOW(run connector);
#endif
#ifdef LATE_RECEIVES
    run late_adapter(0);
    run late_adapter(1);
#endif
    skip
  }
}
