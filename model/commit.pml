/* A set whose pieces lie near: on the hosts of its members, each with a copy on the next host. For the model checker Spin;
   model/check commit runs it, and has it refute the protocol with a rule left out. docs/internals/store.md tells which part
   stands for which code.

   Each of three hosts saves one piece of a set, and its keeper sends a copy to the next host. The command commits when all
   copies are checked, then older sets go. A command may die at any moment, and the next one begins a set of its own. A host
   may be lost at any moment: its pieces are gone, and the job restarts on the others and an empty spare. Copies are made
   whole again, and then another host may be lost. A collector removes pieces that belong to no set, whenever it likes.

   Not in here: the contents of images, the sync and rename of one directory (hooks/store/tests does those), time-outs.

   What is chosen by -D:
   ATTEMPTS         checkpoints that begin: 2 or 3
   LOSSES           of hosts
   DEATHS           of commands
   ALTERS           copies that arrive with another content
   COLLECTIONS      by the collector
   SCHEMES          a set may be without copies
   Faults:          COMMITS_EARLY, UNCHECKED, COPY_AT_HOME, SAME_ID, KEPT_BY_NUMBER, REMOVES_FIRST, REMOVES_FOR_LESS,
                    GC_IGNORES_LOCK, GC_LISTS_SETS_FIRST, RESTARTS_BESIDE_COMMAND, WHOLE_TOO_EARLY

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

#define HOSTS 3
#define NEXT(h) (((h) + 1) % HOSTS)
#define BEFORE(h) (((h) + 2) % HOSTS)
#define NONE 255

/* A piece: absent, altered, or what an attempt has saved. */
#define ABSENT 0
#define ALTERED 1
#define SAVED_BY(a) ((a) + 2)

#define AT(h, id) ((id) * HOSTS + (h))
#ifdef SAME_ID
#define ID(a) number[a]
#else
#define ID(a) (a) /* random, so never the same */
#endif
#ifdef COPY_AT_HOME
#define HOLDER(h) (h)
#else
#define HOLDER(h) NEXT(h)
#endif

/* On hosts. */
byte own[HOSTS * ATTEMPTS];  /* by host and set: the host's own piece */
byte copy[HOSTS * ATTEMPTS]; /* the copy of a host's piece, which its holder has */
bit up[HOSTS];
bit wire[HOSTS * ATTEMPTS];  /* by host and attempt: the copy is under way to its holder, by a connection of its own */

/* In the job's directory, which all share. */
bit committed[ATTEMPTS]; /* by set: it is listed */
bit mirrored[ATTEMPTS];
byte saved_by[ATTEMPTS]; /* its pieces are this attempt's */
bit locked;              /* a command holds the checkpoint's lock */

/* In the exchange. */
byte plan = NONE;        /* the attempt */
bit saved[HOSTS * ATTEMPTS], kept[HOSTS * ATTEMPTS], gave_up[ATTEMPTS];
byte number[ATTEMPTS];   /* of the set that an attempt makes */

byte taken[HOSTS];       /* the attempt a host takes part in, and 1 */
bit to_send[HOSTS];
bit job_runs = 1, whole = 1;
bit survived;            /* a mirrored set was committed */
byte losses, deaths, alters, collections;

#define ALL_OF(x, a) (x[AT(0, a)] && x[AT(1, a)] && x[AT(2, a)])
#define HAS(h, id) (own[AT(h, id)] == saved_by[id] || copy[AT(h, id)] == saved_by[id])
#define RESTARTS(id) (committed[id] && HAS(0, id) && HAS(1, id) && HAS(2, id))
#define KEEPS_WORD(id) (!committed[id] || !mirrored[id] || RESTARTS(id))
#define NO_PIECE(x, id) (x[AT(0, id)] == ABSENT && x[AT(1, id)] == ABSENT && x[AT(2, id)] == ABSENT)
#define LEFT_BEHIND(id) (!NO_PIECE(own, id) || !NO_PIECE(copy, id))
#if ATTEMPTS == 2
#define ANY_SET(x) (x(0) || x(1))
#define EACH_SET(x) (x(0) && x(1))
#else
#define ANY_SET(x) (x(0) || x(1) || x(2))
#define EACH_SET(x) (x(0) && x(1) && x(2))
#endif

inline check_sets() {
  HOLDS(EACH_SET(KEEPS_WORD), "violated: a mirrored set survives the loss of a host\n");
  HOLDS(!survived || ANY_SET(RESTARTS), "violated: a saved job restarts\n")
}

/* The command. */
#define MAY_DIE deaths < DEATHS -> deaths++; goto died
#ifdef REMOVES_FOR_LESS
#define MAY_GO(old, new) (committed[old] && (old) != (new))
#else
#define MAY_GO(old, new) (committed[old] && (old) != (new) && mirrored[new] >= mirrored[old])
#endif

inline remove_pieces(id) {
  i = 0;
  do
  :: i < HOSTS ->
     own[AT(i, id)] = ABSENT;
     copy[AT(i, id)] = ABSENT;
     i++
  :: else ->
     i = 0;
     break
  od
}

inline remove_older(new) {
  old = 0;
  do
  :: old < ATTEMPTS && MAY_GO(old, new) ->
     FOUND(!job_runs, "found: an old set that goes after a loss\n");
     committed[old] = 0; /* hidden first, so that no list shows half of it */
     d_step {
       remove_pieces(old);
       old++
     }
  :: old < ATTEMPTS && !MAY_GO(old, new) -> old++
  :: old == ATTEMPTS -> break
  od;
  old = 0
}

#ifdef COMMITS_EARLY
#define COPIED(a) ALL_OF(saved, a)
#else
#define COPIED(a) (!mirrored[ID(a)] || ALL_OF(kept, a))
#endif

active proctype command() {
  byte a, old, i;
end:
  do
  :: atomic {
       a < ATTEMPTS && job_runs ->
       locked = 1;
       FOUND(a > 0 && wire[AT(0, 0)], "found: a dead command's copy still under way\n");
       FOUND(!whole, "found: a checkpoint while copies are made whole\n");
       number[a] = (a > 0 && committed[number[a - 1]] -> a : (a > 0 -> number[a - 1] : 0));
       mirrored[ID(a)] = 1;
#ifdef SCHEMES
       if
       :: skip
       :: mirrored[ID(a)] = 0
       fi;
#endif
       printf("command: attempt\n");
       plan = a
     };
#ifdef REMOVES_FIRST
     i = 0;
     remove_older(ID(a));
#endif
     if
     :: MAY_DIE
     :: ALL_OF(saved, a) && COPIED(a) ->
        if
        :: deaths < DEATHS ->
           printf("found: a command dead between copies and commit\n");
           deaths++;
           goto died
        :: d_step {
             committed[ID(a)] = 1;
             saved_by[ID(a)] = SAVED_BY(a);
             survived = survived || mirrored[ID(a)];
             printf("command: committed\n")
           };
           if
           :: MAY_DIE
           :: remove_older(ID(a))
           fi
        fi
     :: gave_up[a] || !job_runs
     fi;
     atomic {
       plan = NONE;
       locked = 0;
       a++;
       goto end
     };
died:
     atomic {
       printf("command: dead\n");
       locked = 0;
       a++
     }
  od
}

/* A host: its member, which saves, and its keeper, which sends the copy. Others' copies arrive whether it still wants them. */
#ifdef KEPT_BY_NUMBER
#define NOTE_KEPT(h, a) kept[AT(h, (plan == NONE -> a : plan))] = 1
#else
#define NOTE_KEPT(h, a) kept[AT(h, a)] = 1
#endif
#ifdef UNCHECKED
#define GOOD(piece, a) true
#else
#define GOOD(piece, a) (piece == SAVED_BY(a))
#endif

#define UNDER_WAY(a) (wire[AT(h, a)] && up[HOLDER(h)])
#define ARRIVES(a) \
  d_step { \
    UNDER_WAY(a) -> \
    wire[AT(h, a)] = 0; \
    copy[AT(h, ID(a))] = SAVED_BY(a); \
    NOTE_KEPT(h, a) \
  }
inline arrive_altered(a) {
  printf("found: a copy that arrives altered\n");
  d_step {
    alters++;
    wire[AT(h, a)] = 0;
    copy[AT(h, ID(a))] = ALTERED;
    if
    :: GOOD(ALTERED, a) -> NOTE_KEPT(h, a)
    :: else -> gave_up[a] = 1
    fi
  }
}

proctype host(byte h) {
end:
  do
  :: d_step {
       up[h] && job_runs && plan != NONE && taken[h] != plan + 1 ->
       taken[h] = plan + 1;
       own[AT(h, ID(plan))] = SAVED_BY(plan);
       saved[AT(h, plan)] = 1;
       to_send[h] = mirrored[ID(plan)]
     }
  :: d_step {
       up[h] && to_send[h] ->
       to_send[h] = 0;
       wire[AT(h, taken[h] - 1)] = 1
     }
  :: ARRIVES(0)
  :: ARRIVES(1)
#if ATTEMPTS == 3
  :: ARRIVES(2)
#endif
#if ALTERS > 0
  :: atomic {
       alters < ALTERS && UNDER_WAY(0) -> arrive_altered(0)
     }
  :: atomic {
       alters < ALTERS && UNDER_WAY(1) -> arrive_altered(1)
     }
#endif
  od
}

/* The loss of a host, the restart on a spare, and copies made whole again. */
inline lose(h) {
  d_step {
    up[h] = 0;
    job_runs = 0;
    whole = 0;
    taken[h] = 0;
    to_send[h] = 0;
    id = 0;
    do
    :: id < ATTEMPTS ->
       own[AT(h, id)] = ABSENT;
#ifdef COPY_AT_HOME
       copy[AT(h, id)] = ABSENT;
#else
       copy[AT(BEFORE(h), id)] = ABSENT;
#endif
       wire[AT(BEFORE(h), id)] = 0;
       id++
    :: else -> break
    od;
    id = 0
  };
  printf("host: lost\n");
  check_sets()
}

#define LACKS(x, h, id) (committed[id] && mirrored[id] && x[AT(h, id)] != saved_by[id] && HAS(h, id))
#define LACKS_ANY(id) (LACKS(own, 0, id) || LACKS(own, 1, id) || LACKS(own, 2, id) || \
  LACKS(copy, 0, id) || LACKS(copy, 1, id) || LACKS(copy, 2, id))

inline make_whole() {
#ifndef WHOLE_TOO_EARLY
  do
  :: d_step {
       ANY_SET(LACKS_ANY) ->
       id = 0;
       do
       :: !LACKS_ANY(id) -> id++
       :: else -> break
       od;
       h = 0;
       do
       :: !LACKS(own, h, id) && !LACKS(copy, h, id) -> h++
       :: else -> break
       od;
       if
       :: LACKS(own, h, id) -> own[AT(h, id)] = saved_by[id]
       :: else -> copy[AT(h, id)] = saved_by[id]
       fi;
       id = 0;
       h = 0
     }
  :: d_step {
       !ANY_SET(LACKS_ANY) ->
       whole = 1
     } -> break
  od
#else
  whole = 1
#endif
}

#ifdef RESTARTS_BESIDE_COMMAND
#define MAY_RESTART true
#else
#define MAY_RESTART !locked
#endif

active proctype fate() {
  byte h, id, lost;
end:
  do
  :: atomic {
       losses < LOSSES && job_runs && whole ->
       losses++;
       FOUND(locked && plan != NONE && !ALL_OF(kept, plan), "found: a host lost before all copies are made\n");
       FOUND(locked && plan != NONE && ALL_OF(kept, plan) && !committed[ID(plan)],
             "found: a host lost between copies and commit\n");
       FOUND(committed[0] && committed[1], "found: a host lost before the old set goes\n");
       FOUND(losses == 2, "found: a loss after copies were made whole\n");
       if
       :: lost = 0
       :: lost = 1
       :: lost = 2
       fi;
       lose(lost)
     };
     atomic {
       MAY_RESTART ->
       check_sets();
       up[lost] = 1;
       lost = 0;
       plan = NONE; /* a restart has an epoch of its own */
       job_runs = 1;
       printf("job: restarted\n")
     };
     make_whole()
  od
}

/* Pieces that belong to no set go. In this order: pieces are listed, the checkpoint's lock is tried, sets are listed. */
active proctype collector() {
  byte id, i;
  bit listed;
end:
  do
  :: atomic {
       collections < COLLECTIONS && ANY_SET(LEFT_BEHIND) ->
       collections++;
       if
       :: LEFT_BEHIND(0) -> id = 0
       :: LEFT_BEHIND(1) -> id = 1
#if ATTEMPTS == 3
       :: LEFT_BEHIND(2) -> id = 2
#endif
       fi
     };
#ifdef GC_LISTS_SETS_FIRST
     listed = committed[id];
#endif
#ifndef GC_IGNORES_LOCK
     if
     :: atomic {
          locked ->
          printf("found: a collector beside a checkpoint\n");
          goto next
        }
     :: !locked
     fi;
#endif
#ifndef GC_LISTS_SETS_FIRST
     listed = committed[id];
#endif
     if
     :: !listed ->
        d_step {
          remove_pieces(id);
          printf("collector: removed\n")
        }
     :: else
     fi;
next:
     atomic {
       listed = 0;
       id = 0
     }
  od
}

/* The end of every run. */
active proctype end_of_run() {
  timeout ->
  HOLDS(!locked, "violated: the next checkpoint may begin\n");
  check_sets()
}

init {
  atomic {
    up[0] = 1;
    up[1] = 1;
    up[2] = 1;
    run host(0);
    run host(1);
    run host(2)
  }
}
