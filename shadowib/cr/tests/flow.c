/* What waits at a checkpoint for a receive, for a state or for room: it stays where it is, and runs once. */
#include <string.h>
#include <unistd.h>

#include "scenario.h"

enum { kBytes = 64, kPlaces = 256 };

/* Memory: what is sent, what is received, what is written to; a place for each number. */
static char* sent(uint64_t n) { return memory + n * kBytes; }
static char* received(uint64_t n) { return sent(n) + kPlaces * kBytes; }
static char* written(uint64_t n) { return sent(n) + 2 * kPlaces * kBytes; }
static const size_t kAll = 3 * kPlaces * kBytes;

static int is_full_of(const char* place, int c) {
  char wanted[kBytes];
  memset(wanted, c, kBytes);
  return memcmp(place, wanted, kBytes) == 0;
}

/* Receive 100 + n fills its own place. */
static void take_in(struct ibv_qp* qp, uint64_t n) {
  struct ibv_sge sge = {(uintptr_t)received(n), kBytes, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = 100 + n, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* Request n of A, full of `c`; one that writes, writes to that place. Returns what ibv_post_send does. */
static int try_to_give(enum ibv_wr_opcode opcode, uint64_t n, int c, unsigned flags, char* to) {
  struct ibv_sge sge = {(uintptr_t)sent(n), kBytes, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = n, .sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad = NULL;
  memset(sent(n), c, kBytes);
  wr.send_flags = flags;
  wr.wr.rdma.remote_addr = (uintptr_t)to;
  wr.wr.rdma.rkey = mr->rkey;
  return ibv_post_send(a, &wr, &bad);
}

static void give(enum ibv_wr_opcode opcode, uint64_t n, int c, char* to) {
  CHECK(try_to_give(opcode, n, c, IBV_SEND_SIGNALED, to) == 0);
}

static void arrives(uint64_t n, int c) {
  EXPECT(receive_cq, 100 + n, IBV_WC_SUCCESS);
  CHECK(is_full_of(received(n), c));
}

/* Nothing completes for a while, and `place` stays as it is. */
static void stays(const char* place, int c) {
  for (double end = now() + 0.1; now() < end; usleep(1000)) {
    CHECK(is_full_of(place, c));
    expect_nothing_more();
  }
}

static enum ibv_qp_state state_of(struct ibv_qp* qp) {
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
  return attr.qp_state;
}

/* For what no completion tells of. */
static void becomes(const char* place, int c) {
  for (double end = now() + any_time; !is_full_of(place, c);) CHECK(now() < end);
}

/* Both kinds of checkpoint, and one of what a restart has built. */
enum { kCheckpoints = 3 };
static void take_checkpoint_number(int n) {
  if (n == 1)
    checkpoint_and_kill();
  else
    checkpoint_and_go_on();
}

/* Two writes to one buffer, each of which takes a receive: the second waits until the program has read the first. */
static void receives_as_flow_control(void) {
  make_pair(kAll);
  take_in(b, 1);
  give(IBV_WR_RDMA_WRITE_WITH_IMM, 1, 'a', written(0));
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  give(IBV_WR_RDMA_WRITE_WITH_IMM, 2, 'b', written(0));
  for (int i = 0; i < kCheckpoints; ++i) {
    take_checkpoint_number(i);
    stays(written(0), 'a');
  }
  take_in(b, 2);
  EXPECT(receive_cq, 102, IBV_WC_SUCCESS);
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  CHECK(is_full_of(written(0), 'b'));
  expect_nothing_more();
}

/* What is behind a message that waits for a receive comes after it. */
static void write_behind_a_send(void) {
  make_pair(kAll);
  give(IBV_WR_SEND, 1, 'a', NULL);
  give(IBV_WR_RDMA_WRITE, 2, 'b', written(0));
  give(IBV_WR_SEND, 3, 'c', NULL);
  give(IBV_WR_RDMA_WRITE, 4, 'd', written(0));
  for (int i = 0; i < kCheckpoints; ++i) {
    take_checkpoint_number(i);
    stays(written(0), 0);
  }
  take_in(b, 1);
  arrives(1, 'a');
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  stays(written(0), 'b');
  take_in(b, 2);
  arrives(2, 'c');
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  EXPECT(send_cq, 4, IBV_WC_SUCCESS);
  CHECK(is_full_of(written(0), 'd'));
  expect_nothing_more();
}

/* Who may not be written to at all is not, not even with nothing: that would be the end of both queue pairs. */
static void no_access(void) {
  qp_access = 0;
  make_pair(kAll);
  for (uint64_t n = 1; n <= 3; ++n) take_in(b, n);
  for (uint64_t n = 1; n <= 5; ++n) CHECK(try_to_give(IBV_WR_SEND, n, (int)n, 0, NULL) == 0);
  for (int i = 0; i < kCheckpoints; ++i) {
    take_checkpoint_number(i);
    CHECK(state_of(a) == IBV_QPS_RTS && state_of(b) == IBV_QPS_RTS);
  }
  for (uint64_t n = 4; n <= 6; ++n) take_in(b, n);
  for (uint64_t n = 1; n <= 5; ++n) arrives(n, (int)n);
  give(IBV_WR_SEND, 6, 6, NULL);
  arrives(6, 6);
  EXPECT(send_cq, 6, IBV_WC_SUCCESS);
  CHECK(state_of(a) == IBV_QPS_RTS && state_of(b) == IBV_QPS_RTS);
  expect_nothing_more();
  /* As it would have been. */
  struct ibv_send_wr nothing = {.wr_id = 7, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
  take_in(b, 7);
  CHECK(ibv_post_send(a, &nothing, &bad) == 0);
  struct ibv_wc wc = {.wr_id = ~0ull};
  for (double end = now() + any_time; now() < end && ibv_poll_cq(send_cq, 1, &wc) == 0;) continue;
  CHECK(wc.wr_id == 7 && (wc.status == IBV_WC_REM_INV_REQ_ERR || wc.status == IBV_WC_REM_ACCESS_ERR));
  CHECK(state_of(a) == IBV_QPS_ERR && state_of(b) == IBV_QPS_ERR);
}

/* A drained send queue keeps what was posted to it until it is let go. */
static void hold_and_let_go(uint64_t n, int checkpoints) {
  memset(written(0), 0, kBytes);
  take_in(b, n);
  to_state(a, IBV_QPS_SQD);
  give(IBV_WR_SEND, n, (int)n, NULL);
  give(IBV_WR_RDMA_WRITE, n + 1, (int)n + 1, written(0));
  stays(written(0), 0);
  for (int i = 0; i < checkpoints; ++i) {
    take_checkpoint_number(i);
    stays(written(0), 0);
    CHECK(state_of(a) == IBV_QPS_SQD);
  }
  to_state(a, IBV_QPS_RTS);
  arrives(n, (int)n);
  EXPECT(send_cq, n, IBV_WC_SUCCESS);
  EXPECT(send_cq, n + 1, IBV_WC_SUCCESS);
  CHECK(is_full_of(written(0), (int)n + 1));
  expect_nothing_more();
}

static void held(void) {
  make_pair(kAll);
  hold_and_let_go(1, 0);
  hold_and_let_go(3, kCheckpoints);
  hold_and_let_go(5, 0);
}

/* A message to a peer that is not ready to receive waits for it, longer than any checkpoint takes. */
static void peer_in_init(void) {
  open_device();
  allocate(kAll);
  a = create_queue_pair(NULL);
  b = create_queue_pair(NULL);
  ack_timeout = 18; /* 1 s, eight times: while the peer does not answer, the sender must not lose patience */
  connect_to(a, lid, b->qp_num);
  for (uint64_t n = 1; n <= 3; ++n) take_in(b, n);
  give(IBV_WR_SEND, 1, 'a', NULL);
  give(IBV_WR_RDMA_WRITE, 2, 'b', written(0));
  for (int i = 0; i < kCheckpoints; ++i) {
    take_checkpoint_number(i);
    stays(written(0), 0);
    CHECK(state_of(a) == IBV_QPS_RTS && state_of(b) == IBV_QPS_INIT);
  }
  connect_to(b, lid, a->qp_num);
  arrives(1, 'a');
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  stays(written(0), 'b');
  give(IBV_WR_SEND, 3, 'c', NULL);
  arrives(2, 'c');
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  expect_nothing_more();
}

/* A send queue is full when it says so, and holds what it has taken. */
enum { kAsked = 16, kMany = 200 };

static uint32_t capacity_of(struct ibv_qp* qp) {
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  CHECK(ibv_query_qp(qp, &attr, IBV_QP_CAP, &init) == 0);
  return attr.cap.max_send_wr;
}

static void make_small_pair(void) {
  send_depth = kAsked;
  make_pair(kAll);
}

static void full_queue(void) {
  make_small_pair();
  const uint32_t capacity = capacity_of(a);
  CHECK(capacity >= kAsked && capacity < kMany);
  uint64_t last = 1;
  CHECK(try_to_give(IBV_WR_SEND, 1, 1, 0, NULL) == 0); /* no receive: it and all behind it wait */
  while (last < kMany && try_to_give(IBV_WR_RDMA_WRITE, last + 1, (int)last + 1, 0, written(last + 1)) == 0) ++last;
  CHECK(last >= capacity && last < kMany);
  for (int i = 0; i < kCheckpoints; ++i) {
    take_checkpoint_number(i);
    stays(written(2), 0);
    CHECK(capacity_of(a) >= capacity);
  }
  take_in(b, 1);
  arrives(1, 1);
  while (try_to_give(IBV_WR_RDMA_WRITE, last + 1, 1, IBV_SEND_SIGNALED, written(1)) != 0) continue;
  EXPECT(send_cq, last + 1, IBV_WC_SUCCESS);
  for (uint64_t n = 1; n <= last; ++n) CHECK(is_full_of(written(n), (int)n));
  expect_nothing_more();
}

/* More than the queue holds, since it empties meanwhile, and no completion wanted of any. */
static void write_many(int event, void* unused) {
  (void)unused;
  if (event != 0) return; /* 0: just before the threads are stopped */
  for (uint64_t n = 1; n <= kMany; ++n)
    for (double end = now() + any_time; try_to_give(IBV_WR_RDMA_WRITE, n, (int)n, 0, written(n)) != 0;)
      CHECK(now() < end);
}

static void many_unsignaled(void) {
  make_small_pair();
  before_checkpoint(write_many);
  checkpoint_and_kill();
  give(IBV_WR_RDMA_WRITE, kMany + 1, 'z', written(0));
  EXPECT(send_cq, kMany + 1, IBV_WC_SUCCESS);
  for (uint64_t n = 1; n <= kMany; ++n) CHECK(is_full_of(written(n), (int)n));
  expect_nothing_more();
}

/* Requests of every kind, of which no completion is wanted. Of the messages the last two wait for receives. */
static void unsignaled_kinds(void) {
  qp_access |= IBV_ACCESS_REMOTE_READ;
  make_pair(kAll);
  mr = ibv_reg_mr(pd, memory, kAll, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  CHECK(mr != NULL);
  memset(written(9), 'r', kBytes);
  for (uint64_t n = 1; n <= 20; ++n) CHECK(try_to_give(IBV_WR_RDMA_WRITE, n, (int)n, 0, written(n + 20)) == 0);
  CHECK(try_to_give(IBV_WR_RDMA_READ, 21, 0, 0, written(9)) == 0);
  for (uint64_t n = 1; n <= 20; ++n) take_in(b, n);
  for (uint64_t n = 22; n <= 43; ++n) CHECK(try_to_give(IBV_WR_SEND, n, (int)n, 0, NULL) == 0);
  for (uint64_t n = 1; n <= 20; ++n) arrives(n, (int)n + 21);
  for (uint64_t n = 1; n <= 20; ++n) CHECK(is_full_of(written(n + 20), (int)n));
  becomes(sent(21), 'r'); /* a message behind a read may arrive before the read's data do: none has a fence */
  memset(written(9), '-', kBytes);
  for (uint64_t n = 1; n <= 20; ++n) memset(written(n + 20), '-', kBytes);
  for (int i = 0; i < kCheckpoints; ++i) {
    take_checkpoint_number(i);
    for (uint64_t n = 1; n <= 20; ++n) CHECK(is_full_of(written(n + 20), '-'));
    CHECK(is_full_of(sent(21), 'r'));
  }
  for (uint64_t n = 21; n <= 23; ++n) take_in(b, n);
  for (uint64_t n = 21; n <= 22; ++n) arrives(n, (int)n + 21);
  give(IBV_WR_SEND, 44, 44, NULL);
  arrives(23, 44);
  EXPECT(send_cq, 44, IBV_WC_SUCCESS);
  for (uint64_t n = 1; n <= 20; ++n) CHECK(is_full_of(written(n + 20), '-'));
  expect_nothing_more();
}

/* A send queue is held behind messages that nobody wants to hear of. */
static void unsignaled_and_held(void) {
  make_pair(kAll);
  for (uint64_t n = 1; n <= 9; ++n) take_in(b, n);
  for (uint64_t n = 1; n <= 4; ++n) CHECK(try_to_give(IBV_WR_SEND, n, (int)n, 0, NULL) == 0);
  for (uint64_t n = 1; n <= 4; ++n) arrives(n, (int)n);
  to_state(a, IBV_QPS_SQD);
  for (uint64_t n = 5; n <= 8; ++n) CHECK(try_to_give(IBV_WR_SEND, n, (int)n, 0, NULL) == 0);
  for (int i = 0; i < kCheckpoints; ++i) {
    take_checkpoint_number(i);
    stays(received(5), 0);
  }
  to_state(a, IBV_QPS_RTS);
  give(IBV_WR_SEND, 9, 9, NULL);
  for (uint64_t n = 5; n <= 9; ++n) arrives(n, (int)n);
  EXPECT(send_cq, 9, IBV_WC_SUCCESS);
  expect_nothing_more();
}

/* The sender has no patience: one that is refused twice, 0.7 s apart, is an error. The receiver is stopped for longer
 * while the sender runs. Messages are numbered, and taken in once and in order. */
enum { kWindow = 4, kOver = 0xffffffff };

static int exists(const char* file) { return access(file, F_OK) == 0; }

static void impatient_sender(void) {
  int peer_lid;
  uint32_t peer, last = 0;
  rnr_retry = 1;
  min_rnr_timer = 0; /* the longest */
  open_device();
  allocate(kAll);
  a = create_queue_pair(NULL);
  tell("sender", a->qp_num);
  await("receiver", &peer_lid, &peer);
  connect_to(a, peer_lid, peer);
  await("ready", &peer_lid, &peer);
  for (int over = 0; !over; ++last) {
    over = exists("enough");
    const uint32_t number = over ? kOver : last;
    memcpy(sent(0), &number, sizeof(number));
    struct ibv_sge sge = {(uintptr_t)sent(0), kBytes, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = last, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    wr.send_flags = IBV_SEND_SIGNALED;
    CHECK(ibv_post_send(a, &wr, &bad) == 0);
    EXPECT(send_cq, last, IBV_WC_SUCCESS);
    if (last == 100) tell("under way", 0);
    if (last % 100 == 0) usleep(1000);
  }
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  CHECK(ibv_query_qp(a, &attr, IBV_QP_RNR_RETRY, &init) == 0 && attr.rnr_retry == 1);
}

static void slow_receiver(void) {
  int peer_lid;
  uint32_t peer, number = 0;
  rnr_retry = 1;
  min_rnr_timer = 0;
  open_device();
  allocate(kAll);
  a = create_queue_pair(NULL);
  for (uint64_t n = 0; n < kWindow; ++n) take_in(a, n);
  tell("receiver", a->qp_num);
  await("sender", &peer_lid, &peer);
  connect_to(a, peer_lid, peer);
  tell("ready", 0);
  for (uint32_t next = 0; number != kOver; ++next) {
    struct ibv_wc wc = {.wr_id = ~0ull};
    for (double end = now() + any_time; now() < end && ibv_poll_cq(receive_cq, 1, &wc) == 0;) continue;
    CHECK(wc.wr_id == 100 + next % kWindow && wc.status == IBV_WC_SUCCESS);
    memcpy(&number, received(next % kWindow), sizeof(number));
    CHECK(number == next || number == kOver);
    take_in(a, next % kWindow);
  }
  expect_nothing_more();
}

const struct scenario flow_scenarios[] = {{"receives_as_flow_control", receives_as_flow_control},
                                          {"write_behind_a_send", write_behind_a_send},
                                          {"no_access", no_access},
                                          {"held", held},
                                          {"peer_in_init", peer_in_init},
                                          {"full_queue", full_queue},
                                          {"many_unsignaled", many_unsignaled},
                                          {"unsignaled_kinds", unsignaled_kinds},
                                          {"unsignaled_and_held", unsignaled_and_held},
                                          {"impatient_sender", impatient_sender},
                                          {"slow_receiver", slow_receiver},
                                          {NULL, NULL}};
