/* Multicast groups. */
#include <errno.h>
#include <string.h>

#include "scenario.h"

enum { kKey = 0x22222222, kHeader = 40, kEverybody = 0xffffff, kGroupLid = 0xc123 };

static const union ibv_gid group = {.raw = {0xff, 0x12, [14] = 0x12, 0x34}};

static struct ibv_qp* create_member(int attached) {
  struct ibv_qp* qp = create_datagram_qp(kKey);
  if (attached) CHECK(ibv_attach_mcast(qp, &group, kGroupLid) == 0);
  return qp;
}

static int by_gid_only(void) { return gid_index >= 0; }

static struct ibv_ah* create_handle(int global) {
  struct ibv_ah_attr attr = {.dlid = kGroupLid, .port_num = 1, .is_global = (uint8_t)(global || by_gid_only())};
  attr.grh.dgid = group;
  attr.grh.hop_limit = 64;
  struct ibv_ah* ah = ibv_create_ah(pd, &attr);
  CHECK(ah != NULL);
  return ah;
}

static void send_to_all(struct ibv_qp* qp, uint64_t id, struct ibv_ah* ah) {
  struct ibv_sge sge = {(uintptr_t)memory + 60000, 64, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
  memset(memory + 60000, (int)id, 64);
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = kEverybody;
  wr.wr.ud.remote_qkey = kKey;
  CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static char* place_of(uint64_t id) { return memory + 512 * (id - 100); }

static void post_place(struct ibv_qp* qp, uint64_t id) {
  struct ibv_sge sge = {(uintptr_t)place_of(id), 512, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* What is received next: request `what` of the queue pair `sender` at `slid`. Returns the receive and its queue
 * pair's number. */
static uint64_t next_copy(int what, uint32_t sender, int slid, int global, uint32_t* number) {
  struct ibv_wc wc = {.wr_id = ~0ull};
  for (double end = now() + any_time; now() < end && ibv_poll_cq(receive_cq, 1, &wc) == 0;) continue;
  CHECK(wc.wr_id != ~0ull && wc.status == IBV_WC_SUCCESS && wc.byte_len == kHeader + 64);
  CHECK(wc.src_qp == sender && wc.slid == slid);
  CHECK(place_of(wc.wr_id)[kHeader] == (char)what);
  global |= by_gid_only();
  CHECK(((wc.wc_flags & IBV_WC_GRH) != 0) == global);
  const struct ibv_grh* header = (const struct ibv_grh*)place_of(wc.wr_id);
  union ibv_gid first;
  CHECK(ibv_query_gid(context, 1, 0, &first) == 0);
  if (global && slid == lid) CHECK(memcmp(&header->sgid, &first, 16) == 0);
  if (global) CHECK(memcmp(&header->dgid, &group, 16) == 0);
  *number = wc.qp_num;
  return wc.wr_id;
}

static void expect_copy(uint64_t id, const struct ibv_qp* qp, int what, uint32_t sender, int slid, int global) {
  uint32_t number;
  CHECK(next_copy(what, sender, slid, global, &number) == id && number == qp->qp_num);
}

/* One of two members' copies, which come in any order. Returns which. */
struct member {
  uint64_t id;
  const struct ibv_qp* qp;
};
static int expect_either(const struct member members[2], int what, int global) {
  uint32_t number;
  const uint64_t id = next_copy(what, a->qp_num, lid, global, &number);
  const int which = id == members[1].id;
  CHECK(id == members[which].id && number == members[which].qp->qp_num);
  return which;
}

static void expect_both(const struct member members[2], int what, int global) {
  const int first = expect_either(members, what, global);
  CHECK(expect_either(members, what, global) != first);
}

/* Who was attached is, who was detached is not, and a datagram that was held goes to everybody once. */
static void multicast(void) {
  open_device();
  allocate(1 << 16);
  a = create_member(!is_soft_roce()); /* which sends a copy to the sender, too */
  b = create_member(1);
  struct ibv_qp *third = create_member(1), *detached = create_member(1);
  CHECK(ibv_detach_mcast(detached, &group, kGroupLid) == 0);
  struct ibv_ah *by_gid = create_handle(1), *by_lid = create_handle(0);
  for (uint64_t id = 0; id < 4; ++id) {
    post_place(b, 100 + 10 * id);
    post_place(third, 101 + 10 * id);
  }
  post_place(detached, 150);
  post_place(a, 151);
  send_to_all(a, 1, by_gid);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  const struct member first[] = {{100, b}, {101, third}}, second[] = {{110, b}, {111, third}};
  const int was_first = expect_either(first, 1, 1);
  to_state(a, IBV_QPS_SQD);
  send_to_all(a, 2, by_lid);
  checkpoint_and_kill();
  CHECK(expect_either(first, 1, 1) != was_first);
  expect_nothing_more();
  CHECK(ibv_destroy_qp(b) == EBUSY);
  to_state(a, IBV_QPS_RTS);
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  expect_both(second, 2, 0);
  CHECK(ibv_detach_mcast(third, &group, kGroupLid) == 0);
  CHECK(ibv_attach_mcast(detached, &group, kGroupLid) == 0);
  send_to_all(a, 3, by_gid);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  const struct member last[] = {{120, b}, {150, detached}};
  expect_both(last, 3, 1);
  expect_nothing_more();
  CHECK(ibv_destroy_qp(third) == 0);
  CHECK(ibv_close_device(context) == 0); /* with what is left, attached or not */
}

/* A group as RoCE has it, whose datagrams come back only to a host that is in it by IP: before, and after the
 * restart. */
static void group_of_an_address(void) {
  const union ibv_gid mapped = {.raw = {[10] = 0xff, 0xff, 239, 1, 2, 3}};
  open_device();
  allocate(1 << 16);
  a = create_member(0);
  b = create_member(0);
  CHECK(ibv_attach_mcast(b, &mapped, 0) == 0);
  struct ibv_ah_attr attr = address_of(0);
  attr.is_global = 1;
  attr.grh.dgid = mapped;
  struct ibv_ah* ah = ibv_create_ah(pd, &attr);
  CHECK(ah != NULL);
  for (uint64_t id = 100; id < 103; ++id) post_place(b, id);
  for (int what = 1; what < 3; ++what) {
    struct ibv_wc wc = {.wr_id = ~0ull};
    send_to_all(a, (uint64_t)what, ah);
    EXPECT(send_cq, (uint64_t)what, IBV_WC_SUCCESS);
    for (double end = now() + any_time; now() < end && ibv_poll_cq(receive_cq, 1, &wc) == 0;) continue;
    CHECK(wc.wr_id == 99 + (uint64_t)what && wc.status == IBV_WC_SUCCESS && wc.src_qp == a->qp_num);
    CHECK(place_of(wc.wr_id)[kHeader] == (char)what);
    if (what == 1) checkpoint_and_kill();
  }
  CHECK(ibv_destroy_qp(b) == EBUSY && ibv_detach_mcast(b, &mapped, 0) == 0);
  send_to_all(a, 3, ah);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  expect_nothing_more();
  CHECK(ibv_destroy_qp(b) == 0);
}

/* Three processes: what one sends after the restart, the others get, attached before or after. */
static void multicast_member(const char* self, int after) {
  int sender_lid, unused;
  uint32_t sender, number;
  open_device();
  allocate(1 << 16);
  b = create_member(!after);
  post_place(b, 100);
  post_place(b, 101);
  tell(self, b->qp_num);
  await("sender", &sender_lid, &sender);
  if (!after) expect_copy(100, b, 1, sender, sender_lid, 1);
  await("restarted", &unused, &number);
  if (after) CHECK(ibv_attach_mcast(b, &group, kGroupLid) == 0);
  tell(after ? "late again" : "early again", 0);
  expect_copy(after ? 100 : 101, b, 2, sender, sender_lid, 1);
}

static void multicast_early(void) { multicast_member("early", 0); }
static void multicast_late(void) { multicast_member("late", 1); }

static void multicast_sender(void) {
  int peer_lid;
  uint32_t number;
  open_device();
  allocate(1 << 16);
  a = create_member(0);
  struct ibv_ah* ah = create_handle(1);
  await("early", &peer_lid, &number);
  await("late", &peer_lid, &number);
  tell("sender", a->qp_num);
  send_to_all(a, 1, ah);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  checkpoint_and_kill();
  tell("restarted", 0);
  await("early again", &peer_lid, &number);
  await("late again", &peer_lid, &number);
  send_to_all(a, 2, ah);
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
}

const struct scenario multicast_scenarios[] = {{"multicast", multicast},
                                               {"group_of_an_address", group_of_an_address},
                                               {"multicast_early", multicast_early},
                                               {"multicast_late", multicast_late},
                                               {"multicast_sender", multicast_sender},
                                               {NULL, NULL}};
