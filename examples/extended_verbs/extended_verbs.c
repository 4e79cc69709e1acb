#include "extended_verbs.h"

#include <errno.h>

static void build(struct ibv_qp_ex* qp, const struct ibv_send_wr* wr) {
  switch (wr->opcode) {
    case IBV_WR_SEND:
      ibv_wr_send(qp);
      break;
    case IBV_WR_SEND_WITH_IMM:
      ibv_wr_send_imm(qp, wr->imm_data);
      break;
    case IBV_WR_SEND_WITH_INV:
      ibv_wr_send_inv(qp, wr->invalidate_rkey);
      break;
    case IBV_WR_RDMA_WRITE:
      ibv_wr_rdma_write(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
      break;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      ibv_wr_rdma_write_imm(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
      break;
    case IBV_WR_RDMA_READ:
      ibv_wr_rdma_read(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
      break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      ibv_wr_atomic_fetch_add(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add);
      break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      ibv_wr_atomic_cmp_swp(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add,
                            wr->wr.atomic.swap);
      break;
    case IBV_WR_BIND_MW:
      ibv_wr_bind_mw(qp, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
      break;
    default:
      ibv_wr_local_inv(qp, wr->invalidate_rkey);
  }
}

static void attach(struct ibv_qp_ex* qp, const struct ibv_send_wr* wr) {
  struct ibv_data_buf parts[32];
  if (wr->opcode == IBV_WR_BIND_MW || wr->opcode == IBV_WR_LOCAL_INV) return;
  if ((wr->send_flags & IBV_SEND_INLINE) == 0 || wr->num_sge == 0 || wr->num_sge > 32) {
    ibv_wr_set_sge_list(qp, (size_t)wr->num_sge, wr->sg_list);
    return;
  }
  for (int i = 0; i < wr->num_sge; ++i)
    parts[i] = (struct ibv_data_buf){(void*)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length};
  ibv_wr_set_inline_data_list(qp, (size_t)wr->num_sge, parts);
}

int extended_post(struct ibv_qp_ex* qp, const struct ibv_send_wr* wr) {
  ibv_wr_start(qp);
  for (; wr; wr = wr->next) {
    qp->wr_id = wr->wr_id;
    qp->wr_flags = wr->send_flags;
    build(qp, wr);
    if (qp->qp_base.qp_type == IBV_QPT_UD)
      ibv_wr_set_ud_addr(qp, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
    if (qp->qp_base.qp_type == IBV_QPT_XRC_SEND) ibv_wr_set_xrc_srqn(qp, wr->qp_type.xrc.remote_srqn);
    attach(qp, wr);
  }
  return ibv_wr_complete(qp);
}

static void read_fields(struct ibv_cq_ex* cq, uint64_t wc_flags, struct ibv_wc* wc) {
  *wc = (struct ibv_wc){.wr_id = cq->wr_id, .status = cq->status};
  wc->vendor_err = ibv_wc_read_vendor_err(cq);
  wc->opcode = ibv_wc_read_opcode(cq);
  wc->wc_flags = ibv_wc_read_wc_flags(cq);
  if ((wc_flags & IBV_WC_EX_WITH_BYTE_LEN) != 0) wc->byte_len = ibv_wc_read_byte_len(cq);
  if ((wc_flags & IBV_WC_EX_WITH_QP_NUM) != 0) wc->qp_num = ibv_wc_read_qp_num(cq);
  if ((wc_flags & IBV_WC_EX_WITH_SRC_QP) != 0) wc->src_qp = ibv_wc_read_src_qp(cq);
  if ((wc_flags & IBV_WC_EX_WITH_SLID) != 0) wc->slid = (uint16_t)ibv_wc_read_slid(cq);
  if ((wc->wc_flags & IBV_WC_WITH_INV) != 0)
    wc->invalidated_rkey = ibv_wc_read_invalidated_rkey(cq);
  else if ((wc_flags & IBV_WC_EX_WITH_IMM) != 0)
    wc->imm_data = ibv_wc_read_imm_data(cq);
}

int extended_poll(struct ibv_cq_ex* cq, uint64_t wc_flags, int capacity, struct ibv_wc* wc) {
  struct ibv_poll_cq_attr attr = {0};
  int n = 0, failed = ibv_start_poll(cq, &attr);
  if (failed == ENOENT) return 0;
  if (failed) return -failed;
  for (; !failed; failed = n < capacity ? ibv_next_poll(cq) : ENOENT) read_fields(cq, wc_flags, &wc[n++]);
  ibv_end_poll(cq);
  return failed == ENOENT ? n : -failed;
}
