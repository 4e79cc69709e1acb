/* Hazards of requests: what may have run, or not. */
#include <infiniband/verbs.h>
#include <unistd.h>

#include "hazards.h"

/* H1: the receiver has seen a write, and used the memory for something else, before the writer hears of it. */
static void write_seen(void) {
  make_free_pair();
  withhold_answers();
  fill(1, 'w');
  write_to(a, 1, 1, 2, IBV_SEND_SIGNALED);
  await_char(2, 'w');
  fill(2, '-');
  checkpoint_and_kill_answering_late();
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  HOLDS(place(2)[0] == '-', "the write was made twice: over what the program has put there since");
  expect_nothing_more();
}

/* H2: an atomic has run, and nobody knows. */
static volatile uint64_t* number_at(int n) { return (volatile uint64_t*)place(n); }

static void atomic_run(void) {
  make_free_pair();
  withhold_answers();
  struct ibv_sge sge = {(uintptr_t)place(1), 8, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD}, *bad;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.atomic.remote_addr = (uintptr_t)place(2);
  wr.wr.atomic.rkey = mr->rkey;
  wr.wr.atomic.compare_add = 1;
  *number_at(1) = ~0ull;
  CHECK(ibv_post_send(a, &wr, &bad) == 0);
  for (double end = now() + any_time; *number_at(1) == ~0ull; usleep(100)) HOLDS(now() < end, "nothing was added");
  checkpoint_and_kill_answering_late();
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  HOLDS(*number_at(2) == 1, "it was added twice");
  HOLDS(*number_at(1) == 0, "it found what it had added itself");
  expect_nothing_more();
}

/* H3: the receiver has taken a message, and the sender waits for the acknowledgement. */
static void message_taken(void) {
  make_free_pair();
  withhold_answers();
  fill(1, '1');
  fill(3, '3');
  take_in(b, 101, 2);
  give(a, IBV_WR_SEND, 1, 1, 0, IBV_SEND_SIGNALED);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  checkpoint_and_kill_answering_late();
  take_in(b, 102, 2);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  give(a, IBV_WR_SEND, 3, 3, 0, IBV_SEND_SIGNALED);
  EXPECT(receive_cq, 102, IBV_WC_SUCCESS);
  HOLDS(place(2)[0] == '3', "the message came twice");
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  expect_nothing_more();
}

/* H3, the other way round: the sender has the acknowledgement, and the receive has not completed yet. */
static void message_acknowledged(void) {
  make_free_pair();
  COMMAND(hold_receives, 1);
  fill(1, '1');
  take_in(b, 101, 2);
  give(a, IBV_WR_SEND, 1, 1, 0, IBV_SEND_SIGNALED);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  checkpoint_and_kill_answering_late();
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  HOLDS(place(2)[0] == '1', "the message is another");
  expect_nothing_more();
}

/* H4: writes that nobody wants to hear of. */
static void unsignaled_tail(void) {
  make_free_pair();
  fill(1, 'w');
  for (int n = 2; n < 5; ++n) write_to(a, (uint64_t)n, 1, n, 0);
  for (int n = 2; n < 5; ++n) await_char(n, 'w');
  for (int n = 2; n < 5; ++n) fill(n, '-');
  checkpoint_and_go_on();
  expect_nothing_more();
  checkpoint_and_kill();
  expect_nothing_more();
  write_to(a, 5, 1, 5, IBV_SEND_SIGNALED);
  EXPECT(send_cq, 5, IBV_WC_SUCCESS);
  for (int n = 2; n < 5; ++n) HOLDS(place(n)[0] == '-', "an unsignaled write was made twice");
  expect_nothing_more();
}

/* H4: messages and, before them, writes that nobody wants to hear of. The last two messages wait for receives. */
static void unsignaled_before_a_wait(void) {
  make_free_pair();
  fill(1, 'w');
  for (int n = 2; n < 5; ++n) write_to(a, (uint64_t)n, 1, n, 0);
  for (int n = 2; n < 5; ++n) await_char(n, 'w');
  for (int n = 2; n < 5; ++n) fill(n, '-');
  for (int n = 0; n < 2; ++n) take_in(b, 101 + (uint64_t)n, 9 + n);
  for (int n = 0; n < 4; ++n) {
    fill(5 + n, '1' + n);
    give(a, IBV_WR_SEND, 11 + (uint64_t)n, 5 + n, 0, 0);
  }
  for (int n = 0; n < 2; ++n) EXPECT(receive_cq, 101 + (uint64_t)n, IBV_WC_SUCCESS);
  checkpoint_and_go_on();
  expect_nothing_more();
  checkpoint_and_kill();
  expect_nothing_more();
  for (int n = 2; n < 4; ++n) take_in(b, 101 + (uint64_t)n, 9 + n);
  for (int n = 2; n < 4; ++n) EXPECT(receive_cq, 101 + (uint64_t)n, IBV_WC_SUCCESS);
  for (int n = 0; n < 4; ++n) HOLDS(place(9 + n)[0] == '1' + n, "a message is lost, or came twice");
  for (int n = 2; n < 5; ++n) HOLDS(place(n)[0] == '-', "an unsignaled write was made twice");
  expect_nothing_more();
}

/* H5: a message that has no receive yet and may be refused once. It sets out when its receiver is stopped, and the
 * checkpoint takes its time, since of another queue pair an answer is withheld. */
static void refused_while_stopped(void) {
  rnr_retry = 1;
  min_rnr_timer = 1; /* 10 us */
  make_free_pair();
  make_second_pair();
  fill(1, '1');
  COMMAND(hold_sends, c->qp_num);
  COMMAND(hold_acknowledgements, c->qp_num);
  write_to(c, 2, 1, 3, IBV_SEND_SIGNALED);
  await_char(3, '1');
  COMMAND(hold_posts, a->qp_num);
  COMMAND(begins_with, 1); /* after the restart posts wait until we are ready */
  give(a, IBV_WR_SEND, 1, 1, 0, IBV_SEND_SIGNALED);
  COMMAND(patience_with_posts, 1);
  checkpoint_and_kill_answering_late();
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  take_in(b, 101, 2);
  COMMAND(hold_posts, 0);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  HOLDS(place(2)[0] == '1', "the message is another");
  expect_nothing_more();
}

/* H9: a read has run, the owner knows by the fenced message behind it and has changed what was read. */
static void read_run(void) {
  make_free_pair();
  withhold_answers();
  fill(2, '1');
  take_in(b, 101, 3);
  give(a, IBV_WR_RDMA_READ, 1, 1, 2, IBV_SEND_SIGNALED);
  give(a, IBV_WR_SEND, 2, 4, 0, IBV_SEND_SIGNALED | IBV_SEND_FENCE);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  fill(2, '2');
  checkpoint_and_kill_answering_late();
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  HOLDS(place(1)[0] == '1', "it was read twice: it has what was written after it had run");
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  expect_nothing_more();
}

/* H9: what stands in a request stays in it, inline data too, whose place the program uses again. Two go as one list
 * and wait for receives; the second has no data and an immediate, and asks for an event. */
static void inline_kept(void) {
  struct ibv_cq* cq;
  void* cookie;
  make_free_pair();
  struct ibv_qp_init_attr init = {.send_cq = send_cq, .recv_cq = receive_cq, .qp_type = IBV_QPT_RC};
  init.cap = (struct ibv_qp_cap){kDepth, kDepth, 1, 1, kBytes};
  CHECK((c = ibv_create_qp(pd, &init)) != NULL);
  to_init(c);
  d = create_queue_pair(NULL);
  connect_to(c, lid, d->qp_num);
  connect_to(d, lid, c->qp_num);
  fill(1, 'i');
  struct ibv_sge sge = {(uintptr_t)place(1), kBytes, 0};
  struct ibv_send_wr second = {.wr_id = 2, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = 77}, *bad;
  second.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
  struct ibv_send_wr first = request(IBV_WR_SEND, 1, &sge, 0, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
  first.next = &second;
  CHECK(ibv_post_send(c, &first, &bad) == 0);
  fill(1, '-');
  CHECK(ibv_req_notify_cq(receive_cq, 1) == 0);
  checkpoint_and_kill();
  take_in(d, 101, 2);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  HOLDS(place(2)[0] == 'i' && place(2)[kBytes - 1] == 'i', "inline data is what the program has put there since");
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  CHECK(!readable(channel->fd, 0));
  take_in(d, 102, 2);
  CHECK(readable(channel->fd, 1000 * any_time) && ibv_get_cq_event(channel, &cq, &cookie) == 0);
  ibv_ack_cq_events(cq, 1);
  struct ibv_wc wc;
  CHECK(ibv_poll_cq(receive_cq, 1, &wc) == 1 && wc.wr_id == 102 && wc.byte_len == 0);
  CHECK((wc.wc_flags & IBV_WC_WITH_IMM) != 0 && wc.imm_data == 77);
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  expect_nothing_more();
}

/* H12: datagrams. */
enum { kKey = 0x1234, kHeader = 40 };
static struct ibv_ah* ah;

static void make_datagram_pair(void) {
  open_device();
  allocate(1 << 16);
  a = create_datagram_qp(kKey);
  b = create_datagram_qp(kKey);
  struct ibv_ah_attr attr = address_of(lid);
  CHECK((ah = ibv_create_ah(pd, &attr)) != NULL);
}

static void send_datagram(uint64_t id, int c) {
  fill(1, c);
  struct ibv_sge sge = {(uintptr_t)place(1), kBytes, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = b->qp_num;
  wr.wr.ud.remote_qkey = kKey;
  CHECK(ibv_post_send(a, &wr, &bad) == 0);
}

static void take_datagram_in(uint64_t id, int to) {
  struct ibv_sge sge = {(uintptr_t)place(to), kHeader + kBytes, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_recv(b, &wr, &bad) == 0);
}

static void datagram_taken(void) {
  make_datagram_pair();
  take_datagram_in(101, 2);
  take_datagram_in(102, 3);
  COMMAND(lose_datagrams, 1);
  send_datagram(1, '1');
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  withhold_answers();
  send_datagram(2, '2');
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  HOLDS(place(2)[kHeader] == '2', "the first datagram was to be lost");
  checkpoint_and_kill_answering_late();
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  send_datagram(3, '3');
  EXPECT(receive_cq, 102, IBV_WC_SUCCESS);
  HOLDS(place(3)[kHeader] == '3', "a datagram came twice");
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  expect_nothing_more();
}

static void datagram_source(void) {
  make_datagram_pair();
  take_datagram_in(101, 2);
  COMMAND(first_number, 0x9000);
  checkpoint_and_kill();
  send_datagram(1, '1');
  struct ibv_wc wc = {.wr_id = 0};
  for (double end = now() + any_time; now() < end && ibv_poll_cq(receive_cq, 1, &wc) == 0;) continue;
  CHECK(wc.wr_id == 101 && wc.status == IBV_WC_SUCCESS && place(2)[kHeader] == '1');
  HOLDS(wc.src_qp == a->qp_num, "the datagram is of somebody that nobody knows");
}

/* H13: restarts in a row, completions of before the first read after the second, and requests in between. */
static void restarts_in_a_row(void) {
  make_free_pair();
  fill(1, 'w');
  for (int n = 2; n < 5; ++n) write_to(a, (uint64_t)n, 1, n, n == 2 ? IBV_SEND_SIGNALED : 0);
  await_char(4, 'w');
  for (uint64_t restart = 1; restart <= 3; ++restart) {
    checkpoint_and_kill();
    for (int n = 2; n < 5; ++n) fill(n, '-');
    write_to(a, 10 + restart, 1, 5, 0);
    await_char(5, 'w');
    fill(5, '-');
    write_to(a, 20 + restart, 1, 6, IBV_SEND_SIGNALED);
    await_char(6, 'w');
    fill(6, '-');
    write_to(a, 30 + restart, 1, 7, 0);
    await_char(7, 'w');
    fill(7, '-');
  }
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  for (uint64_t restart = 1; restart <= 3; ++restart) EXPECT(send_cq, 20 + restart, IBV_WC_SUCCESS);
  expect_nothing_more();
  for (int n = 2; n < 8; ++n) HOLDS(place(n)[0] == '-', "a write was made twice");
}

const struct scenario hazard_request_scenarios[] = {{"write_seen", write_seen},
                                                    {"atomic_run", atomic_run},
                                                    {"message_taken", message_taken},
                                                    {"message_acknowledged", message_acknowledged},
                                                    {"unsignaled_tail", unsignaled_tail},
                                                    {"unsignaled_before_a_wait", unsignaled_before_a_wait},
                                                    {"refused_while_stopped", refused_while_stopped},
                                                    {"read_run", read_run},
                                                    {"inline_kept", inline_kept},
                                                    {"datagram_taken", datagram_taken},
                                                    {"datagram_source", datagram_source},
                                                    {"restarts_in_a_row", restarts_in_a_row},
                                                    {NULL, NULL}};
