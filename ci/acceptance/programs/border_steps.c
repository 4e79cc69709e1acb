/* Two processes, of two clusters, that send each other one message at a time, when they are told to.

   border_steps SIDE PLACE ASK: side a accepts at the place (border.h), side b connects there. ASK.a and ASK.b hold
   how many messages that side is to have sent so far. Once there is a file ASK.stop, both end, and say what they have
   had. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "border.h"

enum { WORDS = 8, BYTES = 8 * WORDS, RECEIVES = 16, PAUSE_US = 2000 };

struct place {
  uint32_t qp;
  uint16_t lid;
};

static uint64_t received[RECEIVES][WORDS], message[WORDS];
static struct ibv_context* context;
static struct ibv_pd* pd;
static struct ibv_cq *sends, *receives;
static struct ibv_mr *of_received, *of_message;
static struct ibv_qp* qp;

static void fill(uint64_t* to, char side, uint64_t n) {
  for (uint64_t i = 0; i < WORDS; ++i) to[i] = ((uint64_t)side << 32 | n) * UINT64_C(0x9e3779b97f4a7c15) + i;
}

static void post_receive(uint64_t i) {
  struct ibv_sge sge = {(uintptr_t)received[i], BYTES, of_received->lkey};
  struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;
  MUST(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void make_objects(uint16_t* lid) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  struct ibv_port_attr port;
  MUST(list != NULL && list[0] != NULL);
  context = ibv_open_device(list[0]);
  MUST(context != NULL && ibv_query_port(context, 1, &port) == 0);
  ibv_free_device_list(list);
  *lid = port.lid;
  pd = ibv_alloc_pd(context);
  sends = ibv_create_cq(context, 4, NULL, NULL, 0);
  receives = ibv_create_cq(context, RECEIVES, NULL, NULL, 0);
  MUST(pd != NULL && sends != NULL && receives != NULL);
  of_received = ibv_reg_mr(pd, received, sizeof(received), IBV_ACCESS_LOCAL_WRITE);
  of_message = ibv_reg_mr(pd, message, sizeof(message), IBV_ACCESS_LOCAL_WRITE);
  struct ibv_qp_init_attr init = {
      .send_cq = sends, .recv_cq = receives, .cap = {4, RECEIVES, 1, 1, 0}, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
  qp = ibv_create_qp(pd, &init);
  MUST(of_received != NULL && of_message != NULL && qp != NULL);
}

static void connect_by(const char* place, int accepts) {
  struct place own, peer;
  memset(&own, 0, sizeof(own));
  make_objects(&own.lid);
  own.qp = qp->qp_num;
  const int s = socket_to(place, accepts);
  char done;
  MUST(write(s, &own, sizeof(own)) == sizeof(own) && recv(s, &peer, sizeof(peer), MSG_WAITALL) == sizeof(peer));
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
  MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                              .path_mtu = IBV_MTU_1024,
                              .dest_qp_num = peer.qp,
                              .max_dest_rd_atomic = 1,
                              .min_rnr_timer = 1,
                              .ah_attr = {.dlid = peer.lid, .port_num = 1}};
  MUST(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
  attr = (struct ibv_qp_attr){
      .qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
  MUST(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                         IBV_QP_MAX_QP_RD_ATOMIC) == 0);
  for (uint64_t i = 0; i < RECEIVES; ++i) post_receive(i);
  MUST(write(s, "d", 1) == 1 && recv(s, &done, 1, MSG_WAITALL) == 1);
  close(s);
}

static int take(struct ibv_cq* cq, struct ibv_wc* wc) {
  const int n = ibv_poll_cq(cq, 1, wc);
  MUST(n >= 0);
  if (n == 1 && wc->status != IBV_WC_SUCCESS) fail(ibv_wc_status_str(wc->status), wc->wr_id);
  return n;
}

static uint64_t number_in(const char* path) {
  unsigned long long n = 0;
  FILE* from = fopen(path, "r");
  if (from == NULL) return 0;
  if (fscanf(from, "%llu", &n) != 1) n = 0; /* it is being written */
  fclose(from);
  return n;
}

int main(int argc, char** argv) {
  if (argc != 4 || (strcmp(argv[1], "a") != 0 && strcmp(argv[1], "b") != 0)) return 2;
  const char side = argv[1][0], other = side == 'a' ? 'b' : 'a';
  char asked[512], stop[512];
  snprintf(asked, sizeof(asked), "%s.%c", argv[3], side);
  snprintf(stop, sizeof(stop), "%s.stop", argv[3]);
  connect_by(argv[2], side == 'a');
  uint64_t sent = 0, completed = 0, got = 0;
  while (access(stop, F_OK) != 0 || completed != sent) {
    struct ibv_wc wc;
    completed += (uint64_t)take(sends, &wc);
    while (take(receives, &wc) == 1) {
      uint64_t right[WORDS];
      fill(right, other, ++got);
      if (wc.byte_len != BYTES || memcmp(received[wc.wr_id], right, BYTES) != 0) fail("a message is damaged", got);
      post_receive(wc.wr_id);
    }
    if (sent == completed && number_in(asked) > sent) {
      fill(message, side, ++sent);
      struct ibv_sge sge = {(uintptr_t)message, BYTES, of_message->lkey};
      struct ibv_send_wr wr = {.wr_id = sent, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
      MUST(ibv_post_send(qp, &wr, &bad) == 0);
    }
    usleep(PAUSE_US);
  }
  printf("sent %llu received %llu\n", (unsigned long long)sent, (unsigned long long)got);
  return 0;
}
