/* verbs_check: two processes that exchange everything a reliable connection offers and believe nothing.
 *
 * Per iteration, each side posts one chain of depth + 4 requests and waits for what the other side sent:
 *   depth SENDs        unsignaled but for the last; every fourth with immediate data
 *   one RDMA WRITE     into the peer's inbox, unsignaled; the peer finds it by polling its memory
 *   one FETCH_AND_ADD  of iteration + 1 on the peer's counter; must return the exact sum so far
 *   one COMPARE_SWAP   of iteration -> iteration + 1 on the peer's register; must return iteration
 *   one RDMA READ      of what was written; must be what was written
 * Every byte and sequence number is checked. An inbox slot is sealed by its owner once used up and must keep the seal
 * until its next turn, so that a write done twice is seen, too. */
#ifndef VERBS_CHECK_H
#define VERBS_CHECK_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

struct options {
  const char* host;                 /* the server to connect to; NULL: be the server */
  const char* device;               /* NULL: the first */
  int tcp_port, ib_port, gid_index; /* gid_index < 0: address by LID */
  int ack_timeout;                  /* as of ibv_qp_attr */
  int depth;
  long iterations;
  uint32_t size;
  bool events;   /* wait for completion events instead of polling */
  bool pair;     /* run both sides, the client in a child */
  bool srq;      /* receive from a shared receive queue */
  bool extended; /* post and poll by extended verbs */
  bool one_way;  /* no atomics and no reads */
  long talk_us;  /* keep the TCP connection and talk over it, too, with so much rest between iterations; < 0: no */
};

/* The facts that a side tells the other. */
struct address {
  uint32_t qp_num, psn, lid, rkey;
  uint64_t inbox, counter, reg;
  union ibv_gid gid;
};

#define INBOX_SLOTS 4

struct side {
  struct options options;
  struct ibv_context* context;
  struct ibv_pd* pd;
  struct ibv_mr* mr;
  struct ibv_comp_channel* channel;
  struct ibv_cq* cq;
  struct ibv_cq_ex* cq_ex; /* the same, if extended */
  struct ibv_srq* srq;
  struct ibv_qp* qp;
  struct ibv_port_attr port;
  struct address own, peer;
  uint8_t* memory;
  uint8_t *sends, *receives, *inbox, *outbox, *readback; /* parts of memory */
  uint64_t *counter, *reg, *add_result, *swap_result;
  uint64_t next_receive, next_slot; /* sequence number expected, receive slot it must be in */
  unsigned unacknowledged_events;
  int connection; /* kept if they are to talk */
  bool ping_open; /* a request that only asks whether the peer is there has not completed */
};

/* net.c: addresses over a socket, which is kept until both sides are connected by RDMA, and closed before data moves
 * unless they are to talk. Exits with a message on failure. */
int listen_on(int* port);
int accept_client(int listener);
int connect_to(const char* host, int port);
void exchange(int connection, const struct address* own, struct address* peer);
void finish_exchange(int connection);
void talk(int connection, uint64_t iteration, long rest_us); /* tells the iteration, hears the peer's, rests */

/* objects.c: make, connect and destroy the verbs objects. Exits with a message on failure. */
void make_objects(struct side* s);
void connect_objects(struct side* s);
void destroy_objects(struct side* s);
void post_receive(struct side* s, uint64_t slot);

/* extended.c: posts a chain, polls, creates, by extended verbs if the options say so. As the plain functions. */
int post_chain(struct side* s, struct ibv_send_wr* wr, struct ibv_send_wr** bad);
int poll_some(struct side* s, struct ibv_wc* wc, int capacity);
struct ibv_cq* create_cq_extended(struct side* s, uint32_t entries);
struct ibv_qp* create_qp_extended(struct side* s, const struct ibv_qp_init_attr* init);

/* check.c: runs the iterations; 0 if nothing was wrong. */
int run_iterations(struct side* s);

__attribute__((noreturn, format(printf, 1, 2))) void die(const char* format, ...);

#endif
