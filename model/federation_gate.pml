/* The gate: the order of what survivors replay to a cluster that went back. For the model checker Spin; model/check federation
   runs it, and has it refute no gate, and gates that take clocks for better or worse than they are.

   Process 1 of cluster A writes to B, over a queue pair of its own. Its completion comes no earlier than half a round trip
   behind the execution. Process 2 of A sends to B over another queue pair: whenever it likes, or because process 1 has told
   it of the completion, over a pipe that nobody sees. B goes back to before both, and both are replayed. The gate has times
   only: of the completion by the clock of process 1, of the post by the clock of process 2.

   What is chosen by -D:
   HALF_TRIP  half a round trip between the clusters, in ticks
   DIFFER     by how many ticks the two clocks may differ, either way
   SKEW       what the gate takes for DIFFER
   LAST       the last tick
   Fault:     NO_GATE

   Properties are what HOLDS names. What FOUND names is what the search has to meet. */

#define HOLDS(condition, text) \
  if \
  :: condition \
  :: else -> \
     printf(text); \
     assert(false) \
  fi
#define FOUND(condition, text) \
  if \
  :: condition -> printf(text) \
  :: else \
  fi

#define NEVER 255

short now;                             /* ticks of true time */
short offset;                          /* of the second clock against the first one, by which true time is told */
byte write_run = NEVER, completed = NEVER;
byte sent = NEVER, send_run = NEVER;
bit told, depends, waits, back;
bit write_again, send_again;

/* The first run: each tick something may happen, or nothing. */
active proctype first_run() {
  do
  :: now < LAST && !(completed != NEVER && send_run != NEVER) ->
     if
     :: atomic {
          write_run == NEVER && now >= HALF_TRIP ->
          write_run = now;
          printf("first run: the write is executed\n")
        }
     :: atomic {
          write_run != NEVER && completed == NEVER && now >= write_run + HALF_TRIP ->
          completed = now;
          printf("first run: it completes\n")
        }
     :: atomic {
          completed != NEVER && !told && sent == NEVER ->
          told = 1;
          printf("first run: process 2 is told\n")
        }
     :: atomic {
          sent == NEVER ->
          sent = now;
          depends = told;
          printf("first run: process 2 sends\n")
        }
     :: atomic {
          sent != NEVER && send_run == NEVER && now >= sent + HALF_TRIP ->
          send_run = now;
          printf("first run: the send is executed\n")
        }
     :: now++
     fi
  :: else -> break
  od;
  if
  :: completed != NEVER && send_run != NEVER ->
     atomic {
       if
       :: offset = 0 - DIFFER
       :: offset = 0
       :: offset = DIFFER
       fi;
#ifndef NO_GATE
       waits = (completed <= sent + offset + SKEW);
#endif
       FOUND(waits && !depends, "found: a send that waits in vain\n");
       FOUND(!waits && !depends && send_run < write_run, "found: a send that went first\n");
       FOUND(waits && depends, "found: a send that has to wait\n");
       HOLDS(!waits || write_run <= send_run, "violated: the gate is never against the order of the first run\n");
       printf("B goes back\n");
       back = 1
     }
  :: else
  fi
}

active proctype replay_of_write() {
end:
  atomic {
    back && !write_again ->
    write_again = 1;
    printf("replay: the write\n")
  }
}

active proctype replay_of_send() {
end:
  atomic {
    back && (!waits || write_again) ->
    HOLDS(!depends || write_again, "violated: what a completion has caused runs after it\n");
    send_again = 1;
    printf("replay: the send\n")
  }
}
