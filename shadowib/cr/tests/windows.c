/* Memory windows: bound, bound elsewhere, invalidated, about to be bound. */
#include <errno.h>
#include <string.h>

#include "scenario.h"

enum { kWindow = 4096, kReach = IBV_ACCESS_REMOTE_WRITE };

static struct ibv_mr* region; /* all of memory, for windows */

static void allocate_region(void) {
  region = ibv_reg_mr(pd, memory, 1 << 16, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  CHECK(region != NULL);
}

static struct ibv_mw* make_window(enum ibv_mw_type type) {
  struct ibv_mw* mw = ibv_alloc_mw(pd, type);
  CHECK(mw != NULL && mw->type == type && mw->pd == pd);
  return mw;
}

/* Window i of the region, by `qp`. Returns the key. */
static uint32_t post_bind(struct ibv_qp* qp, uint64_t id, struct ibv_mw* mw, int i, uint8_t tag) {
  struct ibv_mw_bind_info info = {region, (uintptr_t)memory + (size_t)i * kWindow, kWindow, kReach};
  if (mw->type == IBV_MW_TYPE_1) {
    struct ibv_mw_bind bind = {id, IBV_SEND_SIGNALED, info};
    const uint32_t before = mw->rkey;
    CHECK(ibv_bind_mw(qp, mw, &bind) == 0);
    CHECK(mw->rkey == ibv_inc_rkey(before));
    return mw->rkey;
  }
  struct ibv_send_wr wr = {.wr_id = id, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = (mw->rkey & ~0xffu) | tag;
  wr.bind_mw.bind_info = info;
  CHECK(ibv_post_send(qp, &wr, &bad) == 0);
  return wr.bind_mw.rkey;
}

static uint32_t bind_window(struct ibv_qp* qp, struct ibv_mw* mw, int i, uint8_t tag) {
  const uint32_t key = post_bind(qp, 50, mw, i, tag);
  EXPECT(send_cq, 50, IBV_WC_SUCCESS);
  return key;
}

static void post_invalidation(struct ibv_qp* qp, enum ibv_wr_opcode opcode, uint64_t id, uint32_t key) {
  struct ibv_send_wr wr = {.wr_id = id, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
  wr.invalidate_rkey = key;
  CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void post_write(struct ibv_qp* qp, uint64_t id, int i, uint32_t key) {
  struct ibv_sge sge = {(uintptr_t)memory + 60000, 8, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = (uintptr_t)memory + (size_t)i * kWindow;
  wr.wr.rdma.rkey = key;
  CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* A write through window i arrives. */
static void write_through(struct ibv_qp* qp, int i, uint32_t key) {
  static uint64_t written = 1000;
  memcpy(memory + 60000, &written, 8);
  post_write(qp, 51, i, key);
  EXPECT(send_cq, 51, IBV_WC_SUCCESS);
  CHECK(memcmp(memory + (size_t)i * kWindow, &written, 8) == 0);
  ++written;
}

static void expect_invalidated(uint64_t id, uint32_t key) {
  struct ibv_wc wc = {.wr_id = ~0ull};
  for (double end = now() + any_time; now() < end && ibv_poll_cq(receive_cq, 1, &wc) == 0;) continue;
  CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
  CHECK((wc.wc_flags & IBV_WC_WITH_INV) != 0 && wc.invalidated_rkey == key);
}

static void expect_operation(uint64_t id, enum ibv_wc_opcode opcode) {
  struct ibv_wc wc = {.wr_id = ~0ull};
  for (double end = now() + any_time; now() < end && ibv_poll_cq(send_cq, 1, &wc) == 0;) continue;
  CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS && wc.opcode == opcode);
}

/* What is bound stays bound to the same under the same key, over two restarts, and can be bound elsewhere. */
static void windows(void) {
  struct ibv_cq* cq;
  void* cookie;
  make_pair(1 << 16);
  allocate_region();
  struct ibv_mw *first = make_window(IBV_MW_TYPE_1), *second = make_window(IBV_MW_TYPE_2);
  bind_window(b, first, 3, 0);
  uint32_t key1 = bind_window(b, first, 0, 0), key2 = bind_window(b, second, 1, 0x55);
  write_through(a, 0, key1);
  write_through(a, 1, key2);
  CHECK(ibv_req_notify_cq(receive_cq, 0) == 0);
  for (int round = 0; round < 2; ++round) {
    checkpoint_and_kill();
    expect_nothing_more();
    CHECK(!readable(channel->fd, 0));
    CHECK(first->rkey == key1);
    write_through(a, 0, key1);
    write_through(a, 1, key2);
    CHECK(ibv_dereg_mr(region) == EBUSY);
    key1 = bind_window(b, first, 0, 0);
    write_through(a, 0, key1);
    post_receive(b, 100, 64);
    post_invalidation(a, IBV_WR_SEND_WITH_INV, 1, key2);
    EXPECT(send_cq, 1, IBV_WC_SUCCESS);
    expect_invalidated(100, key2);
    CHECK(ibv_get_cq_event(channel, &cq, &cookie) == 0);
    ibv_ack_cq_events(receive_cq, 1);
    CHECK(ibv_req_notify_cq(receive_cq, 0) == 0);
    key2 = bind_window(b, second, 1, (uint8_t)round);
    write_through(a, 1, key2);
    post_invalidation(b, IBV_WR_LOCAL_INV, 2, key2);
    expect_operation(2, IBV_WC_LOCAL_INV);
    key2 = bind_window(b, second, 2, (uint8_t)(round + 7));
    write_through(a, 2, key2);
    post_invalidation(b, IBV_WR_LOCAL_INV, 3, key2);
    expect_operation(3, IBV_WC_LOCAL_INV);
    key2 = bind_window(b, second, 1, (uint8_t)(round + 17));
    struct ibv_mw* later = make_window(IBV_MW_TYPE_2);
    write_through(a, 3, bind_window(b, later, 3, 9));
    CHECK(ibv_dealloc_mw(later) == 0);
  }
  CHECK(ibv_dealloc_mw(first) == 0 && ibv_dealloc_mw(second) == 0 && ibv_dereg_mr(region) == 0);
  post_write(a, 9, 0, key1);
  EXPECT(send_cq, 9, IBV_WC_REM_ACCESS_ERR);
}

/* Windows made after the restart, whatever key they have. ib2tcp's has seen all of them after so many; those of which
 * peers have to be told begin with 0xe. */
enum { kWindowsEver = 128 * 70, kToldEnough = 32 };

static void late_windows(void) {
  unsigned told = 0;
  make_pair(1 << 16);
  allocate_region();
  checkpoint_and_kill();
  for (unsigned n = 0; n < kWindowsEver && told < kToldEnough; ++n) {
    struct ibv_mw* mw = make_window(IBV_MW_TYPE_2);
    const int is_told = mw->rkey >> 28 == 0xe;
    told += (unsigned)is_told;
    if (is_told || n % 256 == 0) write_through(a, 0, bind_window(b, mw, 0, (uint8_t)n));
    CHECK(ibv_dealloc_mw(mw) == 0);
  }
  CHECK(told == kToldEnough || is_soft_roce());
}

/* What was invalidated, or bound elsewhere, does not come back; each way to end a bind has a pair of its own. */
enum { kLocally, kByPeer, kByPeerUnread, kElsewhere, kWithItsQueuePair, kDeallocated, kWays };

static void closed_windows(void) {
  struct ibv_qp *from[kWays], *to[kWays];
  struct ibv_mw* mw[kWays];
  uint32_t key[kWays];
  open_device();
  allocate(1 << 16);
  allocate_region();
  for (int i = 0; i < kWays; ++i) {
    from[i] = create_queue_pair(NULL);
    to[i] = create_queue_pair(NULL);
    connect_to(from[i], lid, to[i]->qp_num);
    connect_to(to[i], lid, from[i]->qp_num);
    mw[i] = make_window(i == kElsewhere ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
    key[i] = bind_window(to[i], mw[i], i, 3);
    write_through(from[i], i, key[i]);
  }
  post_invalidation(to[kLocally], IBV_WR_LOCAL_INV, 1, key[kLocally]);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  for (int i = kByPeer; i <= kByPeerUnread; ++i) {
    post_receive(to[i], 100 + (uint64_t)i, 64);
    post_invalidation(from[i], IBV_WR_SEND_WITH_INV, 2, key[i]);
    EXPECT(send_cq, 2, IBV_WC_SUCCESS);
    if (i == kByPeer) expect_invalidated(100 + (uint64_t)i, key[i]);
  }
  bind_window(to[kElsewhere], mw[kElsewhere], 8, 0);
  CHECK(ibv_dereg_mr(region) == EBUSY); /* the shim has looked which binds have run */
  to_state(to[kWithItsQueuePair], IBV_QPS_RESET);
  to_init(to[kWithItsQueuePair]);
  connect_to(to[kWithItsQueuePair], lid, from[kWithItsQueuePair]->qp_num);
  to_state(from[kWithItsQueuePair], IBV_QPS_RESET);
  to_init(from[kWithItsQueuePair]);
  connect_to(from[kWithItsQueuePair], lid, to[kWithItsQueuePair]->qp_num);
  CHECK(ibv_dealloc_mw(mw[kDeallocated]) == 0);
  checkpoint_and_kill();
  expect_invalidated(100 + kByPeerUnread, key[kByPeerUnread]);
  expect_nothing_more();
  write_through(from[kElsewhere], 8, mw[kElsewhere]->rkey);
  for (int i = 0; i < kWays; ++i) {
    post_write(from[i], 4, i, key[i]);
    EXPECT(send_cq, 4, IBV_WC_REM_ACCESS_ERR);
  }
}

/* Requests that have not run at the checkpoint run after it, in their order: until then what was bound is bound. */
static void binds_to_come(void) {
  make_pair(1 << 16);
  allocate_region();
  struct ibv_mw *bound = make_window(IBV_MW_TYPE_2), *next = make_window(IBV_MW_TYPE_2);
  struct ibv_mw* first = make_window(IBV_MW_TYPE_1);
  const uint32_t key = bind_window(b, bound, 0, 1), key_before = bind_window(b, first, 1, 0);
  post(b, IBV_WR_SEND, 1, 64, 0); /* no receive at A: it and all behind it wait */
  post_invalidation(b, IBV_WR_LOCAL_INV, 2, key);
  const uint32_t key_again = post_bind(b, 3, bound, 2, 2);
  const uint32_t key_next = post_bind(b, 4, next, 3, 3);
  const uint32_t key_after = post_bind(b, 5, first, 4, 0);
  post(b, IBV_WR_SEND, 6, 64, 0);
  checkpoint_and_kill();
  expect_nothing_more();
  CHECK(first->rkey == key_after);
  write_through(a, 0, key);
  write_through(a, 1, key_before);
  CHECK(ibv_dealloc_mw(next) == EBUSY && ibv_dereg_mr(region) == EBUSY);
  checkpoint_and_kill();
  write_through(a, 0, key);
  write_through(a, 1, key_before);
  post_receive(a, 100, 64);
  post_receive(a, 101, 64);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  expect_operation(2, IBV_WC_LOCAL_INV);
  expect_operation(3, IBV_WC_BIND_MW);
  expect_operation(4, IBV_WC_BIND_MW);
  expect_operation(5, IBV_WC_BIND_MW);
  EXPECT(send_cq, 6, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 100, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  write_through(a, 2, key_again);
  write_through(a, 3, key_next);
  write_through(a, 4, key_after);
  CHECK(ibv_dealloc_mw(next) == 0);
  post_write(a, 9, 1, key_before);
  EXPECT(send_cq, 9, IBV_WC_REM_ACCESS_ERR);
}

/* A window of type 1 that was bound to nothing stays so. */
static void unbound_window(void) {
  make_pair(1 << 16);
  allocate_region();
  struct ibv_mw* mw = make_window(IBV_MW_TYPE_1);
  const uint32_t key = bind_window(b, mw, 0, 0);
  write_through(a, 0, key);
  struct ibv_mw_bind nowhere = {3, IBV_SEND_SIGNALED, {NULL, 0, 0, 0}};
  CHECK(ibv_bind_mw(b, mw, &nowhere) == 0);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  checkpoint_and_kill();
  post_write(a, 4, 0, key);
  EXPECT(send_cq, 4, IBV_WC_REM_ACCESS_ERR);
}

/* That a window is bound again is not to be seen, even by who awaits an event of the same completion queue. */
static void armed_windows(void) {
  struct ibv_cq* cq;
  void* cookie;
  open_device();
  allocate(1 << 16);
  allocate_region();
  struct ibv_cq* sends = send_cq;
  send_cq = receive_cq;
  b = create_queue_pair(NULL);
  send_cq = sends;
  a = create_queue_pair(NULL);
  connect_to(a, lid, b->qp_num);
  connect_to(b, lid, a->qp_num);
  struct ibv_mw* mw = make_window(IBV_MW_TYPE_2);
  const uint32_t key = post_bind(b, 1, mw, 0, 1);
  EXPECT(receive_cq, 1, IBV_WC_SUCCESS);
  post_receive(b, 100, 64);
  CHECK(ibv_req_notify_cq(receive_cq, 0) == 0);
  checkpoint_and_kill();
  CHECK(!readable(channel->fd, 300));
  expect_nothing_more();
  write_through(a, 0, key);
  CHECK(!readable(channel->fd, 0));
  post_invalidation(a, IBV_WR_SEND_WITH_INV, 2, key);
  CHECK(readable(channel->fd, 1000 * any_time));
  CHECK(ibv_get_cq_event(channel, &cq, &cookie) == 0 && cq == receive_cq);
  ibv_ack_cq_events(receive_cq, 1);
  expect_invalidated(100, key);
}

/* A peer's invalidation waits for a receive. */
static void invalidation_to_come(void) {
  make_pair(1 << 16);
  allocate_region();
  struct ibv_mw* mw = make_window(IBV_MW_TYPE_2);
  const uint32_t key = bind_window(b, mw, 0, 1);
  post_write(a, 1, 0, key);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  post_invalidation(a, IBV_WR_SEND_WITH_INV, 2, key);
  post_write(a, 3, 0, key);
  checkpoint_and_kill();
  expect_nothing_more();
  post_receive(b, 100, 64);
  expect_invalidated(100, key);
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  EXPECT(send_cq, 3, IBV_WC_REM_ACCESS_ERR);
}

/* Two processes: the owner binds, the writer writes, also what waits for a receive of the owner's at the checkpoint.
 */
static uint32_t await_key(const char* file) {
  int unused;
  uint32_t key;
  await(file, &unused, &key);
  return key;
}

static void window_owner(void) {
  int peer_lid;
  uint32_t number;
  open_device();
  allocate(1 << 16);
  allocate_region();
  b = create_queue_pair(NULL);
  struct ibv_mw *first = make_window(IBV_MW_TYPE_1), *second = make_window(IBV_MW_TYPE_2);
  tell("owner", b->qp_num);
  await("writer", &peer_lid, &number);
  connect_to(b, peer_lid, number);
  tell("first", bind_window(b, first, 0, 0));
  tell("second", bind_window(b, second, 1, 5));
  tell("low", (uint32_t)(uintptr_t)memory);
  tell("high", (uint32_t)((uintptr_t)memory >> 32));
  await_key("posted");
  checkpoint_and_kill();
  post_receive(b, 100, 64);
  post_receive(b, 101, 64);
  EXPECT(receive_cq, 100, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  CHECK(memory[0] == 'w' && memory[kWindow] == 'w');
  struct ibv_mw* later = make_window(IBV_MW_TYPE_2);
  tell("first again", bind_window(b, first, 2, 0));
  tell("later", bind_window(b, later, 3, 200));
  post_receive(b, 102, 64);
  post_receive(b, 103, 64);
  EXPECT(receive_cq, 102, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 103, IBV_WC_SUCCESS);
  CHECK(memory[2 * kWindow] == 'w' && memory[3 * kWindow] == 'w');
}

static uint64_t owners_memory;
static void write_with_immediate(uint64_t id, int i, uint32_t key) {
  struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = owners_memory + (uint64_t)i * kWindow;
  wr.wr.rdma.rkey = key;
  CHECK(ibv_post_send(a, &wr, &bad) == 0);
}

static void window_writer(void) {
  int peer_lid;
  uint32_t number;
  open_device();
  allocate(1 << 16);
  memset(memory, 'w', 64);
  a = create_queue_pair(NULL);
  tell("writer", a->qp_num);
  await("owner", &peer_lid, &number);
  connect_to(a, peer_lid, number);
  const uint32_t first = await_key("first"), second = await_key("second"), low = await_key("low");
  owners_memory = (uint64_t)await_key("high") << 32 | low;
  write_with_immediate(1, 0, first);
  write_with_immediate(2, 1, second);
  tell("posted", 0);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  write_with_immediate(3, 2, await_key("first again"));
  const uint32_t later = await_key("later");
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  write_with_immediate(4, 3, later);
  EXPECT(send_cq, 4, IBV_WC_SUCCESS);
}

const struct scenario window_scenarios[] = {{"windows", windows},
                                            {"late_windows", late_windows},
                                            {"closed_windows", closed_windows},
                                            {"unbound_window", unbound_window},
                                            {"armed_windows", armed_windows},
                                            {"binds_to_come", binds_to_come},
                                            {"invalidation_to_come", invalidation_to_come},
                                            {"window_owner", window_owner},
                                            {"window_writer", window_writer},
                                            {NULL, NULL}};
