/* The same objects by either interface. */
#include "check.h"
#include "examples/extended_verbs/extended_verbs.h"

enum { WC_FLAGS = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM };

int post_chain(struct side* s, struct ibv_send_wr* wr, struct ibv_send_wr** bad) {
  if (!s->options.extended) return ibv_post_send(s->qp, wr, bad);
  *bad = wr;
  return extended_post(ibv_qp_to_qp_ex(s->qp), wr);
}

int poll_some(struct side* s, struct ibv_wc* wc, int capacity) {
  if (!s->options.extended) return ibv_poll_cq(s->cq, capacity, wc);
  int n = extended_poll(s->cq_ex, WC_FLAGS, capacity, wc);
  if (n < 0) die("cannot poll: error %d", -n);
  return n;
}

struct ibv_cq* create_cq_extended(struct side* s, uint32_t entries) {
  struct ibv_cq_init_attr_ex attr = {.cqe = entries, .cq_context = s, .channel = s->channel, .wc_flags = WC_FLAGS};
  s->cq_ex = ibv_create_cq_ex(s->context, &attr);
  return s->cq_ex ? ibv_cq_ex_to_cq(s->cq_ex) : NULL;
}

struct ibv_qp* create_qp_extended(struct side* s, const struct ibv_qp_init_attr* init) {
  struct ibv_qp_init_attr_ex attr = {.send_cq = init->send_cq,
                                     .recv_cq = init->recv_cq,
                                     .srq = init->srq,
                                     .cap = init->cap,
                                     .qp_type = init->qp_type,
                                     .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                     .pd = s->pd,
                                     .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                                       IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |
                                                       IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                                       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD};
  return ibv_create_qp_ex(s->context, &attr);
}
