/* Task farms: rounds, hand-outs, updates (libraries/masterworker). For the model checker Spin; model/check farm runs it, and has it
   refute the rules with one left out. docs/internals/masterworker.md tells which code this is.

   A master and two workers do TASKS tasks. Each result gets some action: NO_ACTION, UPDATE, or MORE times REDO or
   CONTINUATION, in any order. DEATHS: a worker dies and another is born. COPIES: a task is copied, in whatever round it is.
   RESTARTS: the master is restarted once from an image. All of it happens while results are under way.

   Not in here: the wire, tasks that are posted ahead, aborts.

   Faults: CHECKS_LATE, FORGETS_LIFE, NO_CATCH_UP, ALWAYS_UP_TO_DATE, REDO_ANYWHERE

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

#define W 2
#define NONE 9
#define FIRST 0
#define AGAIN 1 /* REDO */
#define STEP 2  /* CONTINUATION */

mtype = { TASK, NEWS };

/* The master, by task and by worker. */
byte kind[TASKS], home[TASKS];
bool over[TASKS];
byte again[TASKS]; /* rounds by REDO and CONTINUATION, MORE at most */
byte id[W], which[W], how[W], noted[W]; /* the hand-out that a worker has; id 0: none */
bool busy[W], joined[W];
bool reborn[W]; /* the worker is another one than at the beginning of this life: names are never used twice */
byte serial, updates, life = 1;
/* Its image. */
byte s_serial, s_updates;
bool s_over[TASKS], saved;
byte s_again[TASKS];
/* Workers. */
byte count[W], private[W] = NONE, born_at[W];
bool alive[W];
chan down[W] = [5] of { mtype, byte, byte, byte, byte }; /* what, life, id or number, task, kind */
chan up[W] = [2] of { byte, bool, byte, byte, byte, byte, bool }; /* life, worker, id, task, kind, updates seen, private data found */
byte i, n;
bool deaths = DEATHS, copies = COPIES, restarts = RESTARTS;

#define OUTSTANDING(t) ((id[0] != 0 && which[0] == t) + (id[1] != 0 && which[1] == t))
#define IDLE(w) (joined[w] && !busy[w] && alive[w])
#define READY(t) (!over[t] && OUTSTANDING(t) == 0)
#define CAN_COPY(w) (copies && id[1 - w] != 0 && !over[which[1 - w]])
#define CAN_FEED(w) (IDLE(w) && (READY(0) || READY(1) || READY(TASKS - 1) || CAN_COPY(w)))
#define ALL_OVER (over[0] && over[1] && over[TASKS - 1])

inline forget(w) {
  id[w] = 0;
  which[w] = 0;
  how[w] = 0;
  noted[w] = 0
}

inline bear(w) {
  alive[w] = true;
  joined[w] = false;
  count[w] = updates;
  born_at[w] = updates;
  private[w] = NONE
}

inline hand_out(t, w) {
  serial++;
  id[w] = serial;
  which[w] = t;
  noted[w] = updates;
#ifdef REDO_ANYWHERE
  how[w] = kind[t];
#else
  how[w] = (home[t] == w -> kind[t] : FIRST);
#endif
  busy[w] = true;
  down[w] ! TASK, life, serial, t, how[w]
}

inline begin_anew(t) {
  if
  :: !over[t] && OUTSTANDING(t) == 0 -> kind[t] = FIRST; home[t] = NONE
  :: else
  fi
}

inline broadcast() {
  updates++;
  n = 0;
  do
  :: n < W ->
     if
     :: joined[n] -> down[n] ! NEWS, life, updates, 0, 0
     :: else -> FOUND(alive[n], "found: an update while a worker joins\n")
     fi;
     n++
  :: else -> break
  od
}

inline check(w, t, k, seen, found) {
  HOLDS(!over[t], "violated: each round is checked once\n");
#ifdef ALWAYS_UP_TO_DATE
  HOLDS(seen == updates, "violated: up to date is told truly\n");
#else
  HOLDS((noted[w] == updates) == (seen == updates), "violated: up to date is told truly\n");
#endif
  HOLDS(k != AGAIN || found, "violated: REDO finds its private data\n");
  forget(w);
  /* Other hand-outs of the round are unknown from now on. */
  if
  :: id[1 - w] != 0 && which[1 - w] == t ->
#ifndef CHECKS_LATE
     forget(1 - w);
#endif
     printf("found: a result before its copy\n")
  :: else
  fi;
  home[t] = w;
  kind[t] = k;
  if
  :: over[t] = true; kind[t] = FIRST; home[t] = NONE
  :: over[t] = true; kind[t] = FIRST; home[t] = NONE; broadcast()
  :: again[t] < MORE -> again[t]++; kind[t] = AGAIN; hand_out(t, w)
  :: again[t] < MORE -> again[t]++; kind[t] = STEP; hand_out(t, w)
  fi
}

proctype Master() {
  byte l, r, t, k, seen;
  bool found, who;
end:
  do
  /* A task for an idle worker. */
  :: atomic {
       CAN_FEED(0) || CAN_FEED(1) ->
       if
       :: CAN_FEED(0) -> i = 0
       :: CAN_FEED(1) -> i = 1
       fi;
       t = 0;
       do
       :: t < TASKS && (over[t] || OUTSTANDING(t) != 0) -> t++
       :: else -> break
       od;
       if
       :: t < TASKS -> hand_out(t, i)
       :: t == TASKS && CAN_COPY(i) ->
          copies = 0;
          t = which[1 - i];
          FOUND(how[1 - i] == STEP, "found: a copy of a continuation\n");
          FOUND(how[1 - i] == AGAIN, "found: a copy of a REDO\n");
          hand_out(t, i)
       :: else
       fi;
       t = 0;
       i = 0
     }
  /* A worker joins, and gets the updates since its birth. */
  :: atomic {
       (alive[0] && !joined[0]) || (alive[1] && !joined[1]) ->
       if
       :: alive[0] && !joined[0] -> i = 0
       :: alive[1] && !joined[1] -> i = 1
       fi;
       joined[i] = true;
       busy[i] = false;
#ifndef NO_CATCH_UP
       n = born_at[i];
       do
       :: n < updates -> n++; down[i] ! NEWS, life, n, 0, 0
       :: else -> break
       od;
#endif
       i = 0
     }
  /* A result. */
  :: atomic { up[0] ? l, who, r, t, k, seen, found -> i = 0; goto result }
  :: atomic { up[1] ? l, who, r, t, k, seen, found -> i = 1; goto result }
  /* A death is noticed, and another worker is born. */
  :: atomic {
       !alive[0] || !alive[1] ->
       i = (!alive[0] -> 0 : 1);
       forget(i);
       reborn[i] = true;
       t = 0;
       do
       :: t < TASKS -> begin_anew(t); t++
       :: else -> break
       od;
       do
       :: nempty(down[i]) -> down[i] ? _, _, _, _, _
       :: empty(down[i]) -> break
       od;
       bear(i);
       t = 0;
       i = 0
     }
  od;
result:
  atomic {
    if
#ifdef FORGETS_LIFE
    :: false
#else
    :: l != life -> printf("found: a result of another life\n")
#endif
    :: else ->
       if
       :: who == reborn[i] -> busy[i] = false
       :: else -> printf("found: a result of a worker that is gone\n")
       fi;
       if
       :: id[i] == r && which[i] == t -> check(i, t, k, seen, found)
#ifdef FORGETS_LIFE
       :: id[i] == r && which[i] != t -> check(i, which[i], k, seen, found)
#endif
       :: id[i] != r -> printf("found: a late result\n")
       fi
    fi;
    l = 0; who = 0; r = 0; t = 0; k = 0; seen = 0; found = 0; i = 0;
    goto end
  }
}

proctype Worker(byte me) {
  byte l, r, t, k;
end:
  do
  :: atomic {
       alive[me] && nempty(down[me]) && nfull(up[me]) ->
       if
       :: down[me] ? TASK, l, r, t, k ->
          up[me] ! l, reborn[me], r, t, k, count[me], (private[me] == t);
          private[me] = t
       :: down[me] ? NEWS, l, r, t, k ->
          if
          :: r > count[me] ->
             HOLDS(r == count[me] + 1, "violated: workers have the updates of the master\n");
             count[me] = r
          :: else
          fi
       fi;
       l = 0; r = 0; t = 0; k = 0
     }
  od
}

/* Deaths, an image, a restart from it. */
proctype World() {
  byte t, w;
end:
  do
  :: atomic { deaths && alive[0] && joined[0] -> deaths = 0; alive[0] = false; printf("worker 0 dies\n") }
  :: atomic {
       restarts && !saved ->
       saved = true;
       t = 0;
       do
       :: t < TASKS -> s_over[t] = over[t]; s_again[t] = again[t]; t++
       :: else -> break
       od;
       s_serial = serial;
       s_updates = updates;
       t = 0;
       printf("an image of the master\n")
     }
  :: atomic {
       restarts && saved ->
       restarts = 0;
       printf("the master is restarted\n");
       life++;
       serial = s_serial;
       updates = s_updates;
       t = 0;
       do
       :: t < TASKS -> over[t] = s_over[t]; again[t] = s_again[t]; kind[t] = FIRST; home[t] = NONE; t++
       :: else -> break
       od;
       w = 0;
       do
       :: w < W ->
          forget(w);
          do
          :: nempty(down[w]) -> down[w] ? _, _, _, _, _
          :: empty(down[w]) -> break
          od;
          reborn[w] = false;
          bear(w); /* results that are under way may still arrive */
          w++
       :: else -> break
       od;
       t = 0;
       w = 0
     }
  :: atomic {
       timeout ->
       HOLDS(ALL_OVER, "violated: all tasks come to their end\n");
       HOLDS((!joined[0] || count[0] == updates) && (!joined[1] || count[1] == updates),
             "violated: workers have the updates of the master\n");
       FOUND(updates == TASKS, "found: an update of each task\n");
       break
     }
  od
}

init {
  atomic {
    for (i : 0 .. TASKS - 1) {
      home[i] = NONE
    }
    i = 0;
    bear(0);
    bear(1);
    run Master();
    run Worker(0);
    run Worker(1);
    run World()
  }
}
