/* Four processes in two clusters, whose messages cross the border one way: a1 writes block n to b1, waits for the
   completion, and tells a2; a2 sends message n to b2; b2 tells b1; b1 looks whether block n is there. It has to be,
   however often b1 and b2 go back. b2 checks that each message comes once, in order, with all its bytes.

   border_order ROLE PLACES STOP: role a1, a2, b1 or b2; four places of border.h, a1 to b1, a2 to b2, a1 to a2, b2 to
   b1. Once there is a file STOP, the next message is the last, and all end. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "border.h"

enum { SLOTS = 64, WORDS = 32, BLOCK = 8 * WORDS, RECEIVES = 64, PAUSE_US = 300, WIRING_S = 3 };
#define LAST (UINT64_C(1) << 63)

struct place {
  uint64_t address;
  uint32_t key, qp;
  uint16_t lid;
};
struct connection {
  struct ibv_qp* qp;
  struct place peer;
};

/* What peers write to, then what is sent from. */
static struct memory {
  uint64_t slots[SLOTS][WORDS];
  volatile uint64_t told;
  uint64_t received[RECEIVES][WORDS], block[WORDS], word;
} memory;

static struct ibv_context* context;
static struct ibv_pd* pd;
static struct ibv_cq *sends, *receives;
static struct ibv_mr* mr;
static uint16_t lid;

static void fill(uint64_t* block, uint64_t n) {
  block[0] = n;
  for (int i = 1; i < WORDS; ++i) block[i] = (n + (uint64_t)i) * UINT64_C(0x9e3779b97f4a7c15);
}

static int is_block(const uint64_t* block, uint64_t n) {
  uint64_t right[WORDS];
  fill(right, n & ~LAST);
  right[0] = n;
  return memcmp(block, right, BLOCK) == 0;
}

static void open_adapter(void) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  struct ibv_port_attr port;
  MUST(list != NULL && list[0] != NULL);
  context = ibv_open_device(list[0]);
  MUST(context != NULL && ibv_query_port(context, 1, &port) == 0);
  ibv_free_device_list(list);
  lid = port.lid;
  pd = ibv_alloc_pd(context);
  sends = ibv_create_cq(context, 16, NULL, NULL, 0);
  receives = ibv_create_cq(context, RECEIVES, NULL, NULL, 0);
  mr = ibv_reg_mr(pd, &memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  MUST(pd != NULL && sends != NULL && receives != NULL && mr != NULL);
}

static struct connection connect_by(const char* place, int accepts) {
  struct ibv_qp_init_attr init = {
      .send_cq = sends, .recv_cq = receives, .cap = {16, RECEIVES, 1, 1, 0}, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
  struct connection made = {.qp = ibv_create_qp(pd, &init)};
  MUST(made.qp != NULL);
  const struct place own = {(uintptr_t)&memory, mr->rkey, made.qp->qp_num, lid};
  const int s = socket_to(place, accepts);
  char done;
  MUST(write(s, &own, sizeof(own)) == sizeof(own) &&
       recv(s, &made.peer, sizeof(made.peer), MSG_WAITALL) == sizeof(made.peer));
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
  MUST(ibv_modify_qp(made.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                              .path_mtu = IBV_MTU_1024,
                              .dest_qp_num = made.peer.qp,
                              .max_dest_rd_atomic = 1,
                              .min_rnr_timer = 1,
                              .ah_attr = {.dlid = made.peer.lid, .port_num = 1}};
  MUST(ibv_modify_qp(made.qp, &attr,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
  attr = (struct ibv_qp_attr){
      .qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
  MUST(ibv_modify_qp(made.qp, &attr,
                     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                         IBV_QP_MAX_QP_RD_ATOMIC) == 0);
  MUST(write(s, "d", 1) == 1 && recv(s, &done, 1, MSG_WAITALL) == 1);
  close(s);
  return made;
}

static struct ibv_wc wait_for_one(struct ibv_cq* cq) {
  struct ibv_wc wc;
  int n;
  while ((n = ibv_poll_cq(cq, 1, &wc)) == 0) usleep(20);
  MUST(n == 1);
  if (wc.status != IBV_WC_SUCCESS) fail(ibv_wc_status_str(wc.status), wc.wr_id);
  return wc;
}

static void post(struct connection* to, enum ibv_wr_opcode opcode, const void* from, uint32_t bytes, size_t offset) {
  struct ibv_sge sge = {(uintptr_t)from, bytes, mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge,
                           .num_sge = 1,
                           .opcode = opcode,
                           .wr.rdma = {to->peer.address + offset, to->peer.key}},
                     *bad;
  MUST(ibv_post_send(to->qp, &wr, &bad) == 0);
  wait_for_one(sends);
}

static void tell(struct connection* to, uint64_t n) {
  memory.word = n;
  post(to, IBV_WR_RDMA_WRITE, &memory.word, sizeof(memory.word), offsetof(struct memory, told));
}

static uint64_t told_since(uint64_t n) {
  while (memory.told == n) usleep(20);
  return memory.told;
}

static void post_receive(struct connection* from, uint64_t i) {
  struct ibv_sge sge = {(uintptr_t)memory.received[i], BLOCK, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;
  MUST(ibv_post_recv(from->qp, &wr, &bad) == 0);
}

static void a1(struct connection* b, struct connection* a, const char* stop) {
  sleep(WIRING_S); /* so that a CLC may follow before the first message */
  for (uint64_t n = 1;; ++n) {
    const uint64_t last = n % 64 == 0 && access(stop, F_OK) == 0 ? LAST : 0;
    fill(memory.block, n);
    post(b, IBV_WR_RDMA_WRITE, memory.block, BLOCK, offsetof(struct memory, slots) + n % SLOTS * BLOCK);
    tell(a, n | last);
    if (last) break;
    usleep(PAUSE_US);
  }
}

static void a2(struct connection* b) {
  uint64_t sent = 0, told = 0;
  do {
    told = told_since(told);
    while (sent < (told & ~LAST)) {
      ++sent;
      fill(memory.block, sent);
      if (sent == (told & ~LAST)) memory.block[0] = told;
      post(b, IBV_WR_SEND, memory.block, BLOCK, 0);
    }
  } while ((told & LAST) == 0);
  printf("sent %llu\n", (unsigned long long)sent);
}

static void b1(void) {
  uint64_t told = 0;
  do {
    told = told_since(told);
    const uint64_t n = told & ~LAST, there = *(volatile uint64_t*)memory.slots[n % SLOTS];
    if (there < n) fail("stale: block is not there, though its message is", n);
  } while ((told & LAST) == 0);
  const uint64_t n = told & ~LAST;
  for (uint64_t i = n < SLOTS ? 1 : n - SLOTS + 1; i <= n; ++i)
    if (!is_block(memory.slots[i % SLOTS], i)) fail("a block is damaged", i);
  printf("blocks to %llu\n", (unsigned long long)n);
}

static void b2(struct connection* a, struct connection* b) {
  for (uint64_t n = 1;; ++n) {
    const uint64_t i = wait_for_one(receives).wr_id;
    const uint64_t got = memory.received[i][0];
    if ((got & ~LAST) != n) fail("another message is due", n);
    if (!is_block(memory.received[i], got)) fail("a message is damaged", n);
    memset(memory.received[i], 0, BLOCK);
    post_receive(a, i);
    tell(b, got);
    if (got & LAST) {
      printf("received %llu\n", (unsigned long long)n);
      return;
    }
  }
}

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const char* role = argv[1];
  char* const* place = argv + 2;
  open_adapter();
  struct connection over, near;
  if (strcmp(role, "a1") == 0) {
    over = connect_by(place[0], 0);
    near = connect_by(place[2], 0);
    a1(&over, &near, argv[6]);
  } else if (strcmp(role, "a2") == 0) {
    near = connect_by(place[2], 1);
    over = connect_by(place[1], 0);
    a2(&over);
  } else if (strcmp(role, "b1") == 0) {
    over = connect_by(place[0], 1);
    near = connect_by(place[3], 1);
    b1();
  } else if (strcmp(role, "b2") == 0) {
    near = connect_by(place[3], 0);
    over = connect_by(place[1], 1);
    for (uint64_t i = 0; i < RECEIVES; ++i) post_receive(&over, i);
    b2(&over, &near);
  } else {
    return 2;
  }
  return 0;
}
