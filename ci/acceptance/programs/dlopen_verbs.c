/* Opens libibverbs as NCCL does: dlopen, then dlvsym with the version of each symbol. Finds DEVICE, connects two
 * queue pairs of its own with each other, and passes numbered messages from one to the other until MESSAGES have
 * arrived. Usage: dlopen_verbs DEVICE MESSAGES */
#include <infiniband/verbs.h>
#include <stdint.h>

#include "member.h"

#define DEPTH 32
#define WORDS 128

static void* g_library;

static void* symbol(const char* name) {
  void* address = dlvsym(g_library, name, "IBVERBS_1.1");
  if (address == NULL) leave(1, "dlvsym(%s, IBVERBS_1.1): %s", name, dlerror());
  return address;
}

/* The inline functions of verbs.h are used where they only call through the context; their names would else be
 * linked. */
#define CALL(result, name, parameters) result(*name) parameters = (result(*) parameters)symbol(#name)

static struct ibv_qp* make_qp(struct ibv_pd* pd, struct ibv_cq* cq) {
  CALL(struct ibv_qp*, ibv_create_qp, (struct ibv_pd*, struct ibv_qp_init_attr*));
  struct ibv_qp_init_attr attributes = {
      .send_cq = cq,
      .recv_cq = cq,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};
  struct ibv_qp* qp = ibv_create_qp(pd, &attributes);
  if (qp == NULL) leave(1, "ibv_create_qp: %s", strerror(errno));
  return qp;
}

static void connect_qp(struct ibv_qp* qp, uint32_t remote, uint16_t lid) {
  CALL(int, ibv_modify_qp, (struct ibv_qp*, struct ibv_qp_attr*, int));
  struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
  struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
                            .path_mtu = IBV_MTU_1024,
                            .dest_qp_num = remote,
                            .min_rnr_timer = 12,
                            .max_dest_rd_atomic = 1,
                            .ah_attr = {.dlid = lid, .port_num = 1}};
  struct ibv_qp_attr rts = {
      .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
  if (ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
      ibv_modify_qp(qp, &rtr,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
      ibv_modify_qp(qp, &rts,
                    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                        IBV_QP_MAX_QP_RD_ATOMIC))
    leave(1, "ibv_modify_qp: %s", strerror(errno));
}

static struct ibv_context* open_named(const char* wanted) {
  CALL(struct ibv_device**, ibv_get_device_list, (int*));
  CALL(void, ibv_free_device_list, (struct ibv_device**));
  CALL(const char*, ibv_get_device_name, (struct ibv_device*));
  CALL(struct ibv_context*, ibv_open_device, (struct ibv_device*));
  int count = 0;
  struct ibv_device** list = ibv_get_device_list(&count);
  if (list == NULL) leave(1, "ibv_get_device_list: %s", strerror(errno));
  struct ibv_context* context = NULL;
  for (int i = 0; i < count && context == NULL; ++i)
    if (strcmp(ibv_get_device_name(list[i]), wanted) == 0) context = ibv_open_device(list[i]);
  if (context == NULL) leave(1, "none of %d devices is %s", count, wanted);
  ibv_free_device_list(list);
  return context;
}

struct flow {
  struct ibv_qp *from, *to;
  struct ibv_mr* mr;
  uint64_t (*out)[WORDS], (*in)[WORDS];
};

static void post_receive(struct flow* f, uint64_t number) {
  struct ibv_sge place = {(uintptr_t)f->in[number % DEPTH], sizeof(f->in[0]), f->mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = number, .sg_list = &place, .num_sge = 1}, *bad;
  if (ibv_post_recv(f->to, &wr, &bad) != 0) leave(1, "ibv_post_recv of message %lu", (unsigned long)number);
}

static void post_send(struct flow* f, uint64_t number) {
  for (int i = 0; i < WORDS; ++i) f->out[number % DEPTH][i] = number * 31 + (uint64_t)i;
  struct ibv_sge data = {(uintptr_t)f->out[number % DEPTH], sizeof(f->out[0]), f->mr->lkey};
  struct ibv_send_wr wr = {.wr_id = number,
                           .sg_list = &data,
                           .num_sge = 1,
                           .opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  if (ibv_post_send(f->from, &wr, &bad) != 0) leave(1, "ibv_post_send of message %lu", (unsigned long)number);
}

static void pass_messages(struct flow* f, struct ibv_cq* cq, uint64_t messages) {
  uint64_t posted = 0, sent = 0, received = 0;
  for (uint64_t i = 0; i < DEPTH; ++i) post_receive(f, i);
  while (received < messages || sent < messages) {
    while (posted < messages && posted < sent + DEPTH / 2 && posted < received + DEPTH) post_send(f, posted++);
    struct ibv_wc wc;
    int n = ibv_poll_cq(cq, 1, &wc);
    if (n < 0) leave(1, "ibv_poll_cq: %d", n);
    if (n == 0) continue;
    if (wc.status != IBV_WC_SUCCESS) leave(1, "completion of %lu: status %d", (unsigned long)wc.wr_id, wc.status);
    if (wc.opcode == IBV_WC_SEND) {
      if (wc.wr_id != sent++)
        leave(1, "send completion %lu, expected %lu", (unsigned long)wc.wr_id, (unsigned long)sent - 1);
      continue;
    }
    if (wc.wr_id != received)
      leave(1, "message in slot %lu, expected %lu", (unsigned long)wc.wr_id, (unsigned long)received);
    for (int i = 0; i < WORDS; ++i)
      if (f->in[received % DEPTH][i] != received * 31 + (uint64_t)i)
        leave(1, "invalid data in message %lu, word %d", (unsigned long)received, i);
    post_receive(f, DEPTH + received++);
  }
}

int main(int argc, char** argv) {
  if (argc != 3) leave(2, "usage: dlopen_verbs DEVICE MESSAGES");
  g_library = dlopen("libibverbs.so", RTLD_NOW);
  if (g_library == NULL) g_library = dlopen("libibverbs.so.1", RTLD_NOW);
  if (g_library == NULL) leave(1, "dlopen: %s", dlerror());
  CALL(struct ibv_pd*, ibv_alloc_pd, (struct ibv_context*));
  CALL(struct ibv_cq*, ibv_create_cq, (struct ibv_context*, int, void*, struct ibv_comp_channel*, int));
  struct ibv_mr* (*reg_mr)(struct ibv_pd*, void*, size_t, int) =
      (struct ibv_mr * (*)(struct ibv_pd*, void*, size_t, int)) symbol("ibv_reg_mr");
  int (*query_port)(struct ibv_context*, uint8_t, struct ibv_port_attr*) =
      (int (*)(struct ibv_context*, uint8_t, struct ibv_port_attr*))symbol("ibv_query_port");

  struct ibv_context* context = open_named(argv[1]);
  struct ibv_pd* pd = ibv_alloc_pd(context);
  struct ibv_cq* cq = pd != NULL ? ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0) : NULL;
  struct flow f = {.out = calloc(DEPTH, sizeof(*f.out) * 2)};
  f.in = f.out + DEPTH;
  f.mr = cq != NULL ? reg_mr(pd, f.out, 2 * DEPTH * sizeof(*f.out), IBV_ACCESS_LOCAL_WRITE) : NULL;
  if (f.mr == NULL) leave(1, "making objects: %s", strerror(errno));
  struct ibv_port_attr port = {0};
  if (query_port(context, 1, &port) != 0) leave(1, "ibv_query_port: %s", strerror(errno));
  f.from = make_qp(pd, cq);
  f.to = make_qp(pd, cq);
  connect_qp(f.from, f.to->qp_num, port.lid);
  connect_qp(f.to, f.from->qp_num, port.lid);
  pass_messages(&f, cq, strtoull(argv[2], NULL, 10));
  leave(0, "%s messages over %s, all as they should be", argv[2], argv[1]);
}
