/* Queue pairs, completion queues and regions: what was set and where they stood. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "scenario.h"

static void modify(struct ibv_qp* qp, struct ibv_qp_attr attr, int mask) {
  CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static struct ibv_qp_attr query(struct ibv_qp* qp) {
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_TIMEOUT, &init) == 0);
  return attr;
}

/* An error that the program knows from completions alone is still one after the restart. */
static void error_by_completion(void) {
  make_pair(1 << 16);
  post_receive(b, 100, 64);
  post(a, IBV_WR_RDMA_WRITE, 1, 64, mr->rkey ^ 0x5555);
  EXPECT(send_cq, 1, IBV_WC_REM_ACCESS_ERR);
  EXPECT(receive_cq, 100, IBV_WC_WR_FLUSH_ERR);
  checkpoint_and_kill();
  CHECK(query(a).qp_state == IBV_QPS_ERR && query(b).qp_state == IBV_QPS_ERR);
  post_receive(b, 101, 64);
  post(a, IBV_WR_SEND, 2, 64, 0);
  EXPECT(send_cq, 2, IBV_WC_WR_FLUSH_ERR);
  to_state(b, IBV_QPS_ERR); /* Soft-RoCE does not hear of receives that are posted in error */
  EXPECT(receive_cq, 101, IBV_WC_WR_FLUSH_ERR);
  expect_nothing_more();
}

/* A send queue that is still draining is not held: what it has begun runs before the frontier is taken. */
static uint32_t length = 256u << 20; /* takes a while */

static void begin_and_hold(int event, void* unused) {
  (void)unused;
  if (event != 0) return; /* 0: just before the threads are stopped */
  post(a, IBV_WR_SEND, 1, length, 0);
  to_state(a, IBV_QPS_SQD);
}

static void draining(void) {
  int bystander_lid;
  uint32_t number;
  open_device();
  if (is_soft_roce()) length = 8u << 20; /* it stops in the middle and begins anew when the queue is let go */
  make_pair(length);
  tell("draining", 0);
  await("bystander", &bystander_lid, &number);
  post_receive(b, 100, length);
  post_receive(b, 101, length);
  before_checkpoint(begin_and_hold);
  checkpoint_and_kill();
  tell("restarted", 0);
  to_state(a, IBV_QPS_RTS);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 100, IBV_WC_SUCCESS);
  post(a, IBV_WR_SEND, 2, 64, 0);
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  expect_nothing_more();
}

/* Another member, which takes its time. */
static void bystander(void) {
  int peer_lid;
  uint32_t number;
  await("draining", &peer_lid, &number);
  open_device();
  tell("bystander", 0);
  await("restarted", &peer_lid, &number);
}

/* A weaker request does not take a stronger one back, and events that lie unread answer the requests before them. */
static void arming(void) {
  struct ibv_cq* cq;
  void* cookie;
  make_pair(1 << 16);
  for (uint64_t unread = 0; unread < 3; ++unread) {
    CHECK(ibv_req_notify_cq(receive_cq, 0) == 0);
    send_one(unread);
  }
  CHECK(ibv_req_notify_cq(receive_cq, 0) == 0);
  CHECK(ibv_req_notify_cq(receive_cq, 1) == 0);
  checkpoint_and_kill();
  for (int unread = 0; unread < 3; ++unread) {
    CHECK(readable(channel->fd, 0));
    CHECK(ibv_get_cq_event(channel, &cq, &cookie) == 0);
  }
  CHECK(!readable(channel->fd, 0));
  send_one(3);
  CHECK(readable(channel->fd, 1000 * any_time));
  CHECK(ibv_get_cq_event(channel, &cq, &cookie) == 0);
  ibv_ack_cq_events(receive_cq, 4);
}

/* A change that names the state it begins in. */
static void current_state(void) {
  make_pair(1 << 16);
  to_state(a, IBV_QPS_SQD);
  modify(a, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQD},
         IBV_QP_STATE | IBV_QP_CUR_STATE);
  checkpoint_and_kill();
  send_one(1);
}

/* What was set last holds, wherever on the way it could be set. */
static void attributes(void) {
  make_pair(1 << 16);
  struct ibv_qp* qp = create_queue_pair(NULL);
  const unsigned first = IBV_ACCESS_REMOTE_READ, last = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  modify(qp, (struct ibv_qp_attr){.qp_access_flags = first}, IBV_QP_ACCESS_FLAGS);
  connect_to(qp, lid, a->qp_num);
  modify(qp, (struct ibv_qp_attr){.qp_access_flags = last}, IBV_QP_ACCESS_FLAGS);
  for (uint8_t timeout = 15; timeout <= 16; ++timeout) {
    to_state(qp, IBV_QPS_SQD);
    modify(qp, (struct ibv_qp_attr){.timeout = timeout}, IBV_QP_TIMEOUT);
    to_state(qp, IBV_QPS_RTS);
  }
  to_state(a, IBV_QPS_SQD);
  checkpoint_and_kill();
  CHECK(query(qp).qp_state == IBV_QPS_RTS);
  CHECK(query(qp).qp_access_flags == last);
  CHECK(query(qp).timeout == 16);
  CHECK(query(a).qp_state == IBV_QPS_SQD);
  to_state(a, IBV_QPS_RTS);
  send_one(1);
}

static void drain_with_event(struct ibv_qp* qp) {
  modify(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1},
         IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
}

static void take_drain_event(void) {
  struct ibv_async_event event;
  CHECK(readable(context->async_fd, 1000 * any_time));
  CHECK(ibv_get_async_event(context, &event) == 0);
  CHECK(event.event_type == IBV_EVENT_SQ_DRAINED);
  ibv_ack_async_event(&event);
}

/* SQ_DRAINED comes once, whether the program has taken it before the checkpoint (A) or not (B). */
static void drain_event(void) {
  make_pair(1 << 16);
  drain_with_event(a);
  take_drain_event();
  drain_with_event(b);
  checkpoint_and_kill();
  take_drain_event();
  CHECK(!readable(context->async_fd, 300));
  to_state(b, IBV_QPS_RTS);
  drain_with_event(b);
  take_drain_event();
}

/* Only the use of a region whose memory is gone fails. */
static void unmapped_region(void) {
  make_pair(1 << 16);
  char* used = memory;
  struct ibv_mr* of_used = mr;
  /* Far from where the kernel puts what asks for no place, or something else lies there before the checkpoint. Each
     sanitizer leaves these addresses to the program. */
  char* gone = mmap((void*)0x70000000, 1 << 16, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  CHECK(gone != MAP_FAILED);
  struct ibv_mr* of_gone = ibv_reg_mr(pd, gone, 1 << 16, IBV_ACCESS_LOCAL_WRITE);
  CHECK(of_gone != NULL && munmap(gone, 1 << 16) == 0);
  memory = used;
  mr = of_used;
  checkpoint_and_kill();
  send_one(1);
  memory = gone;
  mr = of_gone;
  post(a, IBV_WR_SEND, 2, 64, 0);
  EXPECT(send_cq, 2, IBV_WC_LOC_PROT_ERR);
  CHECK(ibv_dereg_mr(of_gone) == 0);
}

/* A peer reaches a region whose pages its owner has protected since, before and after a restart. */
static void protected_region(void) {
  make_pair(1 << 16);
  char* hidden = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(hidden != MAP_FAILED);
  struct ibv_mr* of_hidden = ibv_reg_mr(pd, hidden, 1 << 16, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(of_hidden != NULL);
  for (int round = 1; round <= 2; ++round) {
    CHECK(mprotect(hidden, 1 << 16, PROT_NONE) == 0);
    if (round == 2) checkpoint_and_kill();
    memory[0] = (char)round;
    struct ibv_sge from = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = (uint64_t)round,
                             .sg_list = &from,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {(uintptr_t)hidden, of_hidden->rkey}};
    struct ibv_send_wr* bad = NULL;
    CHECK(ibv_post_send(a, &wr, &bad) == 0);
    EXPECT(send_cq, (uint64_t)round, IBV_WC_SUCCESS);
    CHECK(mprotect(hidden, 1 << 16, PROT_READ | PROT_WRITE) == 0 && hidden[0] == round);
  }
  CHECK(munmap(hidden, 1 << 16) == 0 && ibv_dereg_mr(of_hidden) == 0);
}

/* A completion queue is as large as it was made last. */
static void changed_queue(void) {
  make_pair(1 << 16);
  CHECK(ibv_resize_cq(receive_cq, 1000) == 0);
  const int entries = receive_cq->cqe;
  CHECK(entries >= 1000);
  for (uint64_t id = 10; id < 13; ++id) {
    post_receive(b, 100 + id, 64);
    post(a, IBV_WR_SEND, id, 64, 0);
    EXPECT(send_cq, id, IBV_WC_SUCCESS);
  }
  CHECK(ibv_resize_cq(receive_cq, 1) == EINVAL); /* it holds three */
  checkpoint_and_kill();
  CHECK(receive_cq->cqe == entries && ibv_resize_cq(receive_cq, 1) == EINVAL);
  CHECK(ibv_resize_cq(receive_cq, 3) == 0 && receive_cq->cqe >= 3);
  for (uint64_t id = 110; id < 113; ++id) EXPECT(receive_cq, id, IBV_WC_SUCCESS);
  send_one(1);
  CHECK(ibv_resize_cq(receive_cq, 2000) == 0);
  send_one(2);
}

/* Places and rights as they were last. */
static void changed_region(void) {
  make_pair(1 << 16);
  struct ibv_pd* other = ibv_alloc_pd(context);
  char* used = memory;
  CHECK(other != NULL);
  CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0) == 0 && mr->pd == other);
  CHECK(ibv_dealloc_pd(other) == EBUSY);
  CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0) == 0);
  CHECK(ibv_dealloc_pd(other) == 0);
  CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, NULL, used + 4096, 4096,
                     IBV_ACCESS_LOCAL_WRITE) == 0);
  CHECK(mr->addr == used + 4096 && mr->length == 4096);
  CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
  checkpoint_and_kill();
  memory = used + 4096;
  send_one(1);
  post(a, IBV_WR_RDMA_WRITE, 3, 64, mr->rkey); /* has been forbidden */
  EXPECT(send_cq, 3, IBV_WC_REM_ACCESS_ERR);
}

/* With SHADOWIB_FAULT=5:slow:0 the helper thread has not begun when the stop comes. */
static void at_once(void) {
  make_pair(1 << 16);
  checkpoint_and_go_on();
  send_one(1);
  checkpoint_and_kill();
  send_one(2);
}

const struct scenario state_scenarios[] = {{"at_once", at_once},
                                           {"error_by_completion", error_by_completion},
                                           {"draining", draining},
                                           {"bystander", bystander},
                                           {"arming", arming},
                                           {"current_state", current_state},
                                           {"attributes", attributes},
                                           {"drain_event", drain_event},
                                           {"unmapped_region", unmapped_region},
                                           {"protected_region", protected_region},
                                           {"changed_queue", changed_queue},
                                           {"changed_region", changed_region},
                                           {NULL, NULL}};
