/* Members that go on while savers write their images (--save forked). For the model checker Spin; model/check snapshot runs
   it, and has it refute the protocol with a rule left out. docs/internals/saver.md tells which code this is.

   Each of three members runs, sends and receives. All stop and settle: then no message is under way. Each looks whether a
   stranger shares its memory, has its memory copied by a saver, and goes on. A saver takes its time and ends.

   Not in here: settling (settle.pml), the commit (commit.pml), members that fail.

   Faults: GOES_ON_EARLY, CLONES_EARLY

   Properties are what HOLDS names. What FOUND names is what the search has to meet, or the model would show little. */

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

#define MEMBERS 3
#define NEXT(m) (((m) + 1) % MEMBERS) /* each sends to the next */
#define ALL(x) (x[0] && x[1] && x[2])
#define MOST 1 /* messages of a member */

byte sent[MEMBERS], received[MEMBERS];
byte saved_sent[MEMBERS], saved_received[MEMBERS]; /* in images */
bit stopped[MEMBERS], settled[MEMBERS], looked[MEMBERS], copied[MEMBERS], saver[MEMBERS];
chan wire[MEMBERS] = [MOST] of { bit };

inline sends(me) {
  wire[NEXT(me)] ! 1;
  sent[me]++;
  printf("member %d sends\n", me)
}

/* Puts what arrives into the member's memory, whether its program runs or not. */
proctype Adapter(byte me) {
end:
  do
  :: atomic {
       wire[me] ? _;
       received[me]++;
       printf("a message is in the memory of member %d\n", me)
     }
  od
}

proctype Saver(byte me) {
  atomic {
    saver[me] = 0;
    printf("the saver of member %d has written\n", me)
  }
}

proctype Member(byte me) {
  do
  :: atomic { sent[me] < MOST -> sends(me) }
  :: break
  od;
  stopped[me] = 1;
  ALL(stopped);
  empty(wire[me]);
  settled[me] = 1;
  ALL(settled);
  atomic {
    HOLDS(!saver[0] && !saver[1] && !saver[2], "violated: nobody takes a saver for a stranger\n");
    looked[me] = 1
  }
#ifndef CLONES_EARLY
  ALL(looked);
#endif
  atomic {
    saved_sent[me] = sent[me];
    saved_received[me] = received[me];
    copied[me] = 1;
    saver[me] = 1;
    printf("the memory of member %d is copied\n", me);
    run Saver(me)
  }
#ifndef GOES_ON_EARLY
  ALL(copied);
#endif
  do
  :: atomic {
       sent[me] < MOST ->
       FOUND(saver[me], "found: a message sent while an image is written\n");
       sends(me)
     }
  :: break
  od
}

init {
  atomic {
    run Adapter(0);
    run Adapter(1);
    run Adapter(2);
    run Member(0);
    run Member(1);
    run Member(2)
  }
  ALL(copied);
  atomic {
    HOLDS(saved_sent[0] == saved_received[1] && saved_sent[1] == saved_received[2] && saved_sent[2] == saved_received[0],
          "violated: images agree on each message\n")
  }
}
