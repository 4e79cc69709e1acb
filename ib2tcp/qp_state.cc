// The state machine: which transitions exist, which attributes each needs and allows, and what they do.
// Source: InfiniBand Architecture Specification 1.4, 10.3.1 and 11.2.5.3, table 96.
#include <errno.h>

#include <span>

#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/memory_window.h"
#include "ib2tcp/queue_pair.h"

namespace shadowib::ib2tcp {
namespace {

struct Transition {
  ibv_qp_state from, to;
  int required, optional;
};

constexpr int kMigration = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
constexpr Transition kReliable[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | kMigration},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | kMigration},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | kMigration},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | kMigration},
};
constexpr Transition kUnreliable[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_ACCESS_FLAGS | kMigration},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | kMigration},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | kMigration},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_PORT | IBV_QP_AV | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | kMigration},
};
constexpr Transition kDatagram[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
    {IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_QKEY},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_QKEY},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_QKEY},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
};

constexpr Transition kInitiator[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_ACCESS_FLAGS | kMigration},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | kMigration},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | kMigration},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
         IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | kMigration},
};
constexpr Transition kTarget[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_SQ_PSN,
     IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | kMigration},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | kMigration},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | kMigration},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS |
         IBV_QP_MIN_RNR_TIMER | kMigration},
};

std::span<const Transition> transitions(ibv_qp_type type) {
  switch (type) {
    case IBV_QPT_UC:
      return kUnreliable;
    case IBV_QPT_UD:
      return kDatagram;
    case IBV_QPT_XRC_SEND:
      return kInitiator;
    case IBV_QPT_XRC_RECV:
      return kTarget;
    default:
      return kReliable;
  }
}

// Programs give both ends of an XRC connection what only the other has a use for; the kernel does not look at it.
constexpr int ignored(ibv_qp_type type) {
  switch (type) {
    case IBV_QPT_XRC_SEND:
      return IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    case IBV_QPT_XRC_RECV:
      return IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
    default:
      return 0;
  }
}

const Transition* find_transition(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to) {
  for (const Transition& t : transitions(type))
    if (t.from == from && t.to == to) return &t;
  return nullptr;
}

}  // namespace

int Qp::check_values(const ibv_qp_attr& attr, int mask) const {
  auto bad = [mask](int bit, bool wrong) { return (mask & bit) != 0 && wrong; };
  constexpr unsigned kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                               IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
  int ports = context().device->port_count;
  if (bad(IBV_QP_PKEY_INDEX, attr.pkey_index != 0) || bad(IBV_QP_PORT, attr.port_num < 1 || attr.port_num > ports) ||
      bad(IBV_QP_ACCESS_FLAGS,
          (attr.qp_access_flags & ~kAccess & ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE)) != 0) ||
      bad(IBV_QP_PATH_MTU, attr.path_mtu < IBV_MTU_256 || attr.path_mtu > IBV_MTU_4096) ||
      bad(IBV_QP_DEST_QPN, attr.dest_qp_num > 0xffffff) || bad(IBV_QP_RNR_RETRY, attr.rnr_retry > 7) ||
      bad(IBV_QP_RETRY_CNT, attr.retry_cnt > 7) || bad(IBV_QP_TIMEOUT, attr.timeout > 31) ||
      bad(IBV_QP_MIN_RNR_TIMER, attr.min_rnr_timer > 31) ||
      bad(IBV_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic > kMaxRdAtomic) ||
      bad(IBV_QP_MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic > kMaxRdAtomic) ||
      bad(IBV_QP_AV, attr.ah_attr.port_num != 0 && attr.ah_attr.port_num > ports) ||
      bad(IBV_QP_AV, attr.ah_attr.is_global != 0 && attr.ah_attr.grh.sgid_index != 0) ||
      bad(IBV_QP_AV, attr.ah_attr.is_global == 0 && attr.ah_attr.dlid == 0))
    return EINVAL;
  return 0;
}

void Qp::apply(const ibv_qp_attr& attr, int mask) {
  if (mask & IBV_QP_PKEY_INDEX) attr_.pkey_index = attr.pkey_index;
  if (mask & IBV_QP_PORT) attr_.port_num = attr.port_num;
  if (mask & IBV_QP_ACCESS_FLAGS) attr_.qp_access_flags = attr.qp_access_flags;
  if (mask & IBV_QP_QKEY) attr_.qkey = attr.qkey;
  if (mask & IBV_QP_AV) attr_.ah_attr = attr.ah_attr;
  if (mask & IBV_QP_PATH_MTU) attr_.path_mtu = attr.path_mtu;
  if (mask & IBV_QP_DEST_QPN) attr_.dest_qp_num = attr.dest_qp_num;
  if (mask & IBV_QP_RQ_PSN) attr_.rq_psn = attr.rq_psn & 0xffffff;
  if (mask & IBV_QP_SQ_PSN) attr_.sq_psn = attr.sq_psn & 0xffffff;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) attr_.max_rd_atomic = attr.max_rd_atomic;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) attr_.max_dest_rd_atomic = attr.max_dest_rd_atomic;
  if (mask & IBV_QP_MIN_RNR_TIMER) attr_.min_rnr_timer = attr.min_rnr_timer;
  if (mask & IBV_QP_TIMEOUT) attr_.timeout = attr.timeout;
  if (mask & IBV_QP_RETRY_CNT) attr_.retry_cnt = attr.retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) attr_.rnr_retry = attr.rnr_retry;
  if (mask & IBV_QP_PATH_MIG_STATE) attr_.path_mig_state = attr.path_mig_state;
  if (mask & IBV_QP_ALT_PATH) {
    attr_.alt_ah_attr = attr.alt_ah_attr;
    attr_.alt_pkey_index = attr.alt_pkey_index;
    attr_.alt_port_num = attr.alt_port_num;
    attr_.alt_timeout = attr.alt_timeout;
  }
}

int Qp::modify(const ibv_qp_attr& attr, int mask) {
  mask &= ~ignored(type());
  ibv_qp_state from = state();
  ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr.qp_state : from;
  if ((mask & IBV_QP_CUR_STATE) != 0 && attr.cur_qp_state != from) return EINVAL;
  int given = mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) {
    if (given != 0) return EINVAL;
    return enter_state(from, to);
  }
  const Transition* transition = find_transition(type(), from, to);
  if (transition == nullptr || (given & transition->required) != transition->required ||
      (given & ~(transition->required | transition->optional)) != 0)
    return EINVAL;
  if (int rc = check_values(attr, mask); rc != 0) return rc;
  apply(attr, mask);
  if (to == IBV_QPS_SQD && from == IBV_QPS_RTS)
    drain_event_ = (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 && attr.en_sqd_async_notify != 0;
  return enter_state(from, to);
}

int Qp::enter_state(ibv_qp_state from, ibv_qp_state to) {
  if (to == IBV_QPS_ERR) {
    if (from == IBV_QPS_RESET) verbs.state = attr_.qp_state = IBV_QPS_ERR;
    enter_error(IBV_WC_SUCCESS, false);
    if (link_ != nullptr) link_->pump();
    return 0;
  }
  if (to == IBV_QPS_RESET) {
    reset();
    return 0;
  }
  verbs.state = attr_.qp_state = to;
  if (from == IBV_QPS_RESET && !has_peer()) g_engine->datagram_qps.push_back(this);
  if (to == IBV_QPS_RTR && from == IBV_QPS_INIT) {
    expected_ = attr_.rq_psn;
    take_restored_numbers(to);
    if (has_peer()) resolve();
  } else if (to == IBV_QPS_RTS && from == IBV_QPS_RTR) {
    rnr_left_ = attr_.rnr_retry;
    tries_ = 0;
    take_restored_numbers(to);
  } else if (to == IBV_QPS_SQD) {
    maybe_drained();
  }
  if (to == IBV_QPS_RTS) {
    kick();
    if (link_ != nullptr) link_->pump();
  }
  return 0;
}

void Qp::reset() {
  if (kept_ != nullptr) leave_gate();
  leave_link();
  unbind_windows_of(*this);
  stop_waiting();
  purge_completions();
  forget_sends();
  behind_clc_ = 0;
  if (has_peer())
    sq_.clear();
  else  // numbers go on: a peer may still say what became of datagrams from before
    sq_.acked = sq_.next = sq_.sent = sq_.tail;  // as head is
  if (srq_ == nullptr) {
    g_engine->outstanding.add(-std::int64_t{rq_->size()});
    rq_->clear();
  }
  starved_hook.unlink();
  attr_ = {};
  verbs.state = IBV_QPS_RESET;
  copies_.clear();
  next_member_ = 0;
  halted_ = probing_ = overrun_ = drain_event_ = false;
  reads_out_ = tries_ = rnr_streak_ = local_left_ = local_ran_ = 0;
  expected_ = unacked_messages_ = unacked_bytes_ = 0;
  ack_now_ = rnr_ = tell_posted_ = told_posted_ = established_ = false;
  nak_ = Syndrome::kNone;
  answers_begin_ = answers_end_ = 0;
  odd_ = !has_peer();
  marks_.clear();
  nak_sn_ = 0;
  resume_ = false;
  forget_log();
  kept_.reset();
  for (Result& result : results_) result.valid = false;
}

void Qp::maybe_drained() {
  if (state() != IBV_QPS_SQD || sq_.head < sq_.sent) return;
  if (kept_ != nullptr) note_told(sequence(sq_.acked));
  if (!drain_event_) return;
  drain_event_ = false;
  raise(IBV_EVENT_SQ_DRAINED);
}

void Qp::query(ibv_qp_attr* attr, ibv_qp_init_attr* init) const {
  *attr = attr_;
  attr->qp_state = attr->cur_qp_state = state();
  attr->cap = cap_;
  attr->sq_draining = state() == IBV_QPS_SQD && sq_.head < sq_.sent;
  *init = {};
  init->qp_context = verbs.qp_context;
  init->send_cq = verbs.send_cq;
  init->recv_cq = verbs.recv_cq;
  init->srq = verbs.srq;
  init->cap = cap_;
  init->qp_type = verbs.qp_type;
  init->sq_sig_all = signal_all_;
}

}  // namespace shadowib::ib2tcp
