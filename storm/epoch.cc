#include "storm/epoch.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace storm {
namespace {

constexpr int kAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

std::string label_of(const Connection& connection, const ConnectionPlan& plan, int side, std::uint32_t number) {
  char text[80];
  std::snprintf(text, sizeof(text), "connection %d, epoch %u (%s), end %d of %d-%d", connection.index, number,
                name_of(plan.transport), side, connection.peers[0], connection.peers[1]);
  return text;
}

ibv_qp_type type_of(Transport transport) {
  static constexpr ibv_qp_type kTypes[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND};
  return kTypes[static_cast<int>(transport)];
}

std::uint64_t builders_of(ibv_qp_type type) {
  std::uint64_t flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  if (type != IBV_QPT_UD) flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
  if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
    flags |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  if (type == IBV_QPT_RC) flags |= IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
  return flags;
}

std::uint32_t sequence_number(const DirectionPlan& plan) {
  return static_cast<std::uint32_t>(plan.key >> 8) & 0xffffff;
}
std::uint32_t queue_key(const DirectionPlan& plan) { return static_cast<std::uint32_t>(plan.key) & 0x7fffffff; }

}  // namespace

Endpoint::Epoch::Epoch(Commons& its_commons, const Connection& connection, int side, std::uint32_t number,
                       SharedAdditions& additions, Control& control)
    : commons(its_commons),
      wiring(plan_connection(commons.options.seed, commons.options.variety, connection, number), side),
      dice(key_of(wiring.out().key, side, 17)) {
  wiring.label = label_of(connection, wiring.plan, side, number);
  wiring.epoch = number;
  wiring.adapter = &commons.adapter;
  wiring.control = &control;
  wiring.domain =
      wiring.in().shared_queue ? commons.shared->domain() : commons.adapter.domain(static_cast<int>(dice.below(2)));
  make_memory();
  choose_queues();
  if (wiring.plan.transport == Transport::kXrc) make_extended();
  make_queue_pair();
  if (ledger().failed()) return;
  make_receives();
  std::vector<Receives*> queues;
  for (auto& own : receives) queues.push_back(own.get());
  if (wiring.in().shared_queue) queues.push_back(&commons.shared->receives());
  sender = std::make_unique<Sender>(wiring, additions);
  receiver =
      std::make_unique<Receiver>(wiring, std::move(queues), *sender, window.get(), regions[0].get(), commons.ticks);
  send_queue->add(sending->qp_num, this);
  if (target)
    receive_queue->add(target->qp_num, this);
  else if (receive_queue != send_queue)
    receive_queue->add(sending->qp_num, this);
}

Endpoint::Epoch::~Epoch() {
  if (!sending) return;
  send_queue->remove(sending->qp_num);
  receive_queue->remove(target ? target->qp_num : sending->qp_num);
}

void Endpoint::Epoch::make_memory() {
  memory.reset(static_cast<std::uint8_t*>(std::aligned_alloc(4096, (wiring.mine.end + 4095) & ~std::size_t{4095})));
  std::memset(memory.get(), 0, wiring.mine.end);
  wiring.memory = memory.get();
  const int access = kAccess | (wiring.in().windowed ? IBV_ACCESS_MW_BIND : 0);
  regions[0].reset(made(ibv_reg_mr(wiring.domain, memory.get(), wiring.mine.end, access), "ibv_reg_mr"));
  regions[1].reset(
      made(ibv_reg_mr(wiring.domain, memory.get(), wiring.mine.end, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr"));
  if (ledger().failed()) return;
  for (int i = 0; i < 2; ++i) wiring.lkeys[i] = regions[i]->lkey;
}

CompletionQueue* Endpoint::Epoch::choose_queue(int which, std::uint32_t entries) {
  const Variety& variety = commons.options.variety;
  if (entries <= commons.share && dice.percent(70))
    return commons.queues[dice.below(static_cast<std::uint32_t>(commons.queues.size()))].get();
  EventChannel* channel = variety.events && dice.percent(50) ? commons.channel : nullptr;
  own_queues[which] = std::make_unique<CompletionQueue>(
      commons.adapter, entries, variety.extended && dice.percent(40), channel, dice.percent(25));
  return own_queues[which].get();
}

void Endpoint::Epoch::choose_queues() {
  const std::uint32_t sends = wiring.out().send_depth;
  const std::uint32_t receives_ =
      wiring.in().shared_queue ? kSharedReceives
                               : wiring.in().receive_depth * (wiring.plan.transport == Transport::kXrc ? 2 : 1);
  if (dice.percent(30)) {
    send_queue = receive_queue = choose_queue(0, sends + receives_);
  } else {
    send_queue = choose_queue(0, sends);
    receive_queue = choose_queue(1, receives_);
  }
}

void Endpoint::Epoch::make_extended() {
  ibv_xrcd_init_attr attr{};
  attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  attr.fd = -1;
  attr.oflags = O_CREAT;
  domain.reset(made(ibv_open_xrcd(commons.adapter.context(), &attr), "ibv_open_xrcd"));
  for (int i = 0; i < 2 && domain; ++i) {
    ibv_srq_init_attr_ex queue{};
    queue.attr.max_wr = wiring.in().receive_depth;
    queue.attr.max_sge = 4;
    queue.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    queue.srq_type = IBV_SRQT_XRC;
    queue.pd = wiring.domain;
    queue.xrcd = domain.get();
    queue.cq = receive_queue->get();
    extended_queues[i].reset(made(ibv_create_srq_ex(commons.adapter.context(), &queue), "ibv_create_srq_ex"));
  }
}

ibv_qp* Endpoint::Epoch::create(ibv_qp_type type) {
  const DirectionPlan &out = wiring.out(), &in = wiring.in();
  ibv_qp_init_attr_ex init{};
  init.qp_type = type;
  if (type == IBV_QPT_XRC_RECV) {
    init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    init.xrcd = domain.get();
  } else {
    init.send_cq = send_queue->get();
    init.recv_cq = type == IBV_QPT_XRC_SEND ? nullptr : receive_queue->get();
    init.srq = in.shared_queue ? commons.shared->get() : nullptr;
    init.cap = {out.send_depth, in.shared_queue || type == IBV_QPT_XRC_SEND ? 0 : in.receive_depth, 4,
                type == IBV_QPT_XRC_SEND ? 0u : 4u, out.max_inline};
    init.comp_mask = IBV_QP_INIT_ATTR_PD;
    init.pd = wiring.domain;
    if (out.builders) {
      init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      init.send_ops_flags = builders_of(type);
    }
  }
  ibv_qp* qp = made(ibv_create_qp_ex(commons.adapter.context(), &init), "ibv_create_qp_ex");
  if (type != IBV_QPT_XRC_RECV) wiring.max_inline = std::min(out.max_inline, init.cap.max_inline_data);
  return qp;
}

void Endpoint::Epoch::make_queue_pair() {
  if (ledger().failed()) return;
  sending.reset(create(type_of(wiring.plan.transport)));
  if (domain) target.reset(create(IBV_QPT_XRC_RECV));
  if (ledger().failed()) return;
  wiring.sending = sending.get();
  wiring.receiving = target ? target.get() : sending.get();
  wiring.builder = wiring.out().builders ? ibv_qp_to_qp_ex(sending.get()) : nullptr;
  to_init(sending.get());
  if (target) to_init(target.get());
  // After the queue pair, since what a killed process leaves is released the other way round.
  if (wiring.in().windowed) window.reset(made(ibv_alloc_mw(wiring.domain, IBV_MW_TYPE_2), "ibv_alloc_mw"));
}

void Endpoint::Epoch::make_receives() {
  const DirectionPlan& in = wiring.in();
  if (in.shared_queue) return;
  std::uint8_t* place = memory.get() + wiring.mine.receives;
  for (int i = 0; i < (domain ? 2 : 1); ++i) {
    receives.push_back(std::make_unique<Receives>(sending.get(), extended_queues[i].get(), place, in.receive_depth,
                                                  wiring.mine.receive_bytes, in.pieces, wiring.lkeys,
                                                  key_of(in.key, i, 19)));
    place += static_cast<std::size_t>(in.receive_depth) * wiring.mine.receive_bytes;
  }
}

void Endpoint::Epoch::completed(const ibv_wc& wc) {
  ++completions;
  // The opcode of a completion with an error says nothing, but ids of sends have a bit that those of receives have
  // not.
  if ((wc.wr_id & 0x80000000u) != 0)
    sender->completed(wc);
  else
    receiver->received(wc);
}

Address Endpoint::Epoch::address() const {
  Address a{};
  a.sending = sending->qp_num;
  a.receiving = wiring.receiving->qp_num;
  for (int i = 0; i < 2; ++i)
    if (extended_queues[i]) STORM_ZERO(ibv_get_srq_num(extended_queues[i].get(), &a.shared[i]));
  a.rkey = regions[0]->rkey;
  a.memory = wiring.address(0);
  a.counters_rkey = commons.adapter.counters_rkey(wiring.domain == commons.adapter.domain(0) ? 0 : 1);
  a.counters = reinterpret_cast<std::uintptr_t>(commons.adapter.counters());
  commons.adapter.describe(&a);
  return a;
}

void Endpoint::Epoch::to_init(ibv_qp* qp) const {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  const bool datagram = qp->qp_type == IBV_QPT_UD, reads = qp->qp_type != IBV_QPT_UC;
  attr.qkey = queue_key(wiring.in());
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (reads ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0);
  STORM_ZERO(ibv_modify_qp(
      qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (datagram ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
}

void Endpoint::Epoch::to_ready_to_receive(ibv_qp* qp, std::uint32_t peer) const {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  if (qp->qp_type == IBV_QPT_UD) {
    STORM_ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    return;
  }
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer;
  attr.rq_psn = sequence_number(wiring.in());
  attr.max_dest_rd_atomic = wiring.in().read_depth;
  attr.min_rnr_timer = wiring.in().rnr_timer;
  attr.ah_attr = commons.adapter.route_to(wiring.peer, wiring.plan.by_gid);
  const bool reliable = qp->qp_type != IBV_QPT_UC;
  STORM_ZERO(ibv_modify_qp(qp, &attr,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
}

void Endpoint::Epoch::to_ready_to_send(ibv_qp* qp) const {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = sequence_number(wiring.out());
  attr.timeout = 18;
  attr.retry_cnt = 7;
  attr.rnr_retry = wiring.out().rnr_retry;
  attr.max_rd_atomic = wiring.out().read_depth;
  const bool reliable = qp->qp_type != IBV_QPT_UC && qp->qp_type != IBV_QPT_UD;
  STORM_ZERO(ibv_modify_qp(
      qp, &attr,
      IBV_QP_STATE | IBV_QP_SQ_PSN |
          (reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
}

void Endpoint::Epoch::connect(const Address& peer) {
  wiring.peer = peer;
  to_ready_to_receive(sending.get(), peer.receiving);
  to_ready_to_send(sending.get());
  if (!target) return;
  to_ready_to_receive(target.get(), peer.sending);
  to_ready_to_send(target.get());
}

void Endpoint::Epoch::to_error() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  receiver->flush_expected();
  STORM_ZERO(ibv_modify_qp(sending.get(), &attr, IBV_QP_STATE));
}

bool Endpoint::Epoch::poll_own() {
  bool some = false;
  for (auto& queue : own_queues)
    if (queue) some |= queue->poll();
  return some;
}

}  // namespace storm
