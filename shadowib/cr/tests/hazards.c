/* What is dangerous about the moment of a checkpoint, brought about by a backend that misbehaves on command
 * (ib2tcp/testing/wayward/control.h). For hazards_test.py, which runs each with the guard against it and without. */
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ib2tcp/testing/wayward/control.h"
#include "scenario.h"

#define COMMAND(field, value) command(offsetof(struct wayward_control, field), value)
#define ASK(field) ask(offsetof(struct wayward_control, field))
/* `otherwise` is what has gone wrong if not. */
#define HOLDS(condition, otherwise) holds((condition) != 0, otherwise, __LINE__)

enum { kBytes = 64, kPatience = 2000 };

static void holds(int condition, const char* otherwise, int line) {
  if (condition) return;
  fprintf(stderr, "hazards.c:%d: %s\n", line, otherwise);
  exit(1);
}

static int control(void) {
  const char* name = getenv("SHADOWIB_WAYWARD");
  CHECK(name != NULL);
  const int fd = open(name, O_RDWR | O_CLOEXEC);
  CHECK(fd >= 0);
  return fd;
}

static void command(size_t offset, uint32_t value) {
  const int fd = control();
  CHECK(pwrite(fd, &value, sizeof(value), (off_t)offset) == sizeof(value) && close(fd) == 0);
}

static uint32_t ask(size_t offset) {
  uint32_t value;
  const int fd = control();
  CHECK(pread(fd, &value, sizeof(value), (off_t)offset) == sizeof(value) && close(fd) == 0);
  return value;
}

/* From now on nobody hears what has run, until the checkpoint to come has asked often. */
static void withhold_answers(void) {
  COMMAND(hold_sends, 1);
  COMMAND(hold_acknowledgements, 1);
}
static void until_asked_often(void) { COMMAND(patience, kPatience); }

/* Everybody may do everything. */
static void make_free_pair(void) {
  const int access =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  qp_access = (unsigned)access;
  make_pair(1 << 16);
  CHECK(ibv_dereg_mr(mr) == 0);
  CHECK((mr = ibv_reg_mr(pd, memory, 1 << 16, access)) != NULL);
}

/* Places in memory. */
static volatile char* place(int n) { return memory + 1024 * n; }
static volatile uint64_t* number_at(int n) { return (volatile uint64_t*)place(n); }

static void fill(int n, int c) { memset((char*)place(n), c, kBytes); }

static void take_in(struct ibv_qp* qp, uint64_t id, int to) {
  struct ibv_sge sge = {(uintptr_t)place(to), kBytes, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* One request between two places. */
static struct ibv_send_wr request(enum ibv_wr_opcode opcode, uint64_t id, struct ibv_sge* from, int to,
                                  unsigned flags) {
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = from, .num_sge = 1, .opcode = opcode, .send_flags = flags};
  wr.wr.rdma.remote_addr = (uintptr_t)place(to);
  wr.wr.rdma.rkey = mr->rkey;
  return wr;
}

static void give(struct ibv_qp* qp, enum ibv_wr_opcode opcode, uint64_t id, int from, int to, unsigned flags) {
  struct ibv_sge sge = {(uintptr_t)place(from), kBytes, mr->lkey};
  struct ibv_send_wr wr = request(opcode, id, &sge, to, flags), *bad;
  CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void write_to(struct ibv_qp* qp, uint64_t id, int from, int to, unsigned flags) {
  give(qp, IBV_WR_RDMA_WRITE, id, from, to, flags);
}

static void await_char(int n, int c) {
  for (double end = now() + any_time; place(n)[kBytes - 1] != (char)c; usleep(100))
    HOLDS(now() < end, "what was written has not come");
}

/* H1: the receiver has seen a write, and used the memory for something else, before the writer hears of it. */
static void write_seen(void) {
  make_free_pair();
  withhold_answers();
  fill(1, 'w');
  write_to(a, 1, 1, 2, IBV_SEND_SIGNALED);
  await_char(2, 'w');
  fill(2, '-');
  until_asked_often();
  checkpoint_and_kill();
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  HOLDS(place(2)[0] == '-', "the write was made twice: over what the program has put there since");
  expect_nothing_more();
}

/* H2: an atomic has run, and nobody knows. */
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
  until_asked_often();
  checkpoint_and_kill();
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
  until_asked_often();
  checkpoint_and_kill();
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
  until_asked_often();
  checkpoint_and_kill();
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

/* H5: a message that has no receive yet and may be refused once. It sets out when its receiver is stopped, and the
 * checkpoint takes its time, since of another queue pair an answer is withheld. */
static void refused_while_stopped(void) {
  rnr_retry = 1;
  min_rnr_timer = 1; /* 10 us */
  make_free_pair();
  struct ibv_qp *c = create_queue_pair(NULL), *d = create_queue_pair(NULL);
  connect_to(c, lid, d->qp_num);
  connect_to(d, lid, c->qp_num);
  fill(1, '1');
  COMMAND(hold_sends, c->qp_num);
  COMMAND(hold_acknowledgements, c->qp_num);
  write_to(c, 2, 1, 3, IBV_SEND_SIGNALED);
  await_char(3, '1');
  COMMAND(hold_posts, a->qp_num);
  COMMAND(begins_with, 1); /* after the restart posts wait until we are ready */
  give(a, IBV_WR_SEND, 1, 1, 0, IBV_SEND_SIGNALED);
  COMMAND(patience_with_posts, 1);
  until_asked_often();
  checkpoint_and_kill();
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  take_in(b, 101, 2);
  COMMAND(hold_posts, 0);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  HOLDS(place(2)[0] == '1', "the message is another");
  expect_nothing_more();
}

/* H7: two connections with one completion queue, of which some has been polled, some a checkpoint has taken, some
 * came after it. Requests 1 and 3 are of A, 2 of C, all complete before the checkpoint; 4 is of A, and later. */
static struct ibv_qp *c, *d;

static void half_poll(void) {
  make_free_pair();
  c = create_queue_pair(NULL);
  d = create_queue_pair(NULL);
  connect_to(c, lid, d->qp_num);
  connect_to(d, lid, c->qp_num);
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
  c = create_queue_pair(NULL);
  d = create_queue_pair(NULL);
  connect_to(c, lid, d->qp_num);
  connect_to(d, lid, c->qp_num);
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
  c = create_queue_pair(NULL);
  send_cq = others;
  d = create_queue_pair(NULL);
  connect_to(c, lid, d->qp_num);
  connect_to(d, lid, c->qp_num);
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
  until_asked_often();
  checkpoint_and_kill();
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
  until_asked_often();
  checkpoint_and_kill();
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

/* H14: a thread is inside of an adapter's library when it is to be stopped. */
static void* post_one(void* unused) {
  (void)unused;
  write_to(a, 1, 1, 2, IBV_SEND_SIGNALED);
  return NULL;
}

static void stopped_in_a_post(void) {
  pthread_t thread;
  make_free_pair();
  fill(1, 'w');
  COMMAND(stay_inside, 1);
  CHECK(pthread_create(&thread, NULL, post_one, NULL) == 0);
  while (ASK(inside) == 0) usleep(100);
  const int rc = take_checkpoint(1);
  HOLDS(ASK(stopped_inside) == 0, "a thread was stopped inside the backend");
  CHECK(rc == 1);
  CHECK(pthread_join(thread, NULL) == 0);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  CHECK(place(2)[0] == 'w');
}

/* H14: one inside of the loader, with its lock, until after the moment for which it was to be stopped. */
static int stay_in_the_loader(struct dl_phdr_info* info, size_t size, void* entered) {
  (void)info;
  (void)size;
  *(volatile int*)entered = 1;
  while (ASK(paused) == 0) usleep(1000);
  for (double end = now() + 1; now() < end;) usleep(1000);
  return 1;
}

static void* look_at_libraries(void* entered) {
  dl_iterate_phdr(stay_in_the_loader, entered);
  return NULL;
}

static void stopped_in_the_loader(void) {
  static volatile int entered;
  pthread_t thread;
  make_free_pair();
  CHECK(pthread_create(&thread, NULL, look_at_libraries, (void*)&entered) == 0);
  while (!entered) usleep(100);
  checkpoint_and_kill();
  CHECK(pthread_join(thread, NULL) == 0);
  send_one(1);
}

/* H16: a write has completed at its sender, and the receiver's adapter has not put it into memory yet. */
static void write_on_its_way_to_memory(void) {
  make_free_pair();
  fill(1, 'w');
  COMMAND(place_late, 1);
  write_to(a, 1, 1, 2, IBV_SEND_SIGNALED);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  CHECK(place(2)[0] == 0);
  checkpoint_and_kill();
  HOLDS(place(2)[0] == 'w' && place(2)[kBytes - 1] == 'w', "a write that had completed is lost");
  send_one(2);
}

/* H17: a message of XRC is in the receiver's memory, which knows it by looking there. That its receive was taken and
 * that it has run is not told yet; the target of the connection itself never has a receive. */
static void extended_write_seen(void) {
  struct ibv_xrcd_init_attr domain_attr = {IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, -1, O_CREAT};
  struct ibv_srq_init_attr_ex srq_attr = {.attr = {.max_wr = 4, .max_sge = 1}, .srq_type = IBV_SRQT_XRC};
  struct ibv_qp_init_attr_ex target = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
  struct ibv_qp_init_attr initiator = {.cap = {kDepth, 0, 1, 0, 0}, .qp_type = IBV_QPT_XRC_SEND};
  uint32_t number;
  open_device();
  allocate(1 << 16);
  target.xrcd = srq_attr.xrcd = ibv_open_xrcd(context, &domain_attr);
  srq_attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  srq_attr.pd = pd;
  srq_attr.cq = receive_cq;
  struct ibv_srq* srq = ibv_create_srq_ex(context, &srq_attr);
  CHECK(srq != NULL && ibv_get_srq_num(srq, &number) == 0);
  initiator.send_cq = send_cq;
  CHECK((a = ibv_create_qp(pd, &initiator)) != NULL && (b = ibv_create_qp_ex(context, &target)) != NULL);
  to_init(a);
  to_init(b);
  connect_to(a, lid, b->qp_num);
  connect_to(b, lid, a->qp_num);
  struct ibv_sge sge = {(uintptr_t)place(1), kBytes, mr->lkey};
  struct ibv_recv_wr receive = {.wr_id = 101, .sg_list = &sge, .num_sge = 1}, *bad_receive;
  CHECK(ibv_post_srq_recv(srq, &receive, &bad_receive) == 0);
  withhold_answers();
  COMMAND(hold_receives, 1);
  fill(1, 'w');
  struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE_WITH_IMM, 1, &sge, 2, IBV_SEND_SIGNALED), *bad;
  wr.qp_type.xrc.remote_srqn = number;
  CHECK(ibv_post_send(a, &wr, &bad) == 0);
  await_char(2, 'w');
  fill(2, '-');
  until_asked_often();
  checkpoint_and_kill();
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  HOLDS(place(2)[0] == '-', "the write was made twice");
  expect_nothing_more();
}

/* H18: see connections.c, whose first request it loses. */
void lose_datagrams(uint32_t count) { COMMAND(lose_datagrams, count); }

/* H19: a child has its parent's handles and none of the objects. */
static int in_child(void) {
  struct ibv_sge sge = {(uintptr_t)place(1), kBytes, mr->lkey};
  struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 9, &sge, 2, IBV_SEND_SIGNALED), *bad;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  return ibv_post_send(a, &wr, &bad) != 0 && ibv_modify_qp(a, &attr, IBV_QP_STATE) == EPERM &&
         ibv_destroy_qp(a) == EPERM && ibv_dereg_mr(mr) == EPERM && ibv_destroy_cq(send_cq) == EPERM;
}

static void forked(void) {
  int status;
  make_free_pair();
  const pid_t child = fork();
  if (child == 0) _exit(in_child() ? 0 : 3);
  CHECK(waitpid(child, &status, 0) == child);
  HOLDS(status == 0, "the child took its parent's objects for its own");
  send_one(1);
  checkpoint_and_kill();
  send_one(2);
}

/* H20: the peer is gone and nobody has said so yet: what an adapter would say when it has waited long enough. */
static void peer_gone(void) {
  make_free_pair();
  COMMAND(hold_posts, 1);
  take_in(a, 101, 3);
  write_to(a, 1, 1, 2, IBV_SEND_SIGNALED);
  write_to(a, 2, 1, 2, 0);
  CHECK(ibv_destroy_qp(b) == 0);
  checkpoint_and_kill();
  EXPECT(receive_cq, 101, IBV_WC_WR_FLUSH_ERR);
  EXPECT(send_cq, 1, IBV_WC_RETRY_EXC_ERR);
  EXPECT(send_cq, 2, IBV_WC_WR_FLUSH_ERR);
  expect_nothing_more();
}

/* H20: the peer is not ready to receive and cannot become so, since its program is stopped. The adapter gives up
 * while threads are stopped: after the polls of settling, and later. */
static void peer_not_ready(void) {
  make_free_pair();
  to_state(b, IBV_QPS_RESET);
  to_init(b);
  COMMAND(hold_posts, 1);
  take_in(a, 101, 3);
  take_in(b, 102, 2);
  fill(1, '1');
  write_to(a, 1, 1, 4, IBV_SEND_SIGNALED);
  give(a, IBV_WR_SEND, 2, 1, 0, 0);
  for (uint32_t polls = 3; polls <= 9; polls += 2) {
    COMMAND(lose_peer, polls);
    checkpoint_and_go_on();
    COMMAND(lose_peer, 0);
    expect_nothing_more();
    HOLDS(ASK(withheld) == 2, "a request is lost");
  }
  COMMAND(lose_peer, 3);
  COMMAND(begins_with, 1);
  checkpoint_and_kill();
  expect_nothing_more();
  HOLDS(ASK(withheld) == 2, "a request is lost");
  connect_to(b, lid, a->qp_num);
  COMMAND(hold_posts, 0);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 102, IBV_WC_SUCCESS);
  CHECK(place(2)[0] == '1' && place(4)[0] == '1');
  fill(1, '3');
  give(b, IBV_WR_SEND, 3, 1, 0, IBV_SEND_SIGNALED);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  expect_nothing_more();
}

const struct scenario hazard_scenarios[] = {{"write_seen", write_seen},
                                            {"atomic_run", atomic_run},
                                            {"message_taken", message_taken},
                                            {"message_acknowledged", message_acknowledged},
                                            {"unsignaled_tail", unsignaled_tail},
                                            {"refused_while_stopped", refused_while_stopped},
                                            {"half_polled", half_polled},
                                            {"destroyed_half_polled", destroyed_half_polled},
                                            {"out_of_turn", out_of_turn},
                                            {"forced_event", forced_event},
                                            {"read_run", read_run},
                                            {"inline_kept", inline_kept},
                                            {"ids_after_a_restart", ids_after_a_restart},
                                            {"datagram_taken", datagram_taken},
                                            {"datagram_source", datagram_source},
                                            {"restarts_in_a_row", restarts_in_a_row},
                                            {"stopped_in_a_post", stopped_in_a_post},
                                            {"stopped_in_the_loader", stopped_in_the_loader},
                                            {"write_on_its_way_to_memory", write_on_its_way_to_memory},
                                            {"extended_write_seen", extended_write_seen},
                                            {"forked", forked},
                                            {"peer_gone", peer_gone},
                                            {"peer_not_ready", peer_not_ready},
                                            {NULL, NULL}};
