// Completion channels and queues, queue pairs, shared receive queues, address handles.
//
// A receive completes when it is posted, as if a message without payload had arrived. One of a shared queue has to
// know for whom: it completes when a queue pair that takes from there posts a message, as if that had arrived on
// itself.
#include <sys/eventfd.h>
#include <unistd.h>

#include "perftest/null_objects.h"

namespace shadowib::null_backend {
namespace {

struct Channel;

struct Cq {
  ibv_cq cq;
  Channel* channel;
  SpinLock lock;
  Ring<ibv_wc> ring;
  bool armed, event_pending;
  Cq* next_event;
  Cq *next, *previous;  // of all
};

struct Channel {
  ibv_comp_channel channel;
  SpinLock lock;
  Cq* first_event;
};

struct Srq {
  ibv_srq srq;
  ibv_srq_attr attr;
  SpinLock lock;
  Ring<std::uint64_t> receives;      // their wr_ids
  std::atomic<std::uint32_t> users;  // queue pairs
};

struct Qp {
  ibv_qp qp;
  ibv_qp_attr attr;
  ibv_qp_init_attr init;
  std::atomic<std::uint64_t> posted;
};

Pool<Channel> g_channels;
Pool<Cq> g_cqs;
SpinLock g_all_cqs_lock;
Cq* g_all_cqs = nullptr;
Pool<Srq> g_srqs;
Pool<Qp> g_qps;
Pool<ibv_ah> g_ahs;

Cq* of(ibv_cq* cq) { return reinterpret_cast<Cq*>(cq); }
Srq* of(ibv_srq* srq) { return reinterpret_cast<Srq*>(srq); }
Qp* of(ibv_qp* qp) { return reinterpret_cast<Qp*>(qp); }

// --- completion

ibv_comp_channel* create_comp_channel(ibv_context* context) {
  int owned = owned_eventfd(EFD_SEMAPHORE);
  Channel* channel = owned < 0 ? nullptr : g_channels.make();
  if (channel == nullptr) return nullptr;
  channel->channel = {context, owned, 0};
  return &channel->channel;
}
int destroy_comp_channel(ibv_comp_channel* channel) {
  g_host->close_descriptor(channel->fd);
  g_channels.recycle(reinterpret_cast<Channel*>(channel));
  return 0;
}

ibv_cq* create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel, int) {
  Cq* cq = g_cqs.make();
  if (cq == nullptr) return nullptr;
  if (!cq->ring.create(static_cast<std::uint32_t>(cqe) + 1)) {
    g_cqs.recycle(cq);
    return nullptr;
  }
  cq->cq.context = context;
  cq->cq.channel = channel;
  cq->cq.cq_context = cq_context;
  cq->cq.cqe = cqe;
  cq->channel = reinterpret_cast<Channel*>(channel);
  SpinGuard guard(g_all_cqs_lock);
  cq->next = g_all_cqs;
  if (cq->next != nullptr) cq->next->previous = cq;
  g_all_cqs = cq;
  return &cq->cq;
}
int resize_cq(ibv_cq* handle, int cqe) {
  Cq* cq = of(handle);
  SpinGuard guard(cq->lock);
  if (!cq->ring.grow(static_cast<std::uint32_t>(cqe) + 1)) return ENOMEM;
  handle->cqe = cqe;
  return 0;
}
void forget(const Cq* cq) {
  SpinGuard guard(g_all_cqs_lock);
  (cq->previous != nullptr ? cq->previous->next : g_all_cqs) = cq->next;
  if (cq->next != nullptr) cq->next->previous = cq->previous;
}
int destroy_cq(ibv_cq* cq) {
  forget(of(cq));
  of(cq)->ring.destroy();
  g_cqs.recycle(of(cq));
  return 0;
}

int poll_cq(ibv_cq* handle, int count, ibv_wc* wc) {
  Cq* cq = of(handle);
  SpinGuard guard(cq->lock);
  int n = 0;
  for (; n < count && !cq->ring.empty(); ++n) wc[n] = cq->ring.pop();
  return n;
}

int req_notify_cq(ibv_cq* handle, int) {
  SpinGuard guard(of(handle)->lock);
  of(handle)->armed = true;
  return 0;
}

void raise_event(Cq* cq) {
  SpinGuard guard(cq->channel->lock);
  if (cq->event_pending) return;
  cq->event_pending = true;
  cq->next_event = cq->channel->first_event;
  cq->channel->first_event = cq;
  std::uint64_t one = 1;
  [[maybe_unused]] auto written = ::write(cq->channel->channel.fd, &one, sizeof(one));
}

int get_cq_event(ibv_comp_channel* handle, ibv_cq** cq) {
  auto* channel = reinterpret_cast<Channel*>(handle);
  SpinGuard guard(channel->lock);
  Cq* first = channel->first_event;
  if (first == nullptr) {
    g_host->set_errno(EAGAIN);
    return -1;
  }
  channel->first_event = first->next_event;
  first->event_pending = false;
  std::uint64_t taken;
  [[maybe_unused]] auto got = ::read(handle->fd, &taken, sizeof(taken));
  *cq = &first->cq;
  return 0;
}
void ack_cq_events(ibv_cq*, unsigned) {}

// Room for one more, or false. The ring holds at least what was asked for.
bool complete(ibv_cq* handle, const ibv_wc& wc) {
  Cq* cq = of(handle);
  bool raise;
  {
    SpinGuard guard(cq->lock);
    if (cq->ring.full()) return false;
    cq->ring.push(wc);
    raise = cq->armed && cq->channel != nullptr;
    cq->armed = cq->armed && !raise;
  }
  if (raise) raise_event(cq);
  return true;
}

// --- shared receive queues, address handles

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  Srq* srq = g_srqs.make();
  if (srq == nullptr) return nullptr;
  if (!srq->receives.create(init->attr.max_wr)) {
    g_srqs.recycle(srq);
    return nullptr;
  }
  srq->srq.context = pd->context;
  srq->srq.srq_context = init->srq_context;
  srq->srq.pd = pd;
  srq->attr = init->attr;
  return &srq->srq;
}
// The limit is kept and never reached: there are no events.
int modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
  if ((mask & IBV_SRQ_MAX_WR) != 0) return EOPNOTSUPP;
  if ((mask & IBV_SRQ_LIMIT) != 0) of(srq)->attr.srq_limit = attr->srq_limit;
  return 0;
}
int query_srq(ibv_srq* srq, ibv_srq_attr* attr) {
  *attr = of(srq)->attr;
  return 0;
}
int destroy_srq(ibv_srq* srq) {
  if (of(srq)->users != 0) return EBUSY;
  of(srq)->receives.destroy();
  g_srqs.recycle(of(srq));
  return 0;
}
int post_srq_recv(ibv_srq* handle, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Srq* srq = of(handle);
  SpinGuard guard(srq->lock);
  for (; wr != nullptr; wr = wr->next) {
    if (srq->receives.full()) {
      *bad = wr;
      return ENOMEM;
    }
    srq->receives.push(wr->wr_id);
  }
  return 0;
}
bool take_shared(Srq* srq, std::uint64_t* wr_id) {
  SpinGuard guard(srq->lock);
  if (srq->receives.empty()) return false;
  *wr_id = srq->receives.pop();
  return true;
}

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr*) {
  ibv_ah* ah = g_ahs.make();
  if (ah != nullptr) *ah = {pd->context, pd, 0};
  return ah;
}
int destroy_ah(ibv_ah* ah) {
  g_ahs.recycle(ah);
  return 0;
}

// --- queue pairs

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  Qp* qp = g_qps.make();
  if (qp == nullptr) return nullptr;
  qp->qp.context = pd->context;
  qp->qp.qp_context = attr->qp_context;
  qp->qp.pd = pd;
  qp->qp.send_cq = attr->send_cq;
  qp->qp.recv_cq = attr->recv_cq;
  qp->qp.qp_num = g_next_number++;
  qp->qp.state = IBV_QPS_RESET;
  qp->qp.qp_type = attr->qp_type;
  qp->qp.srq = attr->srq;
  qp->init = *attr;
  if (attr->srq != nullptr) ++of(attr->srq)->users;
  return &qp->qp;
}
int modify_qp(ibv_qp* handle, ibv_qp_attr* attr, int mask) {
  if (mask & IBV_QP_STATE) handle->state = of(handle)->attr.qp_state = attr->qp_state;
  return 0;
}
int query_qp(ibv_qp* handle, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  *attr = of(handle)->attr;
  attr->cap = of(handle)->init.cap;
  *init = of(handle)->init;
  return 0;
}
int destroy_qp(ibv_qp* qp) {
  if (qp->srq != nullptr) --of(qp->srq)->users;
  g_qps.recycle(of(qp));
  return 0;
}

ibv_wc_opcode completion_of(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

ibv_wc completion(const Qp& qp, std::uint64_t wr_id, ibv_wc_opcode opcode) {
  ibv_wc wc{};
  wc.wr_id = wr_id;
  wc.opcode = opcode;
  wc.qp_num = qp.qp.qp_num;
  return wc;
}

bool is_message(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV ||
         opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
// A message that finds no receive in the shared queue, or no room for its completion, is lost.
void arrive(const Qp& qp) {
  std::uint64_t wr_id;
  if (take_shared(of(qp.qp.srq), &wr_id)) complete(qp.qp.recv_cq, completion(qp, wr_id, IBV_WC_RECV));
}

int post_one(Qp& qp, const ibv_send_wr& wr) {
  if (qp.qp.qp_type == IBV_QPT_UD && wr.wr.ud.ah == nullptr) return EINVAL;
  const bool signaled = (wr.send_flags & IBV_SEND_SIGNALED) != 0 || qp.init.sq_sig_all;
  if (signaled && !complete(qp.qp.send_cq, completion(qp, wr.wr_id, completion_of(wr.opcode)))) return ENOMEM;
  qp.posted.fetch_add(1, std::memory_order_relaxed);
  if (qp.qp.srq != nullptr && is_message(wr.opcode)) arrive(qp);
  return 0;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  for (; wr != nullptr; wr = wr->next)
    if (int rc = post_one(*of(qp), *wr); rc != 0) {
      *bad = wr;
      return rc;
    }
  return 0;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  for (; wr != nullptr; wr = wr->next)
    if (qp->srq != nullptr || !complete(qp->recv_cq, completion(*of(qp), wr->wr_id, IBV_WC_RECV))) {
      *bad = wr;
      return qp->srq != nullptr ? EINVAL : ENOMEM;
    }
  return 0;
}

std::uint64_t sq_executed(ibv_qp* qp) { return of(qp)->posted; }

}  // namespace

std::uint32_t completions_made() {
  SpinGuard guard(g_all_cqs_lock);
  std::uint32_t made = 0;
  for (Cq* cq = g_all_cqs; cq != nullptr; cq = cq->next) {
    SpinGuard one(cq->lock);
    made += cq->ring.pushed();
  }
  return made;
}

void offer_queues(BackendOps* ops) {
#define SET(slot) ops->slot = slot
  SET(create_comp_channel), SET(destroy_comp_channel), SET(create_cq), SET(destroy_cq), SET(resize_cq);
  SET(poll_cq);
  SET(req_notify_cq), SET(get_cq_event), SET(ack_cq_events), SET(create_qp), SET(modify_qp), SET(query_qp);
  SET(destroy_qp), SET(post_send), SET(post_recv), SET(sq_executed), SET(create_srq), SET(modify_srq), SET(query_srq);
  SET(destroy_srq), SET(post_srq_recv), SET(create_ah), SET(destroy_ah);
#undef SET
}

}  // namespace shadowib::null_backend
