// Creation, destruction and errors of queue pairs.
#include "ib2tcp/queue_pair.h"

#include <errno.h>
#include <time.h>

#include <algorithm>

#include "ib2tcp/border.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/memory.h"
#include "ib2tcp/memory_window.h"
#include "ib2tcp/shared_receive_queue.h"
#include "ib2tcp/xrc.h"

namespace shadowib::ib2tcp {
namespace {

Qp& qp_of(ibv_qp* verbs) { return *reinterpret_cast<Qp*>(verbs); }

int check_caps(const ibv_qp_cap& cap) {
  return std::max(cap.max_send_wr, cap.max_recv_wr) > kMostWr ||
                 std::max(cap.max_send_sge, cap.max_recv_sge) > kMostSge || cap.max_inline_data > kMaxInline
             ? EINVAL
             : 0;
}

// Which types there are, and which queues each needs. What a type has no use for is taken out of `init`.
int check_queues(const ibv_context* context, bool is_target, ibv_qp_init_attr* init) {
  switch (init->qp_type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_UD:
      if (is_target || init->send_cq == nullptr || init->recv_cq == nullptr) return EINVAL;
      if (init->qp_type == IBV_QPT_UC && init->srq != nullptr) return EINVAL;
      break;
    case IBV_QPT_XRC_SEND:
      if (is_target || init->send_cq == nullptr || init->srq != nullptr) return EINVAL;
      init->recv_cq = nullptr;
      break;
    case IBV_QPT_XRC_RECV:
      if (!is_target) return EINVAL;
      init->send_cq = init->recv_cq = nullptr;
      init->srq = nullptr;
      init->cap = {};
      break;
    default:
      return EOPNOTSUPP;
  }
  const auto is_elsewhere = [context](const auto* queue) { return queue != nullptr && queue->context != context; };
  if (is_elsewhere(init->send_cq) || is_elsewhere(init->recv_cq) || is_elsewhere(init->srq)) return EINVAL;
  if (init->srq != nullptr || init->qp_type == IBV_QPT_XRC_SEND) init->cap.max_recv_wr = init->cap.max_recv_sge = 0;
  return check_caps(init->cap);
}

// An adapter has sent a datagram when its program takes the next step; here a connection may have to be made first.
// A program that posts and leaves (mckey) would have sent nothing.
void let_datagrams_leave(Qp& qp) {
  constexpr std::int64_t kLingerNs = 300'000'000;
  constexpr timespec kPause{0, 200'000};
  for (const std::int64_t end = monotonic_ns() + kLingerNs; monotonic_ns() < end; ::nanosleep(&kPause, nullptr)) {
    EngineGuard guard;
    g_engine->turn(true);
    if (!qp.has_datagrams_left()) return;
  }
}

}  // namespace

Qp::Qp() {
  timer_.fire = [](void* qp) { static_cast<Qp*>(qp)->on_timer(); };
  timer_.owner = this;
}

Qp::~Qp() = default;

int Qp::create(ibv_pd* pd, Xrcd* xrcd, ibv_qp_init_attr* init, Qp** out) {
  ibv_context* context = pd != nullptr ? pd->context : xrcd->verbs.context;
  if (int rc = check_queues(context, xrcd != nullptr, init); rc != 0) return rc;
  auto qp = std::make_unique<Qp>();
  ibv_qp_cap& cap = init->cap;
  if (xrcd == nullptr) cap.max_send_sge = std::max(cap.max_send_sge, 1u);
  // What has room for a list of elements has room for that much data, as adapters have it; rdma_xclient counts on it.
  cap.max_inline_data = std::max<std::uint32_t>(cap.max_inline_data, cap.max_send_sge * sizeof(ibv_sge));
  if (!qp->sq_.init(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data)) return ENOMEM;
  if (init->srq != nullptr) {
    qp->srq_ = reinterpret_cast<Srq*>(init->srq);
    qp->rq_ = &qp->srq_->queue;
  } else {
    if (init->recv_cq != nullptr) cap.max_recv_sge = std::max(cap.max_recv_sge, 1u);
    qp->own_rq_ = std::make_unique<ReceiveQueue>();
    qp->rq_ = qp->own_rq_.get();
    if (!qp->rq_->init(cap.max_recv_wr, cap.max_recv_sge)) return ENOMEM;
  }
  qp->cap_ = cap;
  qp->signal_all_ = init->sq_sig_all != 0;
  qp->odd_ = init->qp_type == IBV_QPT_UD;
  ibv_qp& verbs = qp->verbs;
  verbs.context = context;
  verbs.qp_context = init->qp_context;
  verbs.pd = pd;
  verbs.send_cq = init->send_cq;
  verbs.recv_cq = init->recv_cq;
  verbs.srq = init->srq;
  verbs.state = IBV_QPS_RESET;
  verbs.qp_type = init->qp_type;
  verbs.qp_num = verbs.handle = g_engine->qps.insert(qp.get());
  if (verbs.qp_num == 0) return ENOMEM;
  qp->xrcd_ = xrcd;
  qp->count_uses(1);
  ++g_engine->objects;
  *out = qp.release();
  return 0;
}

int Qp::destroy() {
  if (!attachments.empty()) return EBUSY;
  if (kept_ != nullptr) leave_gate();
  leave_link();
  unbind_windows_of(*this);
  g_engine->disarm(timer_);
  forget_log();
  forget_sends();
  if (srq_ == nullptr) g_engine->outstanding.add(-std::int64_t{rq_->size()});
  g_engine->qps.remove(verbs.qp_num);
  purge_completions();
  context().forget(&verbs, unread_events);
  starved_hook.unlink();
  count_uses(-1);
  --g_engine->objects;
  delete this;
  return 0;
}

// What it was made of, which stays as long as it does.
void Qp::count_uses(int step) {
  if (verbs.pd != nullptr) reinterpret_cast<Pd*>(verbs.pd)->users += step;
  for (ibv_cq* cq : {verbs.send_cq, verbs.recv_cq})
    if (cq != nullptr) reinterpret_cast<Cq*>(cq)->users += step;
  if (verbs.srq != nullptr) srq_->users += static_cast<std::uint32_t>(step);
  if (xrcd_ != nullptr) xrcd_->users += static_cast<std::uint32_t>(step);
}

void Qp::purge_completions() {
  for (ibv_cq* cq : {verbs.send_cq, verbs.recv_cq})
    if (cq != nullptr) reinterpret_cast<Cq*>(cq)->purge(verbs.qp_num);
}

// Those without a completion, which will have none.
void Qp::forget_sends() {
  g_engine->outstanding.add(-static_cast<std::int64_t>(sq_.tail - sq_.head));
  if (!has_peer())
    for (; sq_.head < sq_.tail; ++sq_.head) release_datagram(sq_.at(sq_.head));
}

// What was executed or refused has to reach the peer even though this queue pair ends.
void Qp::leave_link() {
  if (!has_peer()) {
    std::erase(g_engine->datagram_qps, this);
    drop_sink();
    ready_hook.unlink();
    link_ = nullptr;
    return;
  }
  if (link_ == nullptr) return;
  const bool is_cut = drop_sink();
  if (state() != IBV_QPS_ERR) drop_answers(is_cut);
  FrameHeader last;
  if (nak_ != Syndrome::kNone) {
    fill_header(&last, Opcode::kNak, nak_seq_);
    last.syndrome = nak_;
    link_->send_loose(last);
  } else if (has_ack_to_send()) {
    fill_header(&last, Opcode::kAck, 0);
    link_->send_loose(last);
  }
  link_->forget(*this);
  link_->pump();
  link_ = nullptr;
}

void Qp::enter_error(ibv_wc_status first, bool keep_answers) {
  if (state() == IBV_QPS_ERR || state() == IBV_QPS_RESET) return;
  verbs.state = attr_.qp_state = IBV_QPS_ERR;
  stop_waiting();
  const bool is_cut = drop_sink();
  if (owes_ack()) want_ack_now();
  starved_hook.unlink();
  if (!keep_answers) drop_answers(is_cut);
  halted_ = false;
  forget_log();
  if (kept_ != nullptr) {
    leave_gate();
    kept_->end_replay();
    kept_->unknown = false;
  }
  copies_.clear();
  next_member_ = 0;
  reads_out_ = local_left_ = 0;
  ibv_wc_status status = first != IBV_WC_SUCCESS ? first : IBV_WC_WR_FLUSH_ERR;
  for (; sq_.head < sq_.tail; ++sq_.head, status = IBV_WC_WR_FLUSH_ERR) complete_send(sq_.at(sq_.head), status);
  sq_.acked = sq_.next = sq_.sent = sq_.head;
  flush_receives();
  check_overrun();
}

void Qp::flush_receives() {
  if (takes_shared()) {
    raise(IBV_EVENT_QP_LAST_WQE_REACHED);
    return;
  }
  FrameHeader none{};
  while (Receive* receive = rq_->pop()) complete_receive(none, receive, IBV_WC_WR_FLUSH_ERR);
}

// A message that is on its way in ends here: its receive waits for the next again. True if it was a request.
bool Qp::drop_sink() {
  auto cut = [this](Link& link) {
    if (Receive* receive = link.cut(*this); receive != nullptr) rq_->give_back(receive);
  };
  if (has_peer()) {
    const bool is_cut = link_ != nullptr && link_->takes_request_of(*this);
    if (link_ != nullptr) cut(*link_);
    return is_cut;
  }
  std::vector<Link*>& links = g_engine->connected();
  for (std::size_t i = 0; i < links.size(); ++i) cut(*links[i]);
  return false;
}

// The peer has no timer of its own for a request that it has sent. It is told of the oldest that would wait for good:
// executed but not answered, cut, or refused for want of a receive. An older peer passes over the first, as before.
void Qp::drop_answers(bool is_cut) {
  const bool is_unanswered = answers_begin_ != answers_end_;
  const std::uint32_t seq = is_unanswered ? answers_[answers_begin_ % kAnswers].seq : expected_;
  const bool is_due = has_peer() && (is_unanswered || is_cut || nak_ != Syndrome::kNone);
  answers_begin_ = answers_end_;
  nak_ = Syndrome::kNone;
  if (is_due) nak(Syndrome::kNotReady, seq);
}

ibv_pd* Qp::recv_pd() const { return srq_ != nullptr ? srq_->verbs.pd : verbs.pd; }

Cq& Qp::recv_cq() const { return is_target() ? *srq_->cq : *reinterpret_cast<Cq*>(verbs.recv_cq); }

void Qp::flush_posted() {
  for (; sq_.head < sq_.tail; ++sq_.head) complete_send(sq_.at(sq_.head), IBV_WC_WR_FLUSH_ERR);
  sq_.acked = sq_.next = sq_.sent = sq_.head;
  local_left_ = 0;
  if (!takes_shared()) flush_receives();
}

ibv_wc* Qp::begin_completion(Cq& cq, std::uint64_t wr_id) {
  ibv_wc* wc = cq.begin(wr_id);
  if (wc == nullptr)
    overrun_ = true;
  else
    wc->qp_num = verbs.qp_num;
  return wc;
}

// A lost completion cannot be made good: the queue pair is dead.
void Qp::check_overrun() {
  if (!overrun_) return;
  overrun_ = false;
  raise(IBV_EVENT_QP_FATAL);
  enter_error(IBV_WC_SUCCESS, false);
}

void Qp::raise(ibv_event_type type) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.qp = &verbs;
  context().raise(event);
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  EngineGuard guard;
  Qp* qp = nullptr;
  if (int rc = Qp::create(pd, nullptr, attr, &qp); rc != 0) return fail_null<ibv_qp>(rc);
  return &qp->verbs;
}

int modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  EngineGuard guard;
  return qp_of(qp).modify(*attr, mask);
}

int query_qp(ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  EngineGuard guard;
  qp_of(qp).query(attr, init);
  return 0;
}

int destroy_qp(ibv_qp* qp) {
  let_datagrams_leave(qp_of(qp));
  EngineGuard guard;
  return qp_of(qp).destroy();
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  EngineGuard guard;
  return qp_of(qp).post_send(wr, bad);
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  EngineGuard guard;
  return qp_of(qp).post_recv(wr, bad);
}

std::uint64_t sq_executed(ibv_qp* qp) { return qp_of(qp).executed(); }

}  // namespace shadowib::ib2tcp
