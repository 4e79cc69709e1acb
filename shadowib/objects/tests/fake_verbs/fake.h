/* A system's libibverbs for tests of the backend `verbs`: devices whose queue pairs reach each other within the
 * process.
 *
 * Built several times, each another "version and provider" (CMakeLists.txt). Each has names, numbers, keys, LIDs,
 * struct sizes and symbol versions of its own, so nothing of one can be taken for the other's. It has RC queue pairs
 * (SEND, RDMA WRITE, RDMA READ), memory regions, completion queues with channels, async events. A request runs as
 * soon as it can, in the thread that makes it so; one that lacks a receive waits for it without end.
 *
 * FAKE_VERBS_DIR=DIR: while there is a DIR/NAME.slow, its end waits; into DIR/NAME.calls goes a line for each object
 * made; while there is a DIR/NAME.forbidden, any call aborts. */
#pragma once

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#undef ibv_query_port
#undef ibv_reg_mr

/* These make a build another one:
 *
 * - FAKE_NAME (a string), FAKE_DEVICES, FAKE_LID, FAKE_PRIVATE (bytes behind the public part of a struct);
 * - FAKE_READS (READs that a queue pair has under way), FAKE_GIDS (places, of which two are taken);
 * - FAKE_PARTITIONS (places for P_Keys), FAKE_LKEY, FAKE_RKEY (the lowest byte of keys);
 * - FAKE_FLIP: numbers of objects are mixed with it, so one build's first number is the other's second;
 * - FAKE_LAZY, as Linux' rxe: it looks at a send queue that is or was in SQD only when something is posted, taken or
 *   not. It tells unasked that a queue has drained, has more room than it grants, and says so when asked;
 * - FAKE_EXTENDED (contexts have the slots of verbs_context);
 * - FAKE_OLD_SYMBOLS (the functions of libibverbs 1.0 are there too, which take other structs). */

enum { kFakeMost = 4096, kFakeSges = 4 };

typedef struct FakeCq FakeCq;
typedef struct FakeQp FakeQp;

/* Events of a channel or a context, oldest first; the descriptor is readable while there are any. */
typedef struct {
  struct ibv_async_event first[256];
  unsigned head, tail;
} FakeEvents;

typedef struct {
  struct ibv_comp_channel channel;
  char private_part[FAKE_PRIVATE];
  FakeEvents events;
} FakeChannel;

struct FakeCq {
  struct ibv_cq cq;
  char private_part[FAKE_PRIVATE];
  struct ibv_wc* entries; /* a ring of cq.cqe */
  unsigned head, tail;
  int armed; /* 0, 1: for solicited completions and errors, 2: for any */
};

typedef struct {
  struct ibv_mr mr;
  char private_part[FAKE_PRIVATE];
  uint64_t iova;
  int access;
} FakeMr;

typedef struct {
  uint64_t wr_id, remote_address;
  enum ibv_wr_opcode opcode;
  unsigned flags;
  uint32_t rkey, immediate;
  int sges;
  struct ibv_sge sge[kFakeSges];
} FakeRequest;

typedef struct {
  FakeRequest* at; /* a ring of size */
  unsigned size, head, tail;
} FakeQueue;

struct FakeQp {
  struct ibv_qp qp;
  char private_part[FAKE_PRIVATE];
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  FakeQueue sends, receives;
  int draining; /* until it has been looked at or asked for as often as this */
  int asleep;   /* until something is posted */
};

/* Begins every exported function and slot. */
void fake_enter(const char* function);
#define ENTER() fake_enter(__func__)
/* The test has put a file of this name, behind the library's, into the directory. */
int fake_is_marked(const char* how);
void fake_tell(const char* format, ...) __attribute__((format(printf, 1, 2)));

/* One lock for all: a request of one queue pair changes another. */
void fake_lock(void);
void fake_unlock(void);

/* A number for the next object of a kind, from 0x10 on, mixed. Caller holds the lock. */
/* That a completion queue may have: the number in FAKE_VERBS_DIR/NAME.entries, or no limit. */
int fake_most_entries(void);
uint32_t fake_number(uint32_t* made);
uint16_t fake_pkey_at(int index);

void fake_push_event(FakeEvents* events, int fd, const struct ibv_async_event* event);
int fake_pop_event(FakeEvents* events, int fd, struct ibv_async_event* event); /* 0, or -1 with EAGAIN */
FakeEvents* fake_async_events(struct ibv_context* context);

/* Callers hold the lock. */
void fake_complete(struct ibv_cq* cq, const struct ibv_wc* wc, int solicited);
FakeMr* fake_find_mr(uint32_t key, int remote);

/* Slots. */
int fake_poll_cq(struct ibv_cq* cq, int count, struct ibv_wc* wc);
int fake_req_notify_cq(struct ibv_cq* cq, int solicited_only);
int fake_post_send(struct ibv_qp* qp, struct ibv_send_wr* wr, struct ibv_send_wr** bad);
int fake_post_recv(struct ibv_qp* qp, struct ibv_recv_wr* wr, struct ibv_recv_wr** bad);
