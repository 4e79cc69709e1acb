/* Extended reliable connections (XRC): domains, queues that messages name, initiators and targets. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "scenario.h"

/* Initiator `from` sends over target `to` into queues 0 and 1, which complete in send_cq's neighbour receive_cq.
 * Message n is 64 bytes of n; receive n fills 64 bytes of its own. */
enum { kReceived = 8192 };
static struct ibv_xrcd* domain;
static struct ibv_srq* queue[2];
static uint32_t number[2];
static struct ibv_qp *from, *to;

static struct ibv_xrcd* open_domain(int fd, int flags) {
  struct ibv_xrcd_init_attr attr = {IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, fd, flags};
  return ibv_open_xrcd(context, &attr);
}

static struct ibv_srq* create_queue(struct ibv_xrcd* in, uint32_t* its_number) {
  struct ibv_srq_init_attr_ex attr = {.attr = {.max_wr = 16, .max_sge = 1}, .srq_type = IBV_SRQT_XRC};
  attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  attr.pd = pd;
  attr.xrcd = in;
  attr.cq = receive_cq;
  struct ibv_srq* srq = ibv_create_srq_ex(context, &attr);
  CHECK(srq != NULL && ibv_get_srq_num(srq, its_number) == 0);
  return srq;
}

static struct ibv_qp* create_target(struct ibv_xrcd* in) {
  struct ibv_qp_init_attr_ex init = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = in};
  struct ibv_qp* qp = ibv_create_qp_ex(context, &init);
  CHECK(qp != NULL);
  to_init(qp);
  return qp;
}

static struct ibv_qp* create_initiator(void) {
  struct ibv_qp_init_attr init = {.send_cq = send_cq, .cap = {kDepth, 0, 1, 0, 0}, .qp_type = IBV_QPT_XRC_SEND};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  CHECK(qp != NULL);
  to_init(qp);
  return qp;
}

static void make_connection(void) {
  open_device();
  allocate(1 << 16);
  CHECK((domain = open_domain(-1, O_CREAT)) != NULL);
  for (int i = 0; i < 2; ++i) queue[i] = create_queue(domain, &number[i]);
  from = create_initiator();
  to = create_target(domain);
  connect_to(from, lid, to->qp_num);
  connect_to(to, lid, from->qp_num);
}

static void post_into(struct ibv_srq* srq, uint64_t id) {
  struct ibv_sge sge = {(uintptr_t)memory + kReceived + 64 * id, 64, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

static void send_into(uint32_t srq_number, uint64_t id, enum ibv_wr_opcode opcode) {
  struct ibv_sge sge = {(uintptr_t)memory + 64 * id, 64, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;
  memset(memory + 64 * id, (int)id, 64);
  wr.send_flags = id % 2 ? IBV_SEND_SIGNALED : 0;
  wr.wr.rdma.remote_addr = (uintptr_t)memory + 4096 + 64 * id;
  wr.wr.rdma.rkey = mr->rkey;
  wr.qp_type.xrc.remote_srqn = srq_number;
  CHECK(ibv_post_send(from, &wr, &bad) == 0);
}

/* The next completed receive is `id`, of message `what` by the connection. */
static void next_received(uint64_t id, int what) {
  struct ibv_wc wc = {.wr_id = ~0ull};
  for (double end = now() + any_time; now() < end && ibv_poll_cq(receive_cq, 1, &wc) == 0;) continue;
  CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS);
  CHECK(wc.qp_num == to->qp_num);
  CHECK(memory[kReceived + 64 * id] == what && memory[kReceived + 64 * id + 63] == what);
}

static void destroy_connection(void) {
  CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
  for (int i = 0; i < 2; ++i) CHECK(ibv_destroy_srq(queue[i]) == 0);
  CHECK(ibv_close_xrcd(domain) == 0);
}

/* A request waits for the one queue that is empty while the other has receives, and what is behind it waits too; of a
 * queue that is not waited for a receive is neither lost nor used twice. */
static void extended_connection(void) {
  make_connection();
  for (uint64_t id = 10; id < 13; ++id) post_into(queue[1], id);
  send_into(number[1], 1, IBV_WR_SEND);
  send_into(number[0], 2, IBV_WR_SEND); /* none there */
  send_into(number[1], 3, IBV_WR_SEND);
  send_into(number[0], 4, IBV_WR_RDMA_WRITE_WITH_IMM);
  send_into(number[1], 5, IBV_WR_RDMA_WRITE);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS); /* its receive is not polled */
  const uint32_t before[2] = {number[0], number[1]};
  checkpoint_and_kill();
  for (int i = 0; i < 2; ++i) CHECK(ibv_get_srq_num(queue[i], &number[i]) == 0 && number[i] == before[i]);
  next_received(10, 1);
  expect_nothing_more();
  CHECK(memory[4096 + 64 * 4] == 0 && memory[4096 + 64 * 5] == 0);
  checkpoint_and_kill(); /* the same again: what is blocked is found to be so */
  post_into(queue[0], 20);
  next_received(20, 2);
  next_received(11, 3);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  expect_nothing_more();
  CHECK(memory[4096 + 64 * 4] == 0 && memory[4096 + 64 * 5] == 0);
  struct ibv_wc wc = {.wr_id = ~0ull};
  memset(memory + kReceived + 64 * 21, 'r', 64);
  post_into(queue[0], 21);
  EXPECT(send_cq, 5, IBV_WC_SUCCESS);
  CHECK(memory[4096 + 64 * 4] == 4 && memory[4096 + 64 * 5] == 5);
  CHECK(ibv_poll_cq(receive_cq, 1, &wc) == 1 && wc.wr_id == 21 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  /* A queue made now has a number that nobody knew before. */
  uint32_t late_number;
  struct ibv_srq* late = create_queue(domain, &late_number);
  CHECK(late_number != number[0] && late_number != number[1]);
  post_into(late, 30);
  send_into(late_number, 7, IBV_WR_SEND);
  next_received(30, 7);
  EXPECT(send_cq, 7, IBV_WC_SUCCESS);
  CHECK(ibv_destroy_srq(late) == 0);
  expect_nothing_more();
  destroy_connection();
}

/* Completions drained by a checkpoint: a target's stay when it goes, a queue's go with it. */
static void extended_completions(void) {
  make_connection();
  post_into(queue[0], 10);
  post_into(queue[0], 11);
  post_into(queue[1], 12);
  send_into(number[0], 1, IBV_WR_SEND);
  send_into(number[1], 3, IBV_WR_SEND);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  checkpoint_and_kill();
  const uint32_t its_number = to->qp_num;
  send_into(number[0], 5, IBV_WR_SEND);
  EXPECT(send_cq, 5, IBV_WC_SUCCESS);
  CHECK(ibv_destroy_qp(to) == 0);
  CHECK(ibv_destroy_srq(queue[1]) == 0);
  struct ibv_wc wc[4];
  int n = 0;
  for (double end = now() + any_time; now() < end && n < 2;) n += ibv_poll_cq(receive_cq, 4 - n, wc + n);
  CHECK(n == 2 && wc[0].wr_id == 10 && wc[1].wr_id == 11);
  CHECK(wc[0].qp_num == its_number && wc[1].qp_num == its_number);
  expect_nothing_more();
  CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_srq(queue[0]) == 0 && ibv_close_xrcd(domain) == 0);
}

/* One file, one domain: also after a restart. */
static void extended_domains(void) {
  open_device();
  allocate(1 << 16);
  const int fd = open("domain", O_RDWR | O_CREAT, 0600), same = open("domain", O_RDONLY);
  CHECK(fd >= 0 && same >= 0);
  CHECK(open_domain(fd, 0) == NULL && errno == EAGAIN);
  struct ibv_xrcd *one = open_domain(fd, O_CREAT), *two = open_domain(same, 0), *private = open_domain(-1, 0);
  CHECK(one != NULL && two != NULL && private != NULL);
  CHECK(open_domain(same, O_CREAT | O_EXCL) == NULL && errno == EINVAL);
  CHECK(close(fd) == 0);
  uint32_t private_number;
  queue[0] = create_queue(one, &number[0]);
  queue[1] = create_queue(private, &private_number);
  from = create_initiator();
  to = create_target(two);
  connect_to(from, lid, to->qp_num);
  connect_to(to, lid, from->qp_num);
  checkpoint_and_kill();
  CHECK(ibv_close_xrcd(one) == EBUSY && ibv_close_xrcd(two) == EBUSY);
  post_into(queue[0], 10);
  send_into(number[0], 1, IBV_WR_SEND);
  next_received(10, 1);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  struct ibv_xrcd* three = open_domain(same, 0); /* the descriptor is the same file still */
  CHECK(three != NULL);
  uint32_t third_number;
  struct ibv_srq* third = create_queue(three, &third_number);
  post_into(third, 11);
  send_into(third_number, 3, IBV_WR_SEND);
  next_received(11, 3);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  post_into(queue[1], 12);
  send_into(private_number, 5, IBV_WR_SEND);
  EXPECT(send_cq, 5, IBV_WC_REM_INV_REQ_ERR);
  expect_nothing_more();
  CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0 && ibv_destroy_srq(third) == 0);
  for (int i = 0; i < 2; ++i) CHECK(ibv_destroy_srq(queue[i]) == 0);
  CHECK(ibv_close_xrcd(one) == 0 && ibv_close_xrcd(two) == 0 && ibv_close_xrcd(three) == 0);
  CHECK(ibv_close_xrcd(private) == 0);
}

static struct ibv_qp* next_event(enum ibv_event_type type) {
  struct ibv_async_event event;
  CHECK(readable(context->async_fd, 1000 * any_time));
  CHECK(ibv_get_async_event(context, &event) == 0 && event.event_type == type);
  ibv_ack_async_event(&event);
  return event.element.qp;
}

/* A target has several handles and lasts as long as one of them; each hears of its errors, once. */
static void extended_handles(void) {
  make_connection();
  struct ibv_qp_open_attr attr = {
      .qp_num = to->qp_num, .xrcd = domain, .qp_context = &attr, .qp_type = IBV_QPT_XRC_RECV};
  attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_CONTEXT | IBV_QP_OPEN_ATTR_TYPE;
  struct ibv_qp *second = ibv_open_qp(context, &attr), *third = ibv_open_qp(context, &attr);
  CHECK(second != NULL && third != NULL && second != to && second->qp_num == to->qp_num);
  CHECK(second->qp_context == &attr);
  attr.qp_num = from->qp_num;
  CHECK(ibv_open_qp(context, &attr) == NULL && errno == EINVAL);
  CHECK(ibv_destroy_qp(to) == 0);
  to = second;
  checkpoint_and_kill();
  post_into(queue[0], 10);
  send_into(number[0], 1, IBV_WR_SEND);
  next_received(10, 1);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  struct ibv_qp_attr now_has;
  struct ibv_qp_init_attr init;
  CHECK(ibv_query_qp(third, &now_has, IBV_QP_STATE, &init) == 0 && now_has.qp_state == IBV_QPS_RTS);
  CHECK(now_has.dest_qp_num == from->qp_num);
  while (readable(context->async_fd, 0)) next_event(IBV_EVENT_COMM_EST);
  to_state(third, IBV_QPS_ERR);
  struct ibv_qp* told = next_event(IBV_EVENT_QP_LAST_WQE_REACHED);
  CHECK(told == second || told == third);
  checkpoint_and_kill();
  CHECK(next_event(IBV_EVENT_QP_LAST_WQE_REACHED) == (told == second ? third : second));
  CHECK(!readable(context->async_fd, 0));
  CHECK(ibv_destroy_qp(second) == 0);
  CHECK(ibv_query_qp(third, &now_has, IBV_QP_STATE, &init) == 0 && now_has.qp_state == IBV_QPS_ERR);
  CHECK(ibv_destroy_qp(third) == 0 && ibv_destroy_qp(from) == 0);
  for (int i = 0; i < 2; ++i) CHECK(ibv_destroy_srq(queue[i]) == 0);
  CHECK(ibv_close_xrcd(domain) == 0);
}

/* The same between two processes, whose ids meet only by the exchange: "one" sends, "two" receives. */
static void extended_one(void) {
  int peer_lid;
  uint32_t peer, rkey;
  open_device();
  allocate(1 << 16);
  from = create_initiator();
  tell("initiator", from->qp_num);
  await("target", &peer_lid, &peer);
  await("target.0", &peer_lid, &number[0]);
  await("target.1", &peer_lid, &number[1]);
  await("target.rkey", &peer_lid, &rkey);
  connect_to(from, peer_lid, peer);
  send_into(number[1], 1, IBV_WR_SEND);
  send_into(number[0], 3, IBV_WR_SEND);
  send_into(number[1], 5, IBV_WR_SEND);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  tell("blocked", 0);
  while (access("restarted", F_OK) != 0) usleep(1000);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  EXPECT(send_cq, 5, IBV_WC_SUCCESS);
  uint32_t late, address;
  await("late", &peer_lid, &late);
  await("late.address", &peer_lid, &address);
  send_into(late, 7, IBV_WR_SEND);
  EXPECT(send_cq, 7, IBV_WC_SUCCESS);
  struct ibv_sge sge = {(uintptr_t)memory + 64 * 9, 64, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
  memset(memory + 64 * 9, 9, 64);
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = address; /* the region's addresses begin at 0 */
  wr.wr.rdma.rkey = rkey;
  wr.qp_type.xrc.remote_srqn = number[0];
  CHECK(ibv_post_send(from, &wr, &bad) == 0);
  EXPECT(send_cq, 9, IBV_WC_SUCCESS);
  tell("written", 0);
  expect_nothing_more();
  CHECK(ibv_destroy_qp(from) == 0);
}

static void extended_two(void) {
  int peer_lid;
  uint32_t peer, late_number;
  open_device();
  allocate(1 << 16);
  struct ibv_mr* zero =
      ibv_reg_mr(pd, memory, 1 << 16, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED);
  CHECK(zero != NULL);
  CHECK((domain = open_domain(-1, 0)) != NULL);
  for (int i = 0; i < 2; ++i) queue[i] = create_queue(domain, &number[i]);
  to = create_target(domain);
  await("initiator", &peer_lid, &peer);
  connect_to(to, peer_lid, peer);
  post_into(queue[1], 10);
  post_into(queue[1], 11);
  tell("target.rkey", zero->rkey);
  tell("target.0", number[0]);
  tell("target.1", number[1]);
  tell("target", to->qp_num);
  while (access("blocked", F_OK) != 0) usleep(1000);
  checkpoint_and_kill();
  tell("restarted", 0);
  next_received(10, 1);
  expect_nothing_more();
  post_into(queue[0], 12);
  next_received(12, 3);
  next_received(11, 5);
  struct ibv_srq* late = create_queue(domain, &late_number);
  post_into(late, 13);
  tell("late.address", 4096);
  tell("late", late_number);
  next_received(13, 7);
  while (access("written", F_OK) != 0) usleep(1000);
  CHECK(memory[4096] == 9 && memory[4096 + 63] == 9);
  CHECK(ibv_destroy_srq(late) == 0 && ibv_dereg_mr(zero) == 0);
  CHECK(ibv_destroy_qp(to) == 0);
}

const struct scenario extended_connection_scenarios[] = {{"extended_connection", extended_connection},
                                                         {"extended_completions", extended_completions},
                                                         {"extended_domains", extended_domains},
                                                         {"extended_handles", extended_handles},
                                                         {"extended_one", extended_one},
                                                         {"extended_two", extended_two},
                                                         {NULL, NULL}};
