/* Reliable connections between queue pairs of one process. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

static FakeQp* g_qps[kFakeMost + 0x20]; /* by number */
static uint32_t g_qps_made;

static FakeRequest* add(FakeQueue* queue) {
  if (queue->tail - queue->head == queue->size) return NULL;
  return &queue->at[queue->tail++ % queue->size];
}
static FakeRequest* oldest(FakeQueue* queue) {
  return queue->head != queue->tail ? &queue->at[queue->head % queue->size] : NULL;
}

static void complete_send(FakeQp* fake, enum ibv_wc_status status, uint32_t bytes) {
  static const enum ibv_wc_opcode kOpcodes[] = {IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WC_SEND,
                                                IBV_WC_RDMA_READ};
  const FakeRequest* request = oldest(&fake->sends);
  const int wanted = fake->init.sq_sig_all || (request->flags & IBV_SEND_SIGNALED) != 0;
  struct ibv_wc wc = {.wr_id = request->wr_id, .status = status, .opcode = kOpcodes[request->opcode]};
  wc.byte_len = bytes;
  wc.qp_num = fake->qp.qp_num;
  ++fake->sends.head;
  if (wanted || status != IBV_WC_SUCCESS) fake_complete(fake->qp.send_cq, &wc, 0);
}

static void complete_receive(FakeQp* fake, enum ibv_wc_status status, uint32_t bytes, const FakeRequest* message) {
  struct ibv_wc wc = {.wr_id = oldest(&fake->receives)->wr_id, .status = status, .opcode = IBV_WC_RECV};
  wc.byte_len = bytes;
  wc.qp_num = fake->qp.qp_num;
  if (message != NULL) {
    wc.src_qp = fake->attr.dest_qp_num;
    if (message->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    if (message->opcode == IBV_WR_SEND_WITH_IMM || message->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
      wc.wc_flags = IBV_WC_WITH_IMM;
      wc.imm_data = message->immediate;
    }
  }
  ++fake->receives.head;
  fake_complete(fake->qp.recv_cq, &wc, message != NULL && (message->flags & IBV_SEND_SOLICITED) != 0);
}

static void fail(FakeQp* fake) {
  fake->qp.state = fake->attr.qp_state = IBV_QPS_ERR;
  while (oldest(&fake->sends) != NULL) complete_send(fake, IBV_WC_WR_FLUSH_ERR, 0);
  while (oldest(&fake->receives) != NULL) complete_receive(fake, IBV_WC_WR_FLUSH_ERR, 0, NULL);
}

/* Where a piece of memory lies, or NULL: the key does not name it, or does not allow it. */
static char* reach(const FakeQp* fake, uint64_t address, uint64_t bytes, uint32_t key, int remote, int access) {
  const FakeMr* mr = fake_find_mr(key, remote);
  if (mr == NULL || mr->mr.pd != fake->qp.pd || (mr->access & access) != access) return NULL;
  if (address < mr->iova || address - mr->iova > mr->mr.length || bytes > mr->mr.length - (address - mr->iova))
    return NULL;
  return (char*)mr->mr.addr + (address - mr->iova);
}

/* Between a request's own pieces and one whole; without one only looks. Bytes, or -1: a key does not do. */
static int64_t move(const FakeQp* own, const FakeRequest* request, char* whole, int to_own) {
  int64_t done = 0;
  for (int i = 0; i < request->sges; ++i) {
    const struct ibv_sge* sge = &request->sge[i];
    if (sge->length == 0) continue;
    char* piece = reach(own, sge->addr, sge->length, sge->lkey, 0, to_own ? IBV_ACCESS_LOCAL_WRITE : 0);
    if (piece == NULL) return -1;
    if (whole != NULL) memmove(to_own ? piece : whole + done, to_own ? whole + done : piece, sge->length);
    done += sge->length;
  }
  return done;
}

static int64_t length_of(const FakeRequest* request) {
  int64_t bytes = 0;
  for (int i = 0; i < request->sges; ++i) bytes += request->sge[i].length;
  return bytes;
}

/* Puts a message into the peer's oldest receive. */
static enum ibv_wc_status deliver(FakeQp* fake, FakeQp* peer, const FakeRequest* message) {
  const uint32_t bytes = (uint32_t)length_of(message);
  FakeRequest into = *oldest(&peer->receives);
  if (length_of(&into) < bytes) {
    complete_receive(peer, IBV_WC_LOC_LEN_ERR, 0, NULL);
    return IBV_WC_REM_INV_REQ_ERR;
  }
  char* all = malloc(bytes + 1);
  enum ibv_wc_status status = IBV_WC_SUCCESS;
  (void)move(fake, message, all, 0);
  uint32_t left = bytes;
  for (int i = 0; i < into.sges; ++i) {
    if (into.sge[i].length > left) into.sge[i].length = left;
    left -= into.sge[i].length;
  }
  if (move(peer, &into, all, 1) < 0) {
    complete_receive(peer, IBV_WC_LOC_PROT_ERR, 0, NULL);
    status = IBV_WC_REM_OP_ERR;
  }
  free(all);
  if (status == IBV_WC_SUCCESS) complete_receive(peer, status, bytes, message);
  return status;
}

static int takes_receive(const FakeRequest* request) {
  return request->opcode != IBV_WR_RDMA_WRITE && request->opcode != IBV_WR_RDMA_READ;
}

static enum ibv_wc_status execute(FakeQp* fake, FakeQp* peer, const FakeRequest* request) {
  if (request->opcode == IBV_WR_SEND || request->opcode == IBV_WR_SEND_WITH_IMM) return deliver(fake, peer, request);
  const int is_read = request->opcode == IBV_WR_RDMA_READ;
  const int access = is_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  const uint64_t bytes = (uint64_t)length_of(request);
  char* there = bytes != 0 && (peer->attr.qp_access_flags & (unsigned)access) != 0
                    ? reach(peer, request->remote_address, bytes, request->rkey, 1, access)
                    : NULL;
  if (there == NULL && bytes != 0) return IBV_WC_REM_ACCESS_ERR;
  (void)move(fake, request, there, is_read);
  if (takes_receive(request)) complete_receive(peer, IBV_WC_SUCCESS, (uint32_t)bytes, request);
  return IBV_WC_SUCCESS;
}

/* Runs what can be run. */
static void go_on(FakeQp* fake) {
  for (const FakeRequest* request;
       fake->qp.state == IBV_QPS_RTS && !fake->asleep && (request = oldest(&fake->sends)) != NULL;) {
    const uint32_t number = fake->attr.dest_qp_num;
    FakeQp* peer = number < kFakeMost + 0x20 ? g_qps[number] : NULL;
    struct ibv_port_attr port;
    enum ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;
    if (peer != NULL && peer->qp.state == IBV_QPS_INIT) return;
    if (peer != NULL && peer->qp.state != IBV_QPS_RESET && peer->qp.state != IBV_QPS_ERR &&
        peer->attr.dest_qp_num == fake->qp.qp_num &&
        ibv_query_port(peer->qp.context, 1, (struct _compat_ibv_port_attr*)&port) == 0 &&
        port.lid == fake->attr.ah_attr.dlid) {
      const int has_keys = move(fake, request, NULL, request->opcode == IBV_WR_RDMA_READ) >= 0;
      if (has_keys && takes_receive(request) && oldest(&peer->receives) == NULL) return;
      status = has_keys ? execute(fake, peer, request) : IBV_WC_LOC_PROT_ERR;
    }
    complete_send(fake, status, (uint32_t)length_of(request));
    if (status == IBV_WC_SUCCESS) continue;
    fail(fake);
    if (status != IBV_WC_LOC_PROT_ERR && status != IBV_WC_RETRY_EXC_ERR) fail(peer);
  }
}

static void peer_goes_on(FakeQp* fake) {
  const uint32_t number = fake->attr.dest_qp_num;
  if (number < kFakeMost + 0x20 && g_qps[number] != NULL) go_on(g_qps[number]);
}

struct ibv_qp* ibv_create_qp(struct ibv_pd* pd, struct ibv_qp_init_attr* init) {
  ENTER();
  if (init->qp_type != IBV_QPT_RC || init->srq != NULL || init->cap.max_inline_data > 0 ||
      init->cap.max_send_sge > kFakeSges || init->cap.max_recv_sge > kFakeSges) {
    errno = init->qp_type != IBV_QPT_RC || init->srq != NULL ? EOPNOTSUPP : EINVAL;
    return NULL;
  }
  FakeQp* fake = calloc(1, sizeof(*fake));
  fake->qp.context = pd->context;
  fake->qp.qp_context = init->qp_context;
  fake->qp.pd = pd;
  fake->qp.send_cq = init->send_cq;
  fake->qp.recv_cq = init->recv_cq;
  fake->qp.qp_type = init->qp_type;
  init->cap.max_send_wr += FAKE_FLIP; /* a device may give more */
  fake->init = *init;
  fake->sends.size = init->cap.max_send_wr + 15 * FAKE_LAZY;
  fake->receives.size = init->cap.max_recv_wr;
  fake->sends.at = calloc(fake->sends.size + 1, sizeof(FakeRequest));
  fake->receives.at = calloc(fake->receives.size + 1, sizeof(FakeRequest));
  fake_lock();
  fake->qp.qp_num = fake->qp.handle = fake_number(&g_qps_made);
  g_qps[fake->qp.qp_num] = fake;
  fake_unlock();
  fake_tell("queue pair 0x%x\n", fake->qp.qp_num);
  return &fake->qp;
}

int ibv_destroy_qp(struct ibv_qp* qp) {
  ENTER();
  FakeQp* fake = (FakeQp*)qp;
  fake_lock();
  g_qps[qp->qp_num] = NULL;
  fake_unlock();
  free(fake->sends.at);
  free(fake->receives.at);
  free(fake);
  return 0;
}

#define TAKE(bit, field) \
  if (mask & (bit)) fake->attr.field = attr->field

int ibv_modify_qp(struct ibv_qp* qp, struct ibv_qp_attr* attr, int mask) {
  ENTER();
  /* The other end may be stopped for a checkpoint, for longer than any number of retries. */
  if ((mask & IBV_QP_RNR_RETRY) != 0 && attr->rnr_retry != 7) return EINVAL;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && attr->max_rd_atomic > FAKE_READS) return EINVAL;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && attr->max_dest_rd_atomic > FAKE_READS) return EINVAL;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && attr->pkey_index != 0)
    fake_tell("P_Key 0x%x\n", fake_pkey_at(attr->pkey_index));
  if ((mask & (IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE)) != 0 && fake_is_marked("one_way")) return EINVAL;
  if ((mask & IBV_QP_ALT_PATH) != 0)
    fake_tell("another way to LID 0x%x, P_Key 0x%x\n", attr->alt_ah_attr.dlid, fake_pkey_at(attr->alt_pkey_index));
  FakeQp* fake = (FakeQp*)qp;
  const enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : qp->state;
  if (to == IBV_QPS_RTS && fake->draining) return EINVAL;
  fake_lock();
  fake->asleep |= FAKE_LAZY && qp->state == IBV_QPS_SQD && to == IBV_QPS_RTS;
  TAKE(IBV_QP_PKEY_INDEX, pkey_index);
  TAKE(IBV_QP_PORT, port_num);
  TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
  TAKE(IBV_QP_AV, ah_attr);
  TAKE(IBV_QP_PATH_MTU, path_mtu);
  TAKE(IBV_QP_DEST_QPN, dest_qp_num);
  TAKE(IBV_QP_RQ_PSN, rq_psn);
  TAKE(IBV_QP_SQ_PSN, sq_psn);
  TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
  TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
  TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
  TAKE(IBV_QP_TIMEOUT, timeout);
  TAKE(IBV_QP_ALT_PATH, alt_ah_attr);
  TAKE(IBV_QP_ALT_PATH, alt_pkey_index);
  TAKE(IBV_QP_ALT_PATH, alt_port_num);
  TAKE(IBV_QP_ALT_PATH, alt_timeout);
  TAKE(IBV_QP_PATH_MIG_STATE, path_mig_state);
  TAKE(IBV_QP_RETRY_CNT, retry_cnt);
  TAKE(IBV_QP_RNR_RETRY, rnr_retry);
  if (mask & IBV_QP_STATE) {
    if (attr->qp_state == IBV_QPS_ERR) fail(fake);
    if (attr->qp_state == IBV_QPS_RESET) {
      memset(&fake->attr, 0, sizeof(fake->attr));
      fake->sends.head = fake->sends.tail;
      fake->receives.head = fake->receives.tail;
    }
    const int asked = (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 && attr->en_sqd_async_notify;
    const int drains = to == IBV_QPS_SQD && qp->state != IBV_QPS_SQD;
    qp->state = fake->attr.qp_state = attr->qp_state;
    if (drains && FAKE_LAZY) fake->draining = 4;
    if (to != IBV_QPS_SQD) fake->draining = 0;
    if (drains && (asked || FAKE_LAZY)) {
      const struct ibv_async_event event = {.element.qp = qp, .event_type = IBV_EVENT_SQ_DRAINED};
      fake_push_event(fake_async_events(qp->context), qp->context->async_fd, &event);
    }
  }
  go_on(fake);
  peer_goes_on(fake);
  fake_unlock();
  return 0;
}

int ibv_query_qp(struct ibv_qp* qp, struct ibv_qp_attr* attr, int mask, struct ibv_qp_init_attr* init) {
  ENTER();
  (void)mask;
  FakeQp* fake = (FakeQp*)qp;
  fake_lock();
  fake->draining -= fake->draining > 0; /* or looks elsewhere, meanwhile */
  fake_unlock();
  *attr = fake->attr;
  attr->cap = fake->init.cap;
  attr->cap.max_send_wr = fake->sends.size;
  attr->sq_draining = fake->draining > 0;
  *init = fake->init;
  return 0;
}

static int fill(FakeRequest* request, uint64_t wr_id, const struct ibv_sge* list, int count) {
  *request = (FakeRequest){.wr_id = wr_id, .sges = count};
  memcpy(request->sge, list, (size_t)count * sizeof(*list));
  return 0;
}

/* As Soft-RoCE has it: what is posted too early is refused, and taken all the same. */
int fake_post_send(struct ibv_qp* qp, struct ibv_send_wr* wr, struct ibv_send_wr** bad) {
  ENTER();
  FakeQp* fake = (FakeQp*)qp;
  int rc = 0;
  fake_lock();
  for (; wr != NULL && rc == 0; wr = rc == 0 ? wr->next : wr) {
    FakeRequest* request = NULL;
    if (wr->opcode > IBV_WR_RDMA_READ || wr->num_sge > kFakeSges) rc = EINVAL;
    if (rc == 0 && (request = add(&fake->sends)) == NULL) rc = ENOMEM;
    if (rc != 0) continue;
    fill(request, wr->wr_id, wr->sg_list, wr->num_sge);
    request->opcode = wr->opcode;
    request->flags = wr->send_flags;
    request->immediate = wr->imm_data;
    request->remote_address = wr->wr.rdma.remote_addr;
    request->rkey = wr->wr.rdma.rkey;
  }
  if (rc != 0) *bad = wr;
  fake->draining -= fake->draining > 0;
  fake->asleep = 0;
  if (rc == 0 && qp->state < IBV_QPS_RTS) rc = EINVAL;
  if (qp->state == IBV_QPS_ERR) fail(fake);
  go_on(fake);
  fake_unlock();
  return rc;
}

/* The same of receives, but that they are not taken. */
int fake_post_recv(struct ibv_qp* qp, struct ibv_recv_wr* wr, struct ibv_recv_wr** bad) {
  ENTER();
  FakeQp* fake = (FakeQp*)qp;
  int rc = 0;
  if (qp->state == IBV_QPS_RESET) return EINVAL;
  fake_lock();
  for (; wr != NULL && rc == 0; wr = rc == 0 ? wr->next : wr) {
    FakeRequest* request = NULL;
    if (wr->num_sge > kFakeSges) rc = EINVAL;
    if (rc == 0 && (request = add(&fake->receives)) == NULL) rc = ENOMEM;
    if (rc == 0) fill(request, wr->wr_id, wr->sg_list, wr->num_sge);
  }
  if (rc != 0) *bad = wr;
  if (qp->state == IBV_QPS_ERR) fail(fake);
  peer_goes_on(fake);
  fake_unlock();
  return rc;
}
