/* The driver below is another one after a restart: what a program sees of its objects, and what they move, stays. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "scenario.h"

enum { kBytes = 256, kSlots = 32, kBlocked = 3 };

/* Memory: what is sent, what is received, what is written to. */
static char* sent(uint32_t n) { return memory + (n % kSlots) * kBytes; }
static char* received(uint32_t n) { return sent(n) + kSlots * kBytes; }
static char* written(uint32_t n) { return sent(n) + 2 * kSlots * kBytes; }

static uint32_t last; /* message: all are numbered */

static void stamp(char* at, uint32_t n) {
  for (uint32_t i = 0; i < kBytes; i += 4) memcpy(at + i, &(uint32_t){n * 0x10001 + i}, 4);
}
static int is_stamped(const char* at, uint32_t n) {
  char wanted[kBytes];
  stamp(wanted, n);
  return memcmp(at, wanted, kBytes) == 0;
}

static void take_in(struct ibv_qp* qp, uint32_t n) {
  struct ibv_sge sge = {(uintptr_t)received(n), kBytes, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = 1000000 + n, .sg_list = &sge, .num_sge = 1}, *bad;
  memset(received(n), 0, kBytes);
  CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void hand_over(struct ibv_qp* qp, enum ibv_wr_opcode opcode, uint32_t n, unsigned flags) {
  struct ibv_sge sge = {(uintptr_t)sent(n), kBytes, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = n, .sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;
  wr.send_flags = flags;
  wr.wr.rdma.remote_addr = (uintptr_t)written(n);
  wr.wr.rdma.rkey = mr->rkey;
  stamp(sent(n), n);
  CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void give_out(struct ibv_qp* qp, enum ibv_wr_opcode opcode, uint32_t n) {
  hand_over(qp, opcode, n, IBV_SEND_SIGNALED);
}

static void arrives(uint32_t n) {
  EXPECT(send_cq, n, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 1000000 + n, IBV_WC_SUCCESS);
  CHECK(is_stamped(received(n), n));
}

static void exchange(struct ibv_qp* one, struct ibv_qp* other) {
  for (int i = 0; i < 100; ++i) {
    struct ibv_qp* from = i % 2 == 0 ? one : other;
    take_in(from == one ? other : one, ++last);
    give_out(from, IBV_WR_SEND, last);
    arrives(last);
    memset(written(++last), 0, kBytes);
    give_out(from, IBV_WR_RDMA_WRITE, last);
    EXPECT(send_cq, last, IBV_WC_SUCCESS);
    CHECK(is_stamped(written(last), last));
  }
  expect_nothing_more();
}

/* What a program may have written down. */
struct seen {
  uint32_t numbers[2], lkey, rkey, lid;
  union ibv_gid gid;
  uint64_t guid;
  char name[IBV_SYSFS_NAME_MAX], firmware[64];
};

static struct seen look(void) {
  struct seen s;
  struct ibv_port_attr port;
  struct ibv_device_attr device;
  memset(&s, 0, sizeof(s));
  CHECK(ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
  CHECK(ibv_query_device(context, &device) == 0);
  CHECK(ibv_query_gid(context, 1, 0, &s.gid) == 0);
  s.numbers[0] = a->qp_num;
  s.numbers[1] = b->qp_num;
  s.lkey = mr->lkey;
  s.rkey = mr->rkey;
  s.lid = port.lid;
  s.guid = ibv_get_device_guid(context->device);
  strcpy(s.name, ibv_get_device_name(context->device));
  strcpy(s.firmware, device.fw_ver);
  return s;
}

/* Who opens it again finds the device it was, and opens it by the name it had. */
static void look_again(const struct seen* first) {
  int count;
  struct ibv_port_attr port;
  union ibv_gid found;
  struct ibv_device** list = ibv_get_device_list(&count);
  CHECK(list != NULL && count > 0 && strcmp(ibv_get_device_name(list[0]), first->name) == 0);
  struct ibv_context* again = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  CHECK(again != NULL && ibv_query_port(again, 1, &port) == 0 && port.lid == first->lid);
  CHECK(ibv_query_gid(again, 1, 0, &found) == 0 && memcmp(&found, &first->gid, sizeof(found)) == 0);
  CHECK(ibv_close_device(again) == 0);
}

/* As it is told of in completions. */
static void check_numbers(uint32_t n) {
  struct ibv_wc wc;
  take_in(b, n);
  give_out(a, IBV_WR_SEND, n);
  while (ibv_poll_cq(receive_cq, 1, &wc) == 0) continue;
  CHECK(wc.status == IBV_WC_SUCCESS && wc.qp_num == b->qp_num && is_stamped(received(n), n));
  while (ibv_poll_cq(send_cq, 1, &wc) == 0) continue;
  CHECK(wc.status == IBV_WC_SUCCESS && wc.qp_num == a->qp_num);
}

/* Leaves of everything something to a checkpoint: a completion that nobody polled, an armed queue, a request that has
 * run and says nothing of it, requests that had not run; and takes it up after the restart. */
static void over_a_checkpoint(void) {
  take_in(b, ++last);
  give_out(a, IBV_WR_SEND, last);
  CHECK(ibv_req_notify_cq(receive_cq, 0) == 0);
  const uint32_t unpolled = last, silent = ++last, first = last + 1;
  memset(written(silent), 0, kBytes);
  hand_over(a, IBV_WR_RDMA_WRITE, silent, 0);
  for (double end = now() + any_time; now() < end && !is_stamped(written(silent), silent);) usleep(100);
  CHECK(is_stamped(written(silent), silent));
  memset(written(silent), 1, kBytes); /* seen, and used for something else */
  for (int i = 0; i < kBlocked; ++i) give_out(a, IBV_WR_SEND, ++last);
  const struct seen before = look();
  checkpoint_and_kill();
  const struct seen after = look();
  CHECK(memcmp(&before, &after, sizeof(before)) == 0);
  look_again(&before);
  arrives(unpolled);
  expect_nothing_more();
  CHECK(written(silent)[0] == 1 && memcmp(written(silent), written(silent) + 1, kBytes - 1) == 0);
  for (uint32_t n = first; n <= last; ++n) take_in(b, n);
  for (uint32_t n = first; n <= last; ++n) arrives(n);
  struct ibv_cq* cq;
  void* unused;
  CHECK(readable(channel->fd, 10000) && ibv_get_cq_event(channel, &cq, &unused) == 0 && cq == receive_cq);
  ibv_ack_cq_events(cq, 1);
  exchange(a, b);
  check_numbers(++last);
}

/* In RESET, INIT and RTR, where the driver's answers are not what they seem (fake_verbs). */
static void expect_refused(struct ibv_qp* qp, int receives_too) {
  struct ibv_sge sge = {(uintptr_t)memory, kBytes, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = 999, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad = NULL;
  struct ibv_recv_wr receive = {.wr_id = 999, .sg_list = &sge, .num_sge = 1}, *bad_receive = NULL;
  wr.send_flags = IBV_SEND_SIGNALED;
  CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
  if (receives_too) CHECK(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL && bad_receive == &receive);
}

/* Objects made over the driver of the moment, whose real numbers are those of older objects over another driver. */
static void make_more(void) {
  const struct seen old = look();
  struct ibv_qp *one = create_queue_pair(NULL), *other = create_queue_pair(NULL);
  struct ibv_mr* region = ibv_reg_mr(pd, memory, kBytes, IBV_ACCESS_LOCAL_WRITE);
  CHECK(region != NULL && region->lkey != old.lkey && region->rkey != old.rkey);
  for (int i = 0; i < 2; ++i) CHECK(one->qp_num != old.numbers[i] && other->qp_num != old.numbers[i]);
  CHECK(one->qp_num != other->qp_num);
  expect_refused(one, 0);
  to_state(one, IBV_QPS_RESET);
  expect_refused(one, 1);
  to_init(one);
  connect_to(one, lid, other->qp_num);
  connect_to(other, lid, one->qp_num);
  exchange(one, other);
  CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0 && ibv_dereg_mr(region) == 0);
}

/* From one driver to a second and on to a third, which may be the first. */
static void drivers(void) {
  uint32_t number;
  int peer_lid;
  rnr_retry = 1;   /* the driver gets another, see fake_verbs; the program sees its own */
  read_depth = 16; /* the second has less */
  pkey_index = 1;  /* of a partition that the second has elsewhere */
  make_pair(3 * kSlots * kBytes);
  exchange(a, b);
  make_more();
  over_a_checkpoint();
  make_more();
  tell("on the second", (uint32_t)getpid());
  await("seen", &peer_lid, &number);
  over_a_checkpoint();
  make_more();
  exchange(a, b);
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  CHECK(ibv_query_qp(a, &attr, IBV_QP_RNR_RETRY, &init) == 0 && attr.rnr_retry == 1);
  CHECK(attr.max_rd_atomic == 16 && attr.max_dest_rd_atomic == 16);
  CHECK(ibv_query_qp(a, &attr, IBV_QP_PKEY_INDEX, &init) == 0 && attr.pkey_index == 1);
  CHECK(ibv_resize_cq(send_cq, 0) == EINVAL && ibv_resize_cq(send_cq, INT32_MAX) == EINVAL);
  for (int i = 0; i < 3; ++i) give_out(a, IBV_WR_RDMA_WRITE, ++last);
  CHECK(ibv_resize_cq(send_cq, 1) == EINVAL && ibv_resize_cq(send_cq, 3) == 0);
  for (uint32_t n = last - 2; n <= last; ++n) EXPECT(send_cq, n, IBV_WC_SUCCESS);
}

/* From one to another, as often as the test likes. */
static void many_drivers(void) {
  make_pair(3 * kSlots * kBytes);
  exchange(a, b);
  while (access("enough", F_OK) != 0) over_a_checkpoint();
}

/* And ends. */
static void one_driver(void) {
  make_pair(3 * kSlots * kBytes);
  exchange(a, b);
}

/* A connection has another way to its peer, here the same one, and takes it along where the adapter knows of such. */
static void alternate_path(void) {
  struct ibv_qp_attr attr = {
      .path_mig_state = IBV_MIG_REARM, .alt_port_num = 1, .alt_timeout = 14, .alt_pkey_index = 1};
  struct ibv_qp_init_attr init;
  make_pair(3 * kSlots * kBytes);
  attr.alt_ah_attr.dlid = (uint16_t)lid;
  attr.alt_ah_attr.port_num = 1;
  CHECK(ibv_modify_qp(a, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE) == 0);
  exchange(a, b);
  over_a_checkpoint();
  CHECK(ibv_query_qp(a, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE, &init) == 0);
  const int is_lost = access("new.one_way", F_OK) == 0;
  CHECK(attr.path_mig_state == (is_lost ? IBV_MIG_MIGRATED : IBV_MIG_REARM));
  CHECK(attr.alt_ah_attr.dlid == lid && attr.alt_pkey_index == 1);
  CHECK(ibv_modify_qp(a, &attr, IBV_QP_ALT_PATH) == (is_lost ? EINVAL : 0));
}

/* One has opened its device before the adapter changes, the other does so afterwards, and is told the same. */
static void opens_before(void) {
  int peer_lid;
  uint32_t number;
  await("joined", &peer_lid, &number);
  make_pair(3 * kSlots * kBytes);
  checkpoint_and_kill();
  tell("open", 0);
  await("opened", &peer_lid, &number);
  CHECK(peer_lid != lid);
  exchange(a, b);
  tell("exchanged", 0);
}

static void open_later(void) {
  int peer_lid;
  uint32_t number;
  join();
  tell("joined", 0);
  await("open", &peer_lid, &number);
  make_pair(3 * kSlots * kBytes);
  const struct seen device = look();
  CHECK(strcmp(device.name, "old0") == 0 && strcmp(device.firmware, "old") == 0 && lid != 0);
  look_again(&device);
  tell("opened", 0);
  exchange(a, b);
  await("exchanged", &peer_lid, &number);
}

static void opens_later(void) { open_later(); }

/* It knows the name already. */
static void opens_after_a_look(void) {
  int count;
  struct ibv_device** list = ibv_get_device_list(&count);
  CHECK(list != NULL && count > 0);
  ibv_free_device_list(list);
  open_later();
}

const struct scenario driver_scenarios[] = {{"drivers", drivers},
                                            {"many_drivers", many_drivers},
                                            {"one_driver", one_driver},
                                            {"alternate_path", alternate_path},
                                            {"opens_before", opens_before},
                                            {"opens_later", opens_later},
                                            {"opens_after_a_look", opens_after_a_look},
                                            {NULL, NULL}};
