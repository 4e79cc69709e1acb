/* Who is who, what there is, and where it is kept: in images or not. */

#ifndef DEPTH
#define DEPTH REQUESTS
#endif
#define IB2TCP 0
#define DEVICE 1

/* A request: twice its opcode, and 1 if it is signaled. */
mtype = { WRITE_WITH_IMM, SEND, FETCH_AND_ADD, RDMA_WRITE }; /* 4, 3, 2, 1 */
#define IS_SIGNALED(r) ((r) & 1)
#define IS_ATOMIC(r) ((r) / 2 == FETCH_AND_ADD)
#define CONSUMES(r) ((r) / 2 >= SEND) /* a receive */

#if SHAPE == 1 /* one queue pair */
#define FLOWS 1
#define MEMBERS 2
#define QUEUES 1
#define SENDER(q) 0
#define RECEIVER(q) 1
#define QUEUE(q) 0 /* the receives a flow takes */
#define HOST(r) 1  /* whose they are */
#elif SHAPE == 2 /* two queue pairs of one peer on a shared receive queue */
#define FLOWS 2
#define MEMBERS 2
#define QUEUES 1
#define SENDER(q) 0
#define RECEIVER(q) 1
#define QUEUE(q) 0
#define HOST(r) 1
#elif SHAPE == 3 /* queue pairs of two peers on a shared receive queue */
#define FLOWS 2
#define MEMBERS 3
#define QUEUES 1
#define SENDER(q) (2 * (q))
#define RECEIVER(q) 1
#define QUEUE(q) 0
#define HOST(r) 1
#else /* both directions of a connection */
#define FLOWS 2
#define MEMBERS 2
#define QUEUES 2
#define SENDER(q) (q)
#define RECEIVER(q) (1 - (q))
#define QUEUE(q) (q)
#define HOST(r) (1 - (r))
#endif
#define MESSAGES (FLOWS * REQUESTS)
#define ENTRIES (2 * MESSAGES) /* of a completion queue */

/* In processes' memory, and so in images. */
typedef Log {      /* of a send queue (objects/work_queue.h), and what its programs know */
  byte head;       /* posted */
  byte retired;    /* behind the last whose completion was taken */
  byte tail;       /* slots before it are free */
  byte frontier;   /* as settled: those from it on have not run */
  byte base;       /* executed_base: the first of this generation's queue pair */
  byte consumed;   /* at the receiver: of this connection's receives, completions taken */
  byte told;       /* the sending program has seen the completions before it */
  byte arrived;    /* the receiving program has seen the messages before it */
#ifdef SPARES
  byte proven;     /* Sparing::proven: those before it have run, by a fence or by the peer's counts */
  byte closed;     /* Sparing::of_checkpoint.at, while this fence is under way */
  byte behind;     /* Sparing::of_message.at, likewise */
#endif
};
Log log[FLOWS];
byte request[MESSAGES]; /* by flow and place */
#ifdef SPARES
bit spared[MESSAGES];   /* it is not signaled, and its signal is not forced */
#define IS_SPARED(q, s) spared[(q) * REQUESTS + (s)]
#else
#define IS_SPARED(q, s) false
#endif
byte found[MESSAGES];   /* what a fetch-and-add found in the receiver's memory, and 1 */
byte result[MESSAGES];  /* the same in the sender's memory; 0: not there yet */
byte ran[FLOWS];        /* those before it have had their effect on the receiver's memory */
byte counter[MEMBERS];  /* that fetch-and-adds add 1 to */
byte posted[QUEUES];    /* receives, by the program */
byte taken[QUEUES];     /* receives whose completion was taken */
byte seen[QUEUES];      /* receives whose completion the program has seen */
bit ready[FLOWS];       /* the receiver's queue pair */
chan refill[MEMBERS] = [ENTRIES] of { byte, byte }; /* completions that were drained */
#define REQ(q, s) request[(q) * REQUESTS + (s)]
#define LEFT(r) (posted[r] - taken[r])
#define GIVEN(q) (log[q].head - log[q].base) /* requests, to this generation's queue pair */

/* Elsewhere, and lost with the processes. */
typedef Wire {     /* counted from the queue pair's creation */
  byte next;       /* to be sent */
  byte acked;
  byte executed;   /* sq_executed */
  byte expected;   /* by the responder */
  bit waiting;     /* the sender was refused */
  bit rnr;         /* the responder has refused */
  bit up;          /* connected, the log's requests posted */
};
Wire wire[FLOWS];
byte used[QUEUES]; /* receives, by messages */
chan requests[FLOWS] = [WINDOW] of { byte };
chan answers[FLOWS] = [REQUESTS + 1] of { byte }; /* what is acknowledged, or REFUSED and what is */
chan results[FLOWS] = [REQUESTS] of { byte, byte }; /* which fetch-and-add, what it found */
chan cq[MEMBERS] = [ENTRIES] of { byte, byte, byte }; /* twice the flow, 1 more for a receive; request; receive */
#define REFUSED 16
bit device = BACKEND;

/* The job. */
#define RUNNING 0
#define STOPPING 1
#define SETTLING 2
#define QUIET 3 /* all have settled */
#define REBUILDING 4
#define REFILLING 5
#define RESUMING 6
byte stage, checkpoints;
bit runs[MEMBERS];   /* the program's threads do */
bit done[MEMBERS];   /* with this stage */
bit inside[MEMBERS]; /* a thread is in the shim, where none is stopped */

/* As published in this checkpoint. */
bit published[MEMBERS];
byte published_consumed[FLOWS];
byte published_left[QUEUES];

/* For all members, flows, requests of a flow. */
#if MEMBERS == 2
#define ALL(x) (x[0] && x[1])
#define NONE(x) (!x[0] && !x[1])
#define FILL(x, value) x[0] = value; x[1] = value
#else
#define ALL(x) (x[0] && x[1] && x[2])
#define NONE(x) (!x[0] && !x[1] && !x[2])
#define FILL(x, value) x[0] = value; x[1] = value; x[2] = value
#endif
#if FLOWS == 1
#define ANY_FLOW(x) (x(0))
#define EACH_FLOW(x) x(0)
#else
#define ANY_FLOW(x) (x(0) || x(1))
#define EACH_FLOW(x) x(0); x(1)
#endif
#if REQUESTS == 1
#define ANY(x, q) (x(q, 0))
#define SUM(x, q) (x(q, 0))
#elif REQUESTS == 2
#define ANY(x, q) (x(q, 0) || x(q, 1))
#define SUM(x, q) (x(q, 0) + x(q, 1))
#elif REQUESTS == 3
#define ANY(x, q) (x(q, 0) || x(q, 1) || x(q, 2))
#define SUM(x, q) (x(q, 0) + x(q, 1) + x(q, 2))
#else
#define ANY(x, q) (x(q, 0) || x(q, 1) || x(q, 2) || x(q, 3))
#define SUM(x, q) (x(q, 0) + x(q, 1) + x(q, 2) + x(q, 3))
#endif

/* A property; model/check names it by the text. */
#define HOLDS(condition, text) \
  if \
  :: condition \
  :: else -> \
     printf(text); \
     assert(false) \
  fi
