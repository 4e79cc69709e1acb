/* Hazards of queues, of who is told of what is in them, and of ids. */
#include <fcntl.h>

#include "hazards.h"

/* H7: two connections with one completion queue, of which some has been polled, some a checkpoint has taken, some
 * came after it. Requests 1 and 3 are of A, 2 of C, all complete before the checkpoint; 4 is of A, and later. */
static void half_poll(void) {
  make_free_pair();
  make_second_pair();
  fill(1, 'w');
  for (int n = 1; n <= 3; ++n) {
    write_to(n == 2 ? c : a, (uint64_t)n, 1, 1 + n, IBV_SEND_SIGNALED);
    await_char(1 + n, 'w');
  }
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  checkpoint_and_go_on();
  write_to(a, 4, 1, 5, IBV_SEND_SIGNALED);
  await_char(5, 'w');
}

static void half_polled(void) {
  half_poll();
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  checkpoint_and_kill();
  write_to(a, 5, 1, 6, IBV_SEND_SIGNALED);
  await_char(6, 'w');
  for (uint64_t n = 3; n <= 5; ++n) EXPECT(send_cq, n, IBV_WC_SUCCESS);
  expect_nothing_more();
}

static void destroyed_half_polled(void) {
  half_poll();
  CHECK(ibv_destroy_qp(c) == 0 && ibv_destroy_qp(d) == 0);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  EXPECT(send_cq, 4, IBV_WC_SUCCESS);
  checkpoint_and_kill();
  expect_nothing_more();
}

/* The same where the queue gives the completions of one queue pair out before those of the other, which verbs allow:
 * of each they are in order. */
static void out_of_turn(void) {
  make_free_pair();
  make_second_pair();
  fill(1, 'w');
  for (int n = 0; n < 6; ++n) {
    write_to(n % 2 == 0 ? a : c, (uint64_t)n, 1, 2 + n, IBV_SEND_SIGNALED);
    await_char(2 + n, 'w');
  }
  COMMAND(newest_first, 1);
  checkpoint_and_go_on();
  for (int n = 6; n < 8; ++n) {
    write_to(n % 2 == 0 ? a : c, (uint64_t)n, 1, 2 + n, IBV_SEND_SIGNALED);
    await_char(2 + n, 'w');
  }
  struct ibv_wc wc;
  uint64_t of_a = 0, of_c = 1;
  for (int polled = 0; polled < 8; ++polled) {
    HOLDS(ibv_poll_cq(send_cq, 1, &wc) == 1, "a completion was lost");
    uint64_t* next = wc.qp_num == a->qp_num ? &of_a : &of_c;
    HOLDS(wc.status == IBV_WC_SUCCESS && wc.wr_id == *next, "a completion came out of turn");
    *next += 2;
    if (polled == 3) checkpoint_and_kill();
  }
  expect_nothing_more();
}

/* H8: nobody is woken for a completion that is none of his business. */
static void forced_event(void) {
  struct ibv_cq* cq;
  void* cookie;
  make_free_pair();
  struct ibv_cq* woken = ibv_create_cq(context, 16, NULL, channel, 0);
  CHECK(woken != NULL);
  struct ibv_cq* others = send_cq;
  send_cq = woken;
  make_second_pair();
  send_cq = others;
  CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
  fill(1, 'w');
  for (int i = 0; i < 2; ++i) {
    CHECK(ibv_req_notify_cq(woken, 0) == 0);
    write_to(c, 1, 1, 2 + i, 0);
    await_char(2 + i, 'w');
    HOLDS(ibv_get_cq_event(channel, &cq, &cookie) != 0, "there was an event, and the program is due none");
    if (i == 0) checkpoint_and_kill();
  }
  write_to(c, 2, 1, 4, IBV_SEND_SIGNALED);
  CHECK(readable(channel->fd, 1000 * any_time));
  CHECK(ibv_get_cq_event(channel, &cq, &cookie) == 0 && cq == woken);
  ibv_ack_cq_events(cq, 1);
  EXPECT(woken, 2, IBV_WC_SUCCESS);
}

/* H11: ids that come after a restart. The backend gives the same numbers again from the first on; the first of each
 * kind was given back before the checkpoint, so that what is made next is given one that stands for something else.
 */
static struct ibv_qp* make_with_gaps(void) {
  struct ibv_mr* first_region;
  open_device();
  struct ibv_qp* first_qp = create_queue_pair(NULL);
  allocate(1 << 16);
  first_region = mr;
  CHECK((mr = ibv_reg_mr(pd, memory, 1 << 15, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) != NULL);
  a = create_queue_pair(NULL);
  b = create_queue_pair(NULL);
  connect_to(a, lid, b->qp_num);
  connect_to(b, lid, a->qp_num);
  CHECK(ibv_dereg_mr(first_region) == 0);
  return first_qp;
}

static void ids_after_a_restart(void) {
  CHECK(ibv_destroy_qp(make_with_gaps()) == 0);
  checkpoint_and_kill();
  c = create_queue_pair(NULL);
  HOLDS(c->qp_num != a->qp_num && c->qp_num != b->qp_num, "two queue pairs have one number");
  struct ibv_mr* old = mr;
  char* late = memory + (1 << 15);
  struct ibv_mr* region = ibv_reg_mr(pd, late, 1 << 15, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(region != NULL);
  HOLDS(region->rkey != old->rkey && region->lkey != old->lkey, "two regions have one key");
  fill(1, 'n');
  mr = region;
  struct ibv_sge sge = {(uintptr_t)place(1), kBytes, old->lkey};
  struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 1, &sge, 40, IBV_SEND_SIGNALED), *bad;
  CHECK(ibv_post_send(a, &wr, &bad) == 0);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  HOLDS(place(40)[0] == 'n', "it was written elsewhere");
}

const struct scenario hazard_queue_scenarios[] = {
    {"half_polled", half_polled},   {"destroyed_half_polled", destroyed_half_polled}, {"out_of_turn", out_of_turn},
    {"forced_event", forced_event}, {"ids_after_a_restart", ids_after_a_restart},     {NULL, NULL}};
