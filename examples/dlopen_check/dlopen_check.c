/* A program that opens libibverbs as NCCL does and lets two queue pairs of its own talk: SEND, RDMA WRITE and READ,
 * every byte checked. Prints which file answered for ibv_open_device; exits with 0 if all was right. Usage:
 * dlopen_check [ROUNDS] */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs_table.h"

static struct verbs_table verbs;

#define NEED(condition)                                                                 \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      fprintf(stderr, "dlopen_check: line %d: %s failed (%m)\n", __LINE__, #condition); \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

enum { kBytes = 8192 };

static struct ibv_qp* make_qp(struct ibv_pd* pd, struct ibv_cq* cq) {
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
  struct ibv_qp* qp = verbs.create_qp(pd, &init);
  NEED(qp != NULL);
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
  NEED(verbs.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
  return qp;
}

static void connect_qp(struct ibv_qp* qp, uint32_t peer, uint16_t lid) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                             .path_mtu = IBV_MTU_1024,
                             .dest_qp_num = peer,
                             .max_dest_rd_atomic = 1,
                             .min_rnr_timer = 12,
                             .ah_attr = {.dlid = lid, .port_num = 1}};
  NEED(verbs.modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
  attr = (struct ibv_qp_attr){
      .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
  NEED(verbs.modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* One signaled request of `opcode` from `from` to `to` (remote unless SEND); waits for `completions` of them. */
static void run(struct ibv_qp* qp, struct ibv_mr* mr, enum ibv_wr_opcode opcode, void* local, void* remote,
                int completions) {
  struct ibv_sge sge = {(uintptr_t)local, kBytes, mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
  wr.wr.rdma.remote_addr = (uintptr_t)remote;
  wr.wr.rdma.rkey = mr->rkey;
  NEED(ibv_post_send(qp, &wr, &bad) == 0);
  while (completions > 0) {
    struct ibv_wc wc;
    int n = ibv_poll_cq(qp->send_cq, 1, &wc);
    NEED(n >= 0);
    if (n == 1) NEED(wc.status == IBV_WC_SUCCESS);
    completions -= n;
  }
}

static void round_trip(struct ibv_qp* qp[2], struct ibv_mr* mr, unsigned char* memory, int round) {
  unsigned char *source = memory, *inbox = memory + kBytes, *target = memory + 2 * kBytes,
                *back = memory + 3 * kBytes;
  for (int i = 0; i < kBytes; ++i) source[i] = (unsigned char)(i * 31 + round * 7 + i / 256);
  memset(inbox, 0, 3 * kBytes);
  struct ibv_sge sge = {(uintptr_t)inbox, kBytes, mr->lkey};
  struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
  NEED(ibv_post_recv(qp[1 - round % 2], &wr, &bad) == 0);
  run(qp[round % 2], mr, IBV_WR_SEND, source, NULL, 2);
  run(qp[round % 2], mr, IBV_WR_RDMA_WRITE, source, target, 1);
  run(qp[1 - round % 2], mr, IBV_WR_RDMA_READ, back, target, 1);
  NEED(memcmp(source, inbox, kBytes) == 0);
  NEED(memcmp(source, target, kBytes) == 0);
  NEED(memcmp(source, back, kBytes) == 0);
}

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 100;
  printf("ibv_open_device is in %s\n", load_verbs(&verbs));
  fflush(stdout);
  NEED(verbs.fork_init() == 0);
  int count = 0;
  struct ibv_device** list = verbs.get_device_list(&count);
  NEED(list != NULL && count > 0);
  struct ibv_context* context = verbs.open_device(list[0]);
  NEED(context != NULL);
  verbs.free_device_list(list);
  struct ibv_port_attr port;
  memset(&port, 0, sizeof(port));
  NEED(verbs.query_port(context, 1, &port) == 0);
  struct ibv_pd* pd = verbs.alloc_pd(context);
  NEED(pd != NULL);

  /* As NCCL probes for dmabuf: absent must be told by EOPNOTSUPP. */
  errno = 0;
  NEED(verbs.reg_dmabuf_mr(pd, 0, 0, 0, -1, 0) == NULL && errno != 0);

  unsigned char* memory;
  NEED(posix_memalign((void**)&memory, 4096, 4 * kBytes) == 0);
  struct ibv_mr* mr = verbs.reg_mr_iova2(
      pd, memory, 4 * kBytes, (uintptr_t)memory,
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING);
  NEED(mr != NULL);
  struct ibv_cq* cq = verbs.create_cq(context, 64, NULL, NULL, 0);
  NEED(cq != NULL);
  struct ibv_qp* qp[2] = {make_qp(pd, cq), make_qp(pd, cq)};
  connect_qp(qp[0], qp[1]->qp_num, port.lid);
  connect_qp(qp[1], qp[0]->qp_num, port.lid);
  for (int round = 0; round < rounds; ++round) round_trip(qp, mr, memory, round);

  NEED(verbs.destroy_qp(qp[0]) == 0 && verbs.destroy_qp(qp[1]) == 0 && verbs.destroy_cq(cq) == 0);
  NEED(verbs.dereg_mr(mr) == 0 && verbs.dealloc_pd(pd) == 0 && verbs.close_device(context) == 0);
  free(memory);
  printf("%d rounds right\n", rounds);
  return 0;
}
