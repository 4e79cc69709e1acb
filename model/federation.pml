/* A federation: clusters that are checkpointed alone, and go back alone. For the model checker Spin; model/check federation
   runs it, and has it refute the protocol with a rule left out. docs/internals/federation.md tells which part stands for
   which code.

   Clusters post messages to each other. A message above D of its receiver stands on its link until a CLC of the receiver
   has committed. A cluster may fail at any moment, also while another recovers, and during its own restart. The recovery
   ends what has failed, fences it off, asks the living for SN and D, finds the line, publishes it, restores one cluster
   after the other, and joins links again. A collector drops CLCs and log entries, but not beside a recovery.

   Not in here: members of a cluster (federation_members.pml), completions of the sender (federation_gate.pml), bytes.

   What is chosen by -D:
   CLUSTERS, SHAPE  2: both ways; 3: a ring, or with FAN_IN two senders
   MESSAGES         of each flow
   ONE_WAY          of two clusters, the first one sends only
   OWN              CLCs that nobody forces, of each cluster
   FAILURES, DEATHS of clusters, and of commands between a stored CLC and its claim
   COLLECTIONS
   Faults:          PAPERS_ACK, LOG_NOT_KEPT, NO_FENCE, RESENDS_UNNUMBERED, DELIVERS_FIRST, UNDECIDED, GREATER, KEEPS_LAST,
                    TRIMS_RECEIVED, LEAVES_UNDECIDED, UNBOUND, CLAIM_BY_NUMBER

   Properties are what HOLDS names. What FOUND names is what the search has to meet, or the model would show little. */

bit broken; /* a step goes on after its first violation; the others follow from that */
#define HOLDS(condition, text) \
  if \
  :: broken || (condition) \
  :: else -> \
     broken = 1; \
     printf(text); \
     assert(false) \
  fi
#define FOUND(condition, text) \
  if \
  :: condition -> printf(text) \
  :: else \
  fi

#define C CLUSTERS
#define M MESSAGES
#define KEPT (2 + OWN + M * (C - 1) * (1 + FAILURES))
#define FLOW(i, j) ((i) * C + (j))
#define SLOT(i, n) ((i) * M + (n))

#if defined(ONE_WAY)
#define SENDS(i, j) ((i) == 0 && (j) == 1)
#elif defined(FAN_IN)
#define SENDS(i, j) ((i) != 2 && (j) == 2)
#elif CLUSTERS == 2
#define SENDS(i, j) ((i) != (j))
#else
#define SENDS(i, j) ((j) == ((i) + 1) % C)
#endif

typedef Image {
  byte sn;
  byte depends[C];   /* D; of a CLC: as the interval before it ended */
  byte after[C];     /* of a CLC: D as its interval began */
  byte posted[C];    /* messages, to each */
  byte id[C * M];    /* theirs; from `trimmed` on they are the log */
  byte at[C * M];    /* SN when posted */
  byte trimmed[C];
  byte executed[C];  /* messages of each */
  byte seen[C * M]   /* their ids */
};
typedef Store { Image clc[KEPT]; byte count, oldest };

Image now[C];
Store store[C];

byte times_posted[C * C]; /* a ghost that no recovery lowers: an id is one of these */
byte incarnation[C];
chan link[C * C] = [M + M] of { byte, byte, byte, byte }; /* number, id, SN when posted, incarnation of the sender */
bit held[C * C];          /* the link stands at its first frame */
bit shut[C * C];          /* the link is down: what is posted stays in the log */

mtype = { RUNNING, STOPPED, STORED, DECIDED };
mtype stage[C];           /* of the CLC under way */
bit alive[C];
bit late[C];              /* a stored CLC that nobody has decided, of a cluster that failed */
byte own[C];
byte failures, deaths, collections;
#ifdef CLAIM_BY_NUMBER
bit void_claim[C * (KEPT + 1)];
#define IS_VOID(c, sn) void_claim[(c) * (KEPT + 1) + (sn)]
#define CLAIM_VOID(c, sn) void_claim[(c) * (KEPT + 1) + (sn)] = 1
#else /* the key of a claim has the attempt */
#define IS_VOID(c, sn) false
#define CLAIM_VOID(c, sn) skip
#endif

/* Of the recovery. */
bit recovering, struck, fenced[C], bound[C];
byte to[C];               /* index of the CLC that the published line takes it to */
byte answer[C * C];       /* D of the living */
byte place[C];            /* index of a CLC, or count: it stays */

#define RUNS(c) (alive[c] && stage[c] == RUNNING)
#ifdef PAPERS_ACK
byte acknowledged[C * C * M]; /* by the sender: with which SN; 0: not */
#endif

inline copy_image(from, into) {
  into.sn = from.sn;
  k = 0;
  do
  :: k < C ->
     into.depends[k] = from.depends[k];
     into.posted[k] = from.posted[k];
     into.trimmed[k] = from.trimmed[k];
     into.executed[k] = from.executed[k];
     k++
  :: else -> break
  od;
  k = 0;
  do
  :: k < C * M ->
     into.id[k] = from.id[k];
     into.at[k] = from.at[k];
     into.seen[k] = from.seen[k];
     k++
  :: else -> break
  od;
  k = 0
}

/* A program posts. */
proctype program(byte i; byte j) {
end:
  do
  :: d_step {
       RUNS(i) && now[i].posted[j] < M ->
       times_posted[FLOW(i, j)]++;
       now[i].id[SLOT(j, now[i].posted[j])] = times_posted[FLOW(i, j)];
       now[i].at[SLOT(j, now[i].posted[j])] = now[i].sn;
#ifdef PAPERS_ACK
       acknowledged[FLOW(i, j) * M + now[i].posted[j]] = 0;
#endif
       if
       :: !shut[FLOW(i, j)] ->
          link[FLOW(i, j)]!now[i].posted[j], times_posted[FLOW(i, j)], now[i].sn, incarnation[i]
       :: else
       fi;
       now[i].posted[j]++;
       printf("program: posts\n")
     }
  od
}

/* A link's end at the receiver: delivers, or stands. */
proctype border(byte i; byte j) {
  byte number, id, sn, inc;
end:
  do
  :: d_step {
       RUNS(j) && len(link[FLOW(i, j)]) > 0 && (!held[FLOW(i, j)] || now[j].depends[i] > 0) &&
       !(held[FLOW(i, j)] && stage[j] != RUNNING) ->
       link[FLOW(i, j)]?<number, id, sn, inc>;
       if
#ifndef NO_FENCE
       :: inc != incarnation[i] ->
          link[FLOW(i, j)]?number, id, sn, inc
#endif
#ifdef NO_FENCE
       :: sn <= now[j].depends[i] ->
#else
       :: inc == incarnation[i] && sn <= now[j].depends[i] ->
#endif
          link[FLOW(i, j)]?number, id, sn, inc;
          held[FLOW(i, j)] = 0;
#ifdef RESENDS_UNNUMBERED
          if
          :: now[j].executed[i] < M ->
             now[j].seen[SLOT(i, now[j].executed[i])] = id;
             now[j].executed[i]++
          :: else -> skip
          fi;
#else
          if
          :: number == now[j].executed[i] ->
             now[j].seen[SLOT(i, number)] = id;
             now[j].executed[i]++
          :: else -> skip
          fi;
#endif
#ifdef PAPERS_ACK
          acknowledged[FLOW(i, j) * M + number] = now[j].sn;
#endif
          printf("border: delivers\n")
       :: else ->
          held[FLOW(i, j)] = 1;
#ifdef DELIVERS_FIRST
          if
          :: number == now[j].executed[i] ->
             now[j].seen[SLOT(i, number)] = id;
             now[j].executed[i]++
          :: else -> skip
          fi
#endif
       fi;
       number = 0;
       id = 0;
       sn = 0;
       inc = 0
     }
  od
}

/* A CLC. */
#if CLUSTERS == 2
#define HELD(c) held[FLOW(1 - (c), c)]
#else
#define HELD(c) (held[FLOW(0, c)] || held[FLOW(1, c)] || held[FLOW(2, c)])
#endif

inline clc_of(c) { /* store[c].clc[store[c].count] */
  copy_image(now[c], store[c].clc[store[c].count]);
  store[c].clc[store[c].count].sn++;
  i = 0;
  do
  :: i < C ->
     store[c].clc[store[c].count].after[i] = now[c].depends[i];
     if
     :: held[FLOW(i, c)] && len(link[FLOW(i, c)]) > 0 ->
        link[FLOW(i, c)]?<number, id, sn, inc>;
        if
        :: sn > now[c].depends[i] -> store[c].clc[store[c].count].after[i] = sn
        :: else
        fi
     :: else
     fi;
#ifdef LOG_NOT_KEPT
     store[c].clc[store[c].count].trimmed[i] = now[c].posted[i];
#endif
     i++
  :: else -> break
  od;
  i = 0;
  number = 0;
  id = 0;
  sn = 0;
  inc = 0
}

inline begin_interval(c) {
  now[c].sn = store[c].clc[store[c].count - 1].sn;
  i = 0;
  do
  :: i < C ->
     now[c].depends[i] = store[c].clc[store[c].count - 1].after[i];
     held[FLOW(i, c)] = 0;
     i++
  :: else -> break
  od;
  i = 0;
  stage[c] = RUNNING
}

proctype committer(byte c) {
  byte i, k, number, id, sn, inc;
end:
  do
  :: d_step {
       RUNS(c) && HELD(c) && !IS_VOID(c, now[c].sn + 1) ->
       stage[c] = STOPPED
     }
  :: d_step {
       RUNS(c) && !HELD(c) && own[c] < OWN && !IS_VOID(c, now[c].sn + 1) ->
       own[c]++;
       stage[c] = STOPPED
     }
  :: atomic {
       alive[c] && stage[c] == STOPPED ->
       assert(store[c].count < KEPT);
#ifdef FAN_IN
       FOUND(held[FLOW(0, c)] && held[FLOW(1, c)], "found: two holds of one CLC\n");
#endif
       d_step {
         clc_of(c);
         stage[c] = STORED;
         printf("committer: stored\n")
       }
     }
  :: d_step {
       alive[c] && stage[c] == STORED ->
       store[c].count++; /* the claim */
       stage[c] = DECIDED;
       printf("committer: committed\n")
     }
  :: d_step {
       alive[c] && stage[c] == DECIDED ->
       begin_interval(c)
     }
  :: d_step {
       alive[c] && stage[c] == STORED && deaths < DEATHS ->
       deaths++;
#ifdef UNDECIDED
       store[c].count++; /* the set is there, and members go on without it */
#else
       CLAIM_VOID(c, now[c].sn + 1);
#endif
       stage[c] = RUNNING;
       printf("committer: the command is dead\n")
     }
#ifdef LEAVES_UNDECIDED
  :: d_step { /* the command of a cluster that failed is on another host, and late */
       late[c] && !recovering && stage[c] == RUNNING && store[c].clc[store[c].count].sn == now[c].sn + 1 ->
       late[c] = 0;
       store[c].count++;
       printf("committer: committed late\n")
     }
#endif
  od
}

/* Failures, at any moment. */
proctype fate() {
  byte c;
end:
  do
  :: atomic {
       failures < FAILURES ->
       if
       :: c = 0
       :: c = 1
#if CLUSTERS == 3
       :: c = 2
#endif
       fi;
       FOUND(recovering && alive[c], "found: a failure while another recovers\n");
       FOUND(bound[c], "found: a failure of a cluster that is being restored\n");
       d_step {
         if
         :: alive[c] || bound[c] ->
            failures++;
            late[c] = (late[c] || (alive[c] && stage[c] == STORED));
            alive[c] = 0;
            if
            :: stage[c] == DECIDED || stage[c] == STOPPED || stage[c] == STORED -> stage[c] = RUNNING
            :: else
            fi;
            fenced[c] = 0;
            struck = 1;
            recovering = 1;
            printf("fate: a cluster fails\n")
         :: else
         fi;
         c = 0
       }
     }
  od
}

/* A recovery. */
inline fence(c) {
  fenced[c] = 1;
  alive[c] = 0; /* all of it ends */
  if
  :: stage[c] != RUNNING ->
     stage[c] = RUNNING
  :: else
  fi;
#ifndef LEAVES_UNDECIDED
  late[c] = 0;
#endif
  j = 0;
  do
  :: j < C ->
     shut[FLOW(c, j)] = 1;
     shut[FLOW(j, c)] = 1;
     held[FLOW(c, j)] = 0;
     held[FLOW(j, c)] = 0;
     do
     :: len(link[FLOW(j, c)]) > 0 -> link[FLOW(j, c)]?number, id, sn, inc
     :: else -> break
     od;
#ifndef NO_FENCE
     do
     :: len(link[FLOW(c, j)]) > 0 -> link[FLOW(c, j)]?number, id, sn, inc
     :: else -> break
     od;
#endif
     j++
  :: else -> break
  od;
  j = 0;
  number = 0;
  id = 0;
  sn = 0;
  inc = 0
}

/* Members that are about to commit have done so, or never will. */
inline ask(c) {
  if
  :: stage[c] == DECIDED -> begin_interval(c)
  :: stage[c] == STORED || stage[c] == STOPPED ->
     CLAIM_VOID(c, now[c].sn + 1);
     stage[c] = RUNNING /* is asked for again */
  :: else
  fi;
  i = 0;
  do
  :: i < C ->
     answer[FLOW(c, i)] = now[c].depends[i];
     i++
  :: else -> break
  od;
  i = 0
}

#define STAYS(c) (place[c] == store[c].count)
#define STATE_DEPENDS(j, i) (STAYS(j) -> answer[FLOW(j, i)] : store[j].clc[(STAYS(j) -> 0 : place[j])].depends[i])
#define LINE_SN(i) store[i].clc[(STAYS(i) -> 0 : place[i])].sn
#ifdef GREATER
#define ORPHAN(j, i) (!STAYS(i) && STATE_DEPENDS(j, i) > LINE_SN(i))
#else
#define ORPHAN(j, i) (!STAYS(i) && STATE_DEPENDS(j, i) >= LINE_SN(i))
#endif

/* Of `place`, where failed clusters are at their last CLC. */
inline settle_line() {
  changed = 1;
  do
  :: changed ->
     changed = 0;
     j = 0;
     do
     :: j < C ->
        i = 0;
        do
        :: i < C ->
           if
           :: i != j && ORPHAN(j, i) ->
              HOLDS(place[j] > store[j].oldest, "violated: a CLC that a recovery needs is there\n");
              place[j]--;
              changed = 1;
              i = 0
           :: else -> i++
           fi
        :: else -> break
        od;
        j++
     :: else -> break
     od
  :: else -> break
  od;
  i = 0;
  j = 0
}

inline start_line() {
  j = 0;
  do
  :: j < C ->
     place[j] = store[j].count;
     if
     :: bound[j] -> place[j] = to[j]
     :: !bound[j] && !alive[j] -> place[j]--
     :: else
     fi;
     j++
  :: else -> break
  od;
  j = 0
}

inline publish() {
  j = 0;
  do
  :: j < C ->
     if
     :: !STAYS(j) ->
        bound[j] = 1;
        to[j] = place[j]
     :: else
     fi;
     place[j] = 0;
     j++
  :: else -> break
  od;
  j = 0
}

#if CLUSTERS == 2
#define ANY_BUT_FENCED ((bound[0] && !fenced[0]) || (bound[1] && !fenced[1]))
#else
#define ANY_BUT_FENCED ((bound[0] && !fenced[0]) || (bound[1] && !fenced[1]) || (bound[2] && !fenced[2]))
#endif

/* SN of a cluster once the line is reached. */
#define NEW_SN(i) (bound[i] -> store[i].clc[(bound[i] -> to[i] : 0)].sn : now[i].sn)

inline restore(c) {
  copy_image(store[c].clc[to[c]], now[c]);
  store[c].count = to[c] + 1;
  incarnation[c]++;
  alive[c] = 1;
  stage[c] = RUNNING;
  i = 0;
  do
  :: i < C ->
     now[c].depends[i] = store[c].clc[to[c]].after[i];
     if
     :: i != c && now[c].depends[i] > NEW_SN(i) -> now[c].depends[i] = NEW_SN(i)
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0;
  bound[c] = 0;
  printf("recovery: a cluster is back\n")
}

/* The receiver tells how many it has; the sender has the rest in its log. */
inline join_links() {
  i = 0;
  do
  :: i < C ->
     j = 0;
     do
     :: j < C ->
        if
        :: shut[FLOW(i, j)] && SENDS(i, j) ->
           HOLDS(now[j].executed[i] <= now[i].posted[j], "violated: each message has a sender\n");
           number = 0;
           do
           :: number < now[j].executed[i] ->
              HOLDS(now[j].seen[SLOT(i, number)] == now[i].id[SLOT(j, number)],
                    "violated: messages are executed once, in order\n");
              number++
           :: else -> break
           od;
           HOLDS(now[j].executed[i] >= now[i].trimmed[j], "violated: a log entry that a recovery needs is there\n");
#ifdef RESENDS_UNNUMBERED
           number = now[i].trimmed[j];
#endif
#ifdef PAPERS_ACK
           number = now[i].trimmed[j];
#endif
           do
           :: number < now[i].posted[j] ->
#ifdef PAPERS_ACK
              if
              :: acknowledged[FLOW(i, j) * M + number] == 0 || acknowledged[FLOW(i, j) * M + number] > now[j].sn ->
                 link[FLOW(i, j)]!number, now[i].id[SLOT(j, number)], now[i].at[SLOT(j, number)], incarnation[i]
              :: else
              fi;
#else
              link[FLOW(i, j)]!number, now[i].id[SLOT(j, number)], now[i].at[SLOT(j, number)], incarnation[i];
#endif
              number++
           :: else -> break
           od;
           number = 0
        :: else
        fi;
        shut[FLOW(i, j)] = 0;
        j++
     :: else -> break
     od;
     i++
  :: else -> break
  od;
  i = 0;
  j = 0
}

proctype recovery() {
  byte c, i, j, k, number, id, sn, inc;
  bit changed;
end:
  do
  :: recovering ->
again: skip;
     d_step {
       struck = 0;
       c = 0;
#ifdef UNBOUND
       do
       :: c < C ->
          bound[c] = 0;
          c++
       :: else -> break
       od;
       c = 0
#endif
     };
more: skip;
     do
     :: c < C ->
        atomic {
          FOUND((!alive[c] || bound[c]) && !fenced[c] && len(link[FLOW(c, (c + 1) % C)]) > 0, "found: a dead incarnation's frame\n");
          d_step {
            if
            :: (!alive[c] || bound[c]) && !fenced[c] -> fence(c)
            :: else
            fi;
            c++
          }
        }
     :: else -> break
     od;
     c = 0;
     do
     :: c < C ->
        d_step {
          if
          :: alive[c] -> ask(c)
          :: else
          fi;
          c++
        }
     :: else -> break
     od;
     c = 0;
     if
     :: struck -> goto again
     :: !struck ->
        d_step {
          if
          :: !struck ->
             start_line();
             settle_line();
             publish()
          :: else
          fi
        }
     fi;
     if
     :: struck -> goto again
     :: !struck && ANY_BUT_FENCED -> goto more
     :: else
     fi;
     do
     :: c < C && !struck ->
        d_step {
          if
          :: bound[c] && !struck ->
             restore(c)
          :: else
          fi;
          c++
        }
     :: else -> break
     od;
     c = 0;
     if
     :: struck -> goto again
     :: else
     fi;
     FOUND(!struck && now[1].executed[0] < now[0].posted[1] && incarnation[0] > 0 && incarnation[1] > 0,
           "found: a message over the line of clusters that both went back\n");
     d_step {
       if
       :: !struck ->
          join_links();
          do
          :: c < C ->
             fenced[c] = 0;
             answer[FLOW(c, 0)] = 0;
             answer[FLOW(c, 1)] = 0;
#if CLUSTERS == 3
             answer[FLOW(c, 2)] = 0;
#endif
             to[c] = 0;
             c++
          :: else -> break
          od;
          c = 0;
          recovering = 0
       :: else
       fi
     };
     if
     :: struck -> goto again
     :: else
     fi
  od
}

/* Each cluster's failure is simulated; what no failure needs goes. */
inline collect() {
  f = 0;
  do
  :: f < C ->
     j = 0;
     do
     :: j < C ->
        i = 0;
        do
        :: i < C ->
           answer[FLOW(j, i)] = now[j].depends[i];
           i++
        :: else -> break
        od;
        place[j] = (j == f -> store[j].count - 1 : store[j].count);
        j++
     :: else -> break
     od;
     j = 0;
     i = 0;
     settle_line();
     do
     :: j < C ->
        if
        :: worst[j] > place[j] -> worst[j] = place[j]
        :: else
        fi;
        place[j] = 0;
        j++
     :: else -> break
     od;
     j = 0;
     f++
  :: else -> break
  od;
  f = 0;
  do
  :: j < C ->
#ifdef KEEPS_LAST
     worst[j] = store[j].count - 1;
#endif
     dropped = dropped || worst[j] > store[j].oldest;
     store[j].oldest = worst[j];
     i = 0;
     do
     :: i < C ->
        answer[FLOW(j, i)] = 0;
        if
        :: i != j ->
#ifdef TRIMS_RECEIVED
           now[i].trimmed[j] = now[j].executed[i];
#else
           now[i].trimmed[j] = store[j].clc[worst[j]].executed[i];
#endif
        :: else
        fi;
        i++
     :: else -> break
     od;
     i = 0;
     j++
  :: else -> break
  od;
  j = 0;
  worst[0] = 255;
  worst[1] = 255;
#if CLUSTERS == 3
  worst[2] = 255
#endif
}

#if CLUSTERS == 2
#define ALL_RUN (RUNS(0) && RUNS(1))
#else
#define ALL_RUN (RUNS(0) && RUNS(1) && RUNS(2))
#endif

proctype collector() {
  byte f, i, j, worst[C] = 255;
  bit changed, dropped;
end:
  do
  :: atomic {
       collections < COLLECTIONS && !recovering && ALL_RUN ->
       d_step {
         collections++;
         collect();
         printf("collector: collected\n")
       };
       FOUND(dropped, "found: a collection of something\n");
       dropped = 0
     }
  od
}

/* The end of every run: all has arrived. */
proctype end_of_run() {
  byte i, j, number;
  timeout ->
  d_step {
    do
    :: i < C ->
       j = 0;
       do
       :: j < C ->
          if
          :: SENDS(i, j) ->
             HOLDS(now[i].posted[j] == M && now[j].executed[i] == M, "violated: at the end all has arrived\n");
             number = 0;
             do
             :: number < M ->
                HOLDS(now[j].seen[SLOT(i, number)] == now[i].id[SLOT(j, number)],
                      "violated: messages are executed once, in order\n");
                number++
             :: else -> break
             od
          :: else
          fi;
          j++
       :: else -> break
       od;
       i++
    :: else -> break
    od
  }
}

init {
  byte i, j;
  atomic {
    do
    :: i < C ->
       alive[i] = 1;
       stage[i] = RUNNING;
       now[i].sn = 1;
       store[i].clc[0].sn = 1;
       store[i].count = 1;
       j = 0;
       do
       :: j < C ->
          if
          :: SENDS(i, j) ->
             run program(i, j);
             run border(i, j)
          :: else
          fi;
          j++
       :: else -> break
       od;
       run committer(i);
       i++
    :: else -> break
    od;
    run fate();
    run recovery();
    run collector();
    run end_of_run();
    i = 0;
    j = 0
  }
}
