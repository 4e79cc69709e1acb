/* The same posts and polls by either interface: plain verbs, or the builders and the field-wise polling of extended
 * verbs. */
#include <errno.h>

#include "check.h"

int post_chain(struct side* s, struct ibv_send_wr* wr, struct ibv_send_wr** bad) {
  if (!s->options.extended) return ibv_post_send(s->qp, wr, bad);
  struct ibv_qp_ex* qp = ibv_qp_to_qp_ex(s->qp);
  *bad = wr;
  ibv_wr_start(qp);
  for (; wr; wr = wr->next) {
    qp->wr_id = wr->wr_id;
    qp->wr_flags = wr->send_flags;
    switch (wr->opcode) {
      case IBV_WR_SEND:
        ibv_wr_send(qp);
        break;
      case IBV_WR_SEND_WITH_IMM:
        ibv_wr_send_imm(qp, wr->imm_data);
        break;
      case IBV_WR_RDMA_WRITE:
        ibv_wr_rdma_write(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
        break;
      case IBV_WR_RDMA_READ:
        ibv_wr_rdma_read(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
        break;
      case IBV_WR_ATOMIC_FETCH_AND_ADD:
        ibv_wr_atomic_fetch_add(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add);
        break;
      default:
        ibv_wr_atomic_cmp_swp(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add,
                              wr->wr.atomic.swap);
    }
    ibv_wr_set_sge_list(qp, (size_t)wr->num_sge, wr->sg_list);
  }
  return ibv_wr_complete(qp);
}

int poll_some(struct side* s, struct ibv_wc* wc, int capacity) {
  if (!s->options.extended) return ibv_poll_cq(s->cq, capacity, wc);
  struct ibv_poll_cq_attr attr = {0};
  int n = 0, failed = ibv_start_poll(s->cq_ex, &attr);
  if (failed == ENOENT) return 0;
  for (; !failed; failed = n < capacity ? ibv_next_poll(s->cq_ex) : ENOENT)
    wc[n++] = (struct ibv_wc){.wr_id = s->cq_ex->wr_id,
                              .status = s->cq_ex->status,
                              .opcode = ibv_wc_read_opcode(s->cq_ex),
                              .vendor_err = ibv_wc_read_vendor_err(s->cq_ex),
                              .byte_len = ibv_wc_read_byte_len(s->cq_ex),
                              .imm_data = ibv_wc_read_imm_data(s->cq_ex),
                              .qp_num = ibv_wc_read_qp_num(s->cq_ex),
                              .wc_flags = ibv_wc_read_wc_flags(s->cq_ex)};
  if (failed != ENOENT) die("cannot poll: error %d", failed);
  ibv_end_poll(s->cq_ex);
  return n;
}

struct ibv_cq* create_cq_extended(struct side* s, uint32_t entries) {
  struct ibv_cq_init_attr_ex attr = {
      .cqe = entries,
      .cq_context = s,
      .channel = s->channel,
      .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM};
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
