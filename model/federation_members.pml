/* Two members of a cluster, and when each of them takes the next SN. For the model checker Spin; model/check federation runs
   it, and has it refute SN_TOO_EARLY and SN_TOO_LATE.

   The cluster takes CLC n+1: members stop, the command claims the CLC, members go on with SN n+1. A member posts to a
   receiver in another cluster at any moment at which it runs. The cluster fails and goes back to its last claimed CLC: what
   that state does not hold must have an SN that takes the receiver back, and what it holds must not.

   Faults: SN_TOO_EARLY: a member has SN n+1 as soon as it is asked, while its threads still run.
           SN_TOO_LATE: its threads run again before it has SN n+1.

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

#define MEMBERS 2

byte sn[MEMBERS] = 1;     /* of each member */
bit stopped[MEMBERS], stored[MEMBERS], late[MEMBERS];
byte claimed = 1;         /* the last CLC that is claimed */
bit command_dead, given_up, asked, failed;
byte posted_sn[MEMBERS];  /* of its message, 0: none yet */
bit in_clc[MEMBERS];      /* CLC 2 has that message */

active proctype command() {
end:
  if
  :: atomic {
       asked = 1;
       printf("command: asks\n")
     };
     if
     :: atomic {
          stored[0] && stored[1] && !given_up ->
          claimed = 2;
          printf("command: claims\n")
        }
     :: atomic {
          command_dead = 1;
          printf("command: dead\n")
        }
     fi
  fi
}

#define MAY_RUN(m) (!stopped[m] && !failed)

proctype member(byte m) {
end:
  do
#ifdef SN_TOO_EARLY
  :: atomic {
       MAY_RUN(m) && asked && sn[m] == 1 ->
       sn[m] = 2
     }
#endif
#ifdef SN_TOO_LATE
  :: atomic {
       late[m] && sn[m] == 1 ->
       sn[m] = 2
     }
#endif
  :: atomic {
       MAY_RUN(m) && asked && !stopped[m] && claimed == 1 && !given_up && !stored[m] ->
       stopped[m] = 1
     };
end_failed:
     atomic {
       !failed ->
       stored[m] = 1;
       in_clc[m] = (posted_sn[m] != 0);
       printf("member: stored\n")
     };
end_stopped:
     if
     :: atomic {
          claimed == 2 ->
#ifdef SN_TOO_LATE
          stopped[m] = 0;
          late[m] = 1
#else
          sn[m] = 2;
          stopped[m] = 0
#endif
        }
     :: atomic {
          command_dead && claimed == 1 ->
          given_up = 1; /* the claim: whoever comes first */
          stopped[m] = 0;
          printf("member: goes on without the CLC\n")
        }
     fi
  :: atomic {
       MAY_RUN(m) && posted_sn[m] == 0 ->
       posted_sn[m] = sn[m];
       FOUND(sn[m] == 2 && claimed == 2, "found: a message of the next interval\n");
       FOUND(given_up, "found: a message after a CLC that is void\n");
       printf("member: posts\n")
     }
  od
}

/* The cluster fails and goes back to CLC `claimed`: what its state does not hold is undone, and the receiver must know. */
#define HELD_BY_STATE(m) (posted_sn[m] != 0 && claimed == 2 && in_clc[m])
#define GOES_BACK(m) (posted_sn[m] != 0 && !HELD_BY_STATE(m))
#define KNOWN(m) (posted_sn[m] >= claimed)

active proctype fate() {
end:
  atomic {
    failed = 1;
    printf("fate: the cluster fails\n");
    HOLDS(!GOES_BACK(0) || KNOWN(0), "violated: a message that is undone has an SN that says so\n");
    HOLDS(!GOES_BACK(1) || KNOWN(1), "violated: a message that is undone has an SN that says so\n");
    HOLDS(!HELD_BY_STATE(0) || !KNOWN(0), "violated: a message that is kept does not take its receiver back\n");
    HOLDS(!HELD_BY_STATE(1) || !KNOWN(1), "violated: a message that is kept does not take its receiver back\n")
  }
}

init {
  atomic {
    run member(0);
    run member(1)
  }
}
