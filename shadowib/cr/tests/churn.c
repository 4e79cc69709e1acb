/* Objects of every kind come and go between restarts: no two of one kind have the same number, in whatever generation
 * they were made, and in the end nothing is left. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "scenario.h"

enum { kLive = 12, kRounds = 40, kEver = kLive + 3 * kRounds, kQps = 6 };

struct set {
  struct ibv_comp_channel* channel;
  struct ibv_cq* cq;
  struct ibv_cq_ex* cq_ex;
  struct ibv_pd* pd;
  struct ibv_mr* mr;
  struct ibv_srq* srq;
  struct ibv_qp* qps[kQps];
  struct ibv_ah* ah;
  struct ibv_mw* windows[2];
  struct ibv_xrcd* xrcd;
  struct ibv_srq* xrc_srq;
  uint32_t srq_number;
};

static struct set live[kLive];
static int has_xrc;
static unsigned made;

/* Numbers that some peer may hold: those of every object that lived at a restart. */
static uint32_t held_keys[kEver], held_numbers[kQps * kEver], held_blocks[2 * kEver], held_srq_numbers[kEver];
static unsigned held;

static struct ibv_qp* make_qp(struct set* s, enum ibv_qp_type type, int extended, struct ibv_srq* srq) {
  struct ibv_qp_init_attr_ex init = {.send_cq = s->cq, .recv_cq = s->cq, .srq = srq, .qp_type = type, .pd = s->pd};
  init.cap = (struct ibv_qp_cap){4, 4, 1, 1, 0};
  init.comp_mask = IBV_QP_INIT_ATTR_PD | (extended ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0);
  init.send_ops_flags = IBV_QP_EX_WITH_SEND;
  struct ibv_qp* qp = ibv_create_qp_ex(context, &init);
  CHECK(qp != NULL);
  return qp;
}

/* A window's key but for its lowest byte, which changes with what it is bound to. */
static uint32_t block(const struct ibv_mw* window) { return window->rkey >> 8; }

static void make_xrc(struct set* s) {
  struct ibv_xrcd_init_attr domain = {
      .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
  CHECK((s->xrcd = ibv_open_xrcd(context, &domain)) != NULL);
  struct ibv_srq_init_attr_ex shared = {
      .attr = {.max_wr = 4, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = s->pd, .xrcd = s->xrcd, .cq = s->cq};
  shared.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  CHECK((s->xrc_srq = ibv_create_srq_ex(context, &shared)) != NULL);
  CHECK(ibv_get_srq_num(s->xrc_srq, &s->srq_number) == 0);
  struct ibv_qp_init_attr_ex target = {
      .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = s->xrcd};
  CHECK((s->qps[4] = ibv_create_qp_ex(context, &target)) != NULL);
  s->qps[5] = make_qp(s, IBV_QPT_XRC_SEND, 0, NULL);
}

static void make(struct set* s) {
  struct ibv_cq_init_attr_ex extended = {.cqe = 8};
  struct ibv_srq_init_attr shared = {.attr = {.max_wr = 4, .max_sge = 1}};
  struct ibv_ah_attr address = address_of(lid);
  CHECK((s->channel = ibv_create_comp_channel(context)) != NULL);
  CHECK((s->cq = ibv_create_cq(context, 8, NULL, s->channel, 0)) != NULL);
  CHECK((s->cq_ex = ibv_create_cq_ex(context, &extended)) != NULL);
  CHECK((s->pd = ibv_alloc_pd(context)) != NULL);
  CHECK((s->mr = ibv_reg_mr(s->pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) != NULL);
  CHECK((s->srq = ibv_create_srq(s->pd, &shared)) != NULL);
  s->qps[0] = make_qp(s, IBV_QPT_RC, 0, s->srq);
  s->qps[1] = make_qp(s, IBV_QPT_RC, 1, NULL);
  s->qps[2] = make_qp(s, IBV_QPT_UC, 0, NULL);
  s->qps[3] = make_qp(s, IBV_QPT_UD, 1, NULL);
  CHECK((s->ah = ibv_create_ah(s->pd, &address)) != NULL);
  CHECK((s->windows[0] = ibv_alloc_mw(s->pd, IBV_MW_TYPE_1)) != NULL);
  CHECK((s->windows[1] = ibv_alloc_mw(s->pd, IBV_MW_TYPE_2)) != NULL);
  if (has_xrc) make_xrc(s);
  ++made;
}

static void destroy(struct set* s) {
  for (int i = 0; i < kQps; ++i) CHECK(s->qps[i] == NULL || ibv_destroy_qp(s->qps[i]) == 0);
  CHECK(ibv_dealloc_mw(s->windows[0]) == 0 && ibv_dealloc_mw(s->windows[1]) == 0);
  if (has_xrc) CHECK(ibv_destroy_srq(s->xrc_srq) == 0 && ibv_close_xrcd(s->xrcd) == 0);
  CHECK(ibv_destroy_ah(s->ah) == 0 && ibv_destroy_srq(s->srq) == 0 && ibv_dereg_mr(s->mr) == 0);
  CHECK(ibv_dealloc_pd(s->pd) == 0 && ibv_destroy_cq(s->cq) == 0);
  CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(s->cq_ex)) == 0 && ibv_destroy_comp_channel(s->channel) == 0);
  s->channel = NULL;
}

static uint32_t number_of(const struct ibv_qp* qp) { return qp != NULL ? qp->qp_num : 0; }

static void check_new(const struct set* fresh) {
  for (int i = 0; i < kLive; ++i) {
    const struct set* s = &live[i];
    if (s->channel == NULL || s == fresh) continue;
    CHECK(s->mr->lkey != fresh->mr->lkey && s->mr->rkey != fresh->mr->rkey);
    CHECK(s->channel->fd != fresh->channel->fd);
    for (int q = 0; q < kQps * kQps; ++q)
      CHECK(fresh->qps[q % kQps] == NULL || number_of(s->qps[q / kQps]) != number_of(fresh->qps[q % kQps]));
    for (int w = 0; w < 4; ++w) CHECK(block(s->windows[w / 2]) != block(fresh->windows[w % 2]));
    CHECK(!has_xrc || s->srq_number != fresh->srq_number);
  }
  for (unsigned i = 0; i < held; ++i) {
    CHECK(held_keys[i] != fresh->mr->rkey);
    for (unsigned q = 0; q < kQps * kQps; ++q)
      CHECK(fresh->qps[q % kQps] == NULL || held_numbers[kQps * i + q / kQps] != number_of(fresh->qps[q % kQps]));
    for (unsigned w = 0; w < 4; ++w) CHECK(held_blocks[2 * i + w / 2] != block(fresh->windows[w % 2]));
    CHECK(!has_xrc || held_srq_numbers[i] != fresh->srq_number);
  }
}

static void churn_once(void) {
  for (unsigned round = 0; round < kRounds; ++round) {
    struct set* s = &live[(made * 7 + round) % kLive];
    if (s->channel != NULL) destroy(s);
    make(s);
    check_new(s);
  }
}

static void hold_numbers(void) {
  for (int i = 0; i < kLive; ++i) {
    if (live[i].channel == NULL) continue;
    held_keys[held] = live[i].mr->rkey;
    for (unsigned q = 0; q < kQps; ++q) held_numbers[kQps * held + q] = number_of(live[i].qps[q]);
    for (unsigned w = 0; w < 2; ++w) held_blocks[2 * held + w] = block(live[i].windows[w]);
    held_srq_numbers[held] = live[i].srq_number;
    ++held;
  }
}

static void churn(void) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  CHECK(list != NULL && (context = ibv_open_device(list[0])) != NULL);
  free(list); /* as qperf does */
  find_address();
  has_xrc = has_capability(IBV_DEVICE_XRC);
  memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  churn_once();
  for (int restart = 0; restart < 2; ++restart) {
    hold_numbers();
    checkpoint_and_kill();
    churn_once();
  }
  for (int i = 0; i < kLive; ++i)
    if (live[i].channel != NULL) destroy(&live[i]);
  tell("nothing left", 0);
  int unused;
  uint32_t number;
  await("seen", &unused, &number);
  CHECK(ibv_close_device(context) == 0);
}

/* Is checkpointed by others. */
static void lasting(void) {
  int unused;
  uint32_t number;
  make_pair(1 << 16);
  tell("ready", 0);
  await("enough", &unused, &number);
  send_one(1);
}

const struct scenario churn_scenarios[] = {{"churn", churn}, {"lasting", lasting}, {NULL, NULL}};
