/* Shared receive queues. */
#include <string.h>

#include "scenario.h"

/* Two pairs whose receiving ends share a queue: `to[i]` receives what `from[i]` sends. Request n sends and receive n
 * fills 64 bytes of their own. */
static struct ibv_srq* srq;
static struct ibv_qp *from[2], *to[2];

static void make_sharing_pairs(void) {
  open_device();
  allocate(1 << 16);
  struct ibv_srq_init_attr attr = {.attr = {.max_wr = 8, .max_sge = 1}};
  CHECK((srq = ibv_create_srq(pd, &attr)) != NULL);
  for (int i = 0; i < 2; ++i) {
    from[i] = create_queue_pair(NULL);
    to[i] = create_queue_pair(srq);
    connect_to(from[i], lid, to[i]->qp_num);
    connect_to(to[i], lid, from[i]->qp_num);
  }
}

static void post_shared(uint64_t id) {
  struct ibv_sge sge = {(uintptr_t)memory + 8192 + 64 * id, 64, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

static void send_from(int i, uint64_t id) {
  struct ibv_sge sge = {(uintptr_t)memory + 64 * id, 64, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
  memory[64 * id] = (char)id;
  CHECK(ibv_post_send(from[i], &wr, &bad) == 0);
}

/* The next completed receive is `id`. Returns which end got it; *what is the request it got. */
static int next_shared(uint64_t id, int* what) {
  struct ibv_wc wc = {.wr_id = ~0ull};
  for (double end = now() + any_time; now() < end && ibv_poll_cq(receive_cq, 1, &wc) == 0;) continue;
  CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS);
  CHECK(wc.qp_num == to[0]->qp_num || wc.qp_num == to[1]->qp_num);
  *what = memory[8192 + 64 * id];
  return wc.qp_num == to[1]->qp_num;
}

static struct ibv_async_event only_event(void) {
  struct ibv_async_event event;
  CHECK(readable(context->async_fd, 1000 * any_time));
  CHECK(ibv_get_async_event(context, &event) == 0);
  ibv_ack_async_event(&event);
  CHECK(!readable(context->async_fd, 0));
  return event;
}

static void expect_limit_event(void) {
  const struct ibv_async_event event = only_event();
  CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
}

static void expect_last_wqe_event(struct ibv_qp* qp) {
  const struct ibv_async_event event = only_event();
  CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp);
}

static void arm_limit(uint32_t limit) {
  struct ibv_srq_attr attr = {.srq_limit = limit};
  CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
}

/* Receives completed and not polled, requests held back by the want of one, a limit that was reached and one that was
 * not: all go on where they were, in their order. */
static void shared_receives(void) {
  int what;
  make_sharing_pairs();
  for (uint64_t id = 10; id < 13; ++id) post_shared(id);
  arm_limit(1);
  send_from(0, 1);
  CHECK(next_shared(10, &what) == 0 && what == 1);
  send_from(1, 2);
  CHECK(next_shared(11, &what) == 1 && what == 2);
  send_from(1, 3); /* takes the last; the limit is reached */
  CHECK(readable(context->async_fd, 1000 * any_time));
  send_from(0, 4);
  send_from(0, 5);
  send_from(1, 6);
  checkpoint_and_kill();
  expect_limit_event();
  CHECK(next_shared(12, &what) == 1 && what == 3);
  expect_nothing_more();
  int last[2] = {0, 0};
  for (uint64_t id = 13; id < 16; ++id) post_shared(id);
  for (uint64_t id = 13; id < 16; ++id) {
    const int end = next_shared(id, &what);
    CHECK(what > last[end]);
    last[end] = what;
  }
  CHECK(last[0] == 5 && last[1] == 6);
  for (uint64_t id = 20; id < 23; ++id) post_shared(id);
  arm_limit(2);
  checkpoint_and_kill();
  send_from(1, 7);
  CHECK(next_shared(20, &what) == 1 && what == 7);
  CHECK(!readable(context->async_fd, 0));
  send_from(0, 8);
  CHECK(next_shared(21, &what) == 0 && what == 8);
  expect_limit_event();
  for (int i = 0; i < 2; ++i) CHECK(ibv_destroy_qp(from[i]) == 0 && ibv_destroy_qp(to[i]) == 0);
  CHECK(ibv_destroy_srq(srq) == 0);
}

/* A queue pair goes with completions unread: the receives they used are not posted again after the restart. */
static void shared_receives_of_a_destroyed_queue_pair(void) {
  int what;
  make_sharing_pairs();
  for (uint64_t id = 10; id < 13; ++id) post_shared(id);
  send_from(0, 1);
  while (memory[8192 + 64 * 10] != 1) CHECK(ibv_poll_cq(send_cq, 1, &(struct ibv_wc){0}) == 0);
  CHECK(ibv_destroy_qp(from[0]) == 0 && ibv_destroy_qp(to[0]) == 0);
  checkpoint_and_kill();
  send_from(1, 2);
  CHECK(next_shared(11, &what) == 1 && what == 2);
  send_from(1, 3);
  CHECK(next_shared(12, &what) == 1 && what == 3);
  expect_nothing_more();
}

/* A queue pair in error has told that it takes no more receives; it does not tell again after the restart, nor does
 * it forget to if the program has not heard it yet. */
static void last_receive_event(void) {
  make_sharing_pairs();
  to_state(to[0], IBV_QPS_ERR);
  expect_last_wqe_event(to[0]);
  to_state(to[1], IBV_QPS_ERR);
  checkpoint_and_kill();
  expect_last_wqe_event(to[1]);
  for (int i = 0; i < 2; ++i) CHECK(ibv_destroy_qp(from[i]) == 0 && ibv_destroy_qp(to[i]) == 0);
  CHECK(!readable(context->async_fd, 0));
}

const struct scenario shared_receive_scenarios[] = {
    {"shared_receives", shared_receives},
    {"shared_receives_of_a_destroyed_queue_pair", shared_receives_of_a_destroyed_queue_pair},
    {"last_receive_event", last_receive_event},
    {NULL, NULL}};
