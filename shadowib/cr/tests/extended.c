/* Extended completion queues and builders of requests. */
#include <errno.h>
#include <string.h>

#include "scenario.h"

/* A batch half built and a completion half read are the program's own: both go on after the restart. */
static void extended_verbs(void) {
  struct ibv_poll_cq_attr poll_attr = {0};
  struct ibv_cq_init_attr_ex cq_attr = {.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS};
  open_device();
  allocate(1 << 16);
  struct ibv_cq_ex* cq = ibv_create_cq_ex(context, &cq_attr);
  CHECK(cq != NULL);
  receive_cq = ibv_cq_ex_to_cq(cq);
  struct ibv_qp_init_attr_ex init = {.send_cq = send_cq, .recv_cq = send_cq, .qp_type = IBV_QPT_RC, .pd = pd};
  init.cap = (struct ibv_qp_cap){kDepth, kDepth, 1, 1, 64};
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM;
  CHECK((a = ibv_create_qp_ex(context, &init)) != NULL);
  to_init(a);
  b = create_queue_pair(NULL);
  connect_to(a, lid, b->qp_num);
  connect_to(b, lid, a->qp_num);
  struct ibv_qp_ex* builder = ibv_qp_to_qp_ex(a);
  CHECK(builder != NULL && ibv_qp_to_qp_ex(b) == NULL);
  for (uint64_t id = 100; id < 103; ++id) post_receive(b, id, 64);
  builder->wr_flags = IBV_SEND_SIGNALED;
  for (uint32_t round = 0; round < 2; ++round) {
    ibv_wr_start(builder);
    builder->wr_id = 1 + round;
    ibv_wr_send_imm(builder, 10 + round);
    char text[] = "half built";
    ibv_wr_set_inline_data(builder, text, sizeof(text));
    memset(text, 'x', sizeof(text));
    if (round == 1) checkpoint_and_kill();
    CHECK(ibv_wr_complete(builder) == 0);
    EXPECT(send_cq, 1 + round, IBV_WC_SUCCESS);
    while (ibv_start_poll(cq, &poll_attr) != 0) continue;
    if (round == 0) checkpoint_and_kill();
    CHECK(cq->status == IBV_WC_SUCCESS && cq->wr_id == 100 + round);
    CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RECV && ibv_wc_read_qp_num(cq) == b->qp_num);
    CHECK(ibv_wc_read_imm_data(cq) == 10 + round && ibv_wc_read_byte_len(cq) == 11);
    CHECK(strcmp(memory, "half built") == 0);
    CHECK(ibv_next_poll(cq) == ENOENT);
    ibv_end_poll(cq);
    memset(memory, 0, 64);
  }
}

const struct scenario extended_scenarios[] = {{"extended_verbs", extended_verbs}, {NULL, NULL}};
