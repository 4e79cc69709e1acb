/* Unreliable datagrams and unreliable connections. */
#include <arpa/inet.h>
#include <endian.h>
#include <string.h>

#include "scenario.h"

enum { kKey = 0x1234, kHeader = 40 };

static void send_datagram(struct ibv_qp* qp, uint64_t id, struct ibv_ah* ah, uint32_t number) {
  struct ibv_sge sge = {(uintptr_t)memory + 4096 + 64 * id, 64, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
  memory[4096 + 64 * id] = (char)id;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = number;
  wr.wr.ud.remote_qkey = kKey;
  CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void post_datagram_receive(struct ibv_qp* qp, uint64_t id) {
  struct ibv_sge sge = {(uintptr_t)memory + 1024 * (id - 100) + 8192, 512, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* The header in front of a datagram names its ends; `gid` is both. RoCE over IPv4 has one of IPv4, behind 20 bytes of
 * nothing. */
static void check_header(const struct ibv_grh* header, const union ibv_gid* both) {
  static const uint8_t ipv4[12] = {[10] = 0xff, 0xff};
  if (gid_index >= 0 && memcmp(both, ipv4, 12) == 0) {
    const uint8_t* ip = (const uint8_t*)header + 20;
    CHECK(ip[0] == 0x45 && memcmp(ip + 12, both->raw + 12, 4) == 0 && memcmp(ip + 16, both->raw + 12, 4) == 0);
  } else {
    CHECK(memcmp(&header->sgid, both, 16) == 0 && memcmp(&header->dgid, both, 16) == 0);
  }
}

/* Receive `id` got request `what` of `sender`; returns the way back. */
static struct ibv_ah* next_datagram(uint64_t id, int what, const struct ibv_qp* sender, const union ibv_gid* by) {
  struct ibv_wc wc = {.wr_id = ~0ull};
  for (double end = now() + any_time; now() < end && ibv_poll_cq(receive_cq, 1, &wc) == 0;) continue;
  char* place = memory + 1024 * (id - 100) + 8192;
  struct ibv_grh* header = (struct ibv_grh*)place;
  CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS && wc.byte_len == kHeader + 64);
  CHECK(wc.src_qp == sender->qp_num && wc.slid == lid);
  CHECK(place[kHeader] == (char)what);
  CHECK((by != NULL) == ((wc.wc_flags & IBV_WC_GRH) != 0));
  if (by != NULL) check_header(header, by);
  struct ibv_ah* back = ibv_create_ah_from_wc(pd, &wc, header, 1);
  CHECK(back != NULL);
  return back;
}

/* A datagram received and not polled, one posted and held, receives not used, address handles made before and after:
 * senders are who they were, and nothing comes twice. */
static void datagrams_with(struct ibv_ah_attr attr) {
  const union ibv_gid* gid = attr.is_global ? &attr.grh.dgid : NULL;
  struct ibv_ah* ah = ibv_create_ah(pd, &attr);
  CHECK(ah != NULL);
  for (uint64_t id = 100; id < 105; ++id) post_datagram_receive(b, id);
  send_datagram(a, 1, ah, b->qp_num);
  CHECK(ibv_destroy_ah(next_datagram(100, 1, a, gid)) == 0);
  send_datagram(a, 2, ah, b->qp_num);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  to_state(a, IBV_QPS_SQD);
  send_datagram(a, 3, ah, b->qp_num);
  checkpoint_and_kill();
  CHECK(ibv_destroy_ah(next_datagram(101, 2, a, gid)) == 0);
  expect_nothing_more();
  to_state(a, IBV_QPS_RTS);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  struct ibv_ah* back = next_datagram(102, 3, a, gid);
  post_datagram_receive(a, 110);
  send_datagram(b, 4, back, a->qp_num);
  EXPECT(send_cq, 4, IBV_WC_SUCCESS);
  CHECK(ibv_destroy_ah(next_datagram(110, 4, b, gid)) == 0);
  struct ibv_qp* later = create_datagram_qp(kKey);
  send_datagram(later, 5, ah, b->qp_num);
  EXPECT(send_cq, 5, IBV_WC_SUCCESS);
  CHECK(ibv_destroy_ah(back) == 0);
  back = next_datagram(103, 5, later, gid);
  post_datagram_receive(later, 111);
  send_datagram(b, 6, back, later->qp_num);
  CHECK(ibv_destroy_ah(next_datagram(111, 6, b, gid)) == 0);
  EXPECT(send_cq, 6, IBV_WC_SUCCESS);
  CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_ah(back) == 0);
  CHECK(ibv_destroy_qp(later) == 0 && ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
  expect_nothing_more();
}

static void make_datagram_pair(void) {
  open_device();
  allocate(1 << 16);
  a = create_datagram_qp(kKey);
  b = create_datagram_qp(kKey);
}

static void datagrams(void) {
  make_datagram_pair();
  datagrams_with(address_of(lid));
}

/* From the first GID to itself. */
static struct ibv_ah_attr address_by_gid(void) {
  struct ibv_ah_attr attr = {.dlid = (uint16_t)lid, .is_global = 1, .grh = {.hop_limit = 64}, .port_num = 1};
  CHECK(ibv_query_gid(context, 1, 0, &attr.grh.dgid) == 0);
  return attr;
}

static void datagrams_by_gid(void) {
  make_datagram_pair();
  datagrams_with(address_by_gid());
}

/* A handle may be destroyed while requests that were posted with it are held. */
static void destroyed_handle(void) {
  make_datagram_pair();
  struct ibv_ah_attr attr = address_of(lid);
  struct ibv_ah* ah = ibv_create_ah(pd, &attr);
  CHECK(ah != NULL);
  post_datagram_receive(b, 100);
  to_state(a, IBV_QPS_SQD);
  send_datagram(a, 1, ah, b->qp_num);
  CHECK(ibv_destroy_ah(ah) == 0);
  checkpoint_and_kill();
  to_state(a, IBV_QPS_RTS);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  CHECK(ibv_destroy_ah(next_datagram(100, 1, a, attr.is_global ? &gid : NULL)) == 0);
  CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_dereg_mr(mr) == 0);
  CHECK(ibv_dealloc_pd(pd) == 0);
}

/* Elements of a region whose addresses begin at 0 do not say where the header lies. */
static void zero_based_receive(void) {
  struct ibv_wc wc = {.wr_id = ~0ull};
  make_datagram_pair();
  struct ibv_ah_attr attr = address_by_gid();
  struct ibv_ah* ah = ibv_create_ah(pd, &attr);
  struct ibv_mr* zero = ibv_reg_mr_iova(pd, memory + 32768, 4096, 0, IBV_ACCESS_LOCAL_WRITE);
  CHECK(ah != NULL && zero != NULL);
  checkpoint_and_kill();
  struct ibv_sge sge = {0, 512, zero->lkey};
  struct ibv_recv_wr receive = {.wr_id = 100, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_recv(b, &receive, &bad) == 0);
  send_datagram(a, 1, ah, b->qp_num);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  for (double end = now() + any_time; now() < end && ibv_poll_cq(receive_cq, 1, &wc) == 0;) continue;
  CHECK(wc.wr_id == 100 && wc.status == IBV_WC_SUCCESS && wc.src_qp == a->qp_num && memory[32768 + kHeader] == 1);
  check_header((struct ibv_grh*)(memory + 32768), &attr.grh.dgid);
}

/* Two processes, each of which sends to the other before and after. */
static void datagrams_between(const char* self, const char* other) {
  int peer_lid;
  uint32_t number;
  open_device();
  allocate(1 << 16);
  a = create_datagram_qp(kKey);
  for (uint64_t id = 100; id < 104; ++id) post_datagram_receive(a, id);
  tell(self, a->qp_num);
  await(other, &peer_lid, &number);
  struct ibv_ah_attr attr = address_of(peer_lid);
  struct ibv_ah* ah = ibv_create_ah(pd, &attr);
  struct ibv_qp peer = {.qp_num = number};
  const int own_lid = lid;
  CHECK(ah != NULL);
  for (int round = 1; round <= 4; ++round) {
    send_datagram(a, (uint64_t)round, ah, number);
    EXPECT(send_cq, (uint64_t)round, IBV_WC_SUCCESS);
    if (round == 2) {
      if (strcmp(self, "one") == 0) {
        await("ready", &peer_lid, &number);
        number = peer.qp_num;
        checkpoint_and_kill();
        tell("restarted", 0);
      } else {
        tell("ready", 0);
        await("restarted", &peer_lid, &number);
        number = peer.qp_num;
      }
    }
    lid = attr.dlid;
    struct ibv_ah* back = next_datagram(99 + (uint64_t)round, round, &peer, attr.is_global ? &gid : NULL);
    lid = own_lid;
    CHECK(ibv_destroy_ah(ah) == 0);
    ah = back;
  }
}

static void datagrams_one(void) { datagrams_between("one", "two"); }
static void datagrams_two(void) { datagrams_between("two", "one"); }

/* A connection without acknowledgements settles and goes on like one with them. */
static void unreliable_connection(void) {
  open_device();
  allocate(1 << 16);
  struct ibv_qp** ends[] = {&a, &b};
  for (int i = 0; i < 2; ++i) {
    struct ibv_qp_init_attr init = {.send_cq = send_cq, .recv_cq = receive_cq, .qp_type = IBV_QPT_UC};
    init.cap = (struct ibv_qp_cap){kDepth, kDepth, 1, 1, 0};
    CHECK((*ends[i] = ibv_create_qp(pd, &init)) != NULL);
    to_init(*ends[i]);
  }
  for (int i = 0; i < 2; ++i) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024};
    attr.dest_qp_num = (*ends[1 - i])->qp_num;
    attr.ah_attr = address_of(lid);
    CHECK(ibv_modify_qp(*ends[i], &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) == 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(*ends[i], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
  }
  send_one(1);
  post_receive(b, 100, 64);
  post(a, IBV_WR_SEND, 2, 64, 0);
  post(a, IBV_WR_SEND, 3, 64, 0); /* no receive: lost */
  checkpoint_and_kill();
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 100, IBV_WC_SUCCESS);
  expect_nothing_more();
  send_one(4);
  post(a, IBV_WR_RDMA_WRITE, 5, 64, mr->rkey);
  EXPECT(send_cq, 5, IBV_WC_SUCCESS);
}

const struct scenario datagram_scenarios[] = {{"datagrams", datagrams},
                                              {"datagrams_by_gid", datagrams_by_gid},
                                              {"destroyed_handle", destroyed_handle},
                                              {"zero_based_receive", zero_based_receive},
                                              {"datagrams_one", datagrams_one},
                                              {"datagrams_two", datagrams_two},
                                              {"unreliable_connection", unreliable_connection},
                                              {NULL, NULL}};
