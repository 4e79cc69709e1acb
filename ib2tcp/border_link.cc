// Links across the border: what comes in is judged first, and the whole link can be held, frozen or shut.
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ib2tcp/border.h"
#include "ib2tcp/held_stream.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"

namespace shadowib::ib2tcp {
namespace {

// How often the exchange is asked for the process that comes after one that is gone.
constexpr std::int64_t kFirstLookNs = 5'000'000, kLastLookNs = 200'000'000;

}  // namespace

void Link::become_border() {
  const Border* border = g_engine->border.get();
  if (border == nullptr || self_ || peer_.cluster == 0 || peer_.cluster == border->index() + 1) return;
  border_ = std::make_unique<BorderSide>();
  border_->cluster = peer_.cluster - 1u;
  border_->incarnation = peer_.incarnation;
  border_->shut = border->incarnation_of(border_->cluster) != border_->incarnation;
  border_->frozen = border->frozen();
}

bool Link::is_kept_from_connecting() const { return border_ != nullptr && (border_->frozen || border_->shut); }

const federation::Stamp* Link::held_stamp() const {
  return border_ != nullptr && border_->held ? &border_->stamp : nullptr;
}

unsigned Link::cluster() const { return border_->cluster; }

bool Link::is_over() const { return border_ != nullptr && border_->shut; }

bool Link::is_frozen() const { return border_ != nullptr && border_->frozen; }

void Link::ready_first(Qp& qp) {
  qp.ready_hook.unlink();
  ready_.push_front(qp);
}

bool Link::begin_telling(federation::Sn sn) {
  if (border_->told_out == sn) return false;
  border_->told_out = sn;
  return true;
}

// --- what comes in ---

Link::Admission Link::admit(FrameHeader& header) {
  if (state_ == State::kConfirming) {
    if (header.opcode != Opcode::kHello) return frame_error("no greeting first", header), Admission::kEnds;
    state_ = State::kUp;
    judged_ = border_ != nullptr;
    backoff_ns_ = 0;
    tell_up();
    return Admission::kTaken;
  }
  switch (header.opcode) {
    case Opcode::kHello:
      return Admission::kFollow;
    case Opcode::kResume:
      return resume_queue(header);
    case Opcode::kStable:
      return trim_log(header);
    case Opcode::kVector:
      return begin_vector(header);
    default:
      break;
  }
  const federation::Sn sn = header.sn;
  if (!is_datagram(header.opcode)) header.sn = 0;
  return is_message(header) ? judge(header, sn) : Admission::kFollow;
}

Link::Admission Link::judge(const FrameHeader& header, federation::Sn sn) {
  BorderSide& side = *border_;
  const Border& border = *g_engine->border;
  federation::Stamp stamp;
  stamp.cluster = side.cluster;
  stamp.incarnation = side.incarnation;
  stamp.sn = is_datagram(header.opcode) ? side.told_in : sn;
  if (border.policy() == federation::Policy::kVector) {
    if (side.told_in != stamp.sn) return frame_error("dependencies not told", header), Admission::kEnds;
    stamp.vector = side.dependencies;
  }
  switch (border.judge(stamp)) {
    case federation::Arrival::kDeliver:
      side.admitted = stamp.sn;
      if (is_datagram(header.opcode)) g_engine->border->note_delivered(side.cluster, stamp.sn);
      return Admission::kFollow;
    case federation::Arrival::kHold:
      trace(BorderEvent::kHold, header);
      hold(stamp);
      return Admission::kEnds;
    default:
      return frame_error("not of a living cluster's checkpoint", header), Admission::kEnds;
  }
}

// The message that was let in last has begun to be placed, or has been.
void Link::note_delivery(const FrameHeader& header) {
  g_engine->border->note_delivered(border_->cluster, border_->admitted);
  trace(BorderEvent::kDeliver, header);
}

void Link::trace(BorderEvent::Kind kind, const FrameHeader& header) const {
  if (g_host->trace == nullptr || is_datagram(header.opcode)) return;
  const Qp* qp = g_engine->qps.find(header.dest_qpn);
  if (qp != nullptr && !qp->reliable()) return;
  const Border& border = *g_engine->border;
  trace_message(kind, border, border.sn(), border_->cluster, header.opcode, peer_.lid, header.src_qpn,
                header.dest_qpn, header.seq, nullptr);
}

Link::Admission Link::resume_queue(const FrameHeader& header) {
  Qp* qp = g_engine->qps.find(header.dest_qpn);
  if (qp != nullptr && qp->is_connected_to(*this, header.src_qpn))
    qp->on_resume(header);
  else if ((qp == nullptr || !qp->repeats_refusal(*this, header.src_qpn)) && header.operand1 != 0)
    refuse(header, qp == nullptr || qp->state() == IBV_QPS_ERR ? kGoneForGood : 0);
  return stream_ != nullptr ? Admission::kTaken : Admission::kEnds;
}

Link::Admission Link::trim_log(const FrameHeader& header) {
  Qp* qp = g_engine->qps.find(header.dest_qpn);
  if (qp != nullptr && qp->is_connected_to(*this, header.src_qpn)) {
    // The peer owes no acknowledgement any more that this frame has taken with it.
    qp->before_border_frame(header);
    if (qp->connected()) qp->on_ack(header.ack);
    if (!qp->is_connected_to(*this, header.src_qpn)) return stream_ != nullptr ? Admission::kTaken : Admission::kEnds;
    // A number is there always, but for a peer of an earlier version: then nobody knows which one.
    if (qp->trim_log(header.seq, static_cast<std::uint32_t>(header.operand1)))
      g_engine->border->note_trimmed(border_->cluster, header.sn != 0 ? header.sn : ~federation::Sn{0});
    qp->on_log_room();
  }
  return Admission::kTaken;
}

Link::Admission Link::begin_vector(const FrameHeader& header) {
  constexpr std::uint32_t kEntry = sizeof(std::uint32_t);
  if (header.sn == 0) return frame_error("no number of a checkpoint", header), Admission::kEnds;
  if (header.length % kEntry != 0 || header.length > kEntry * federation::kMaxClusters)
    return frame_error("length", header), Admission::kEnds;
  BorderSide& side = *border_;
  side.told_in = header.sn;
  side.dependencies = federation::PerCluster(federation::kMaxClusters);
  sink_ = Sink{};
  sink_.active = true;
  sink_.header = header;
  sink_.remaining = header.length;
  sink_.parts[0] = {side.dependencies.of.data(), header.length};
  sink_.regions[0] = 0;
  sink_.count = 1;
  return Admission::kTaken;
}

// --- hold ---

void Link::hold(const federation::Stamp& stamp) {
  border_->held = true;
  border_->stamp = stamp;
  stream_ = std::make_unique<HeldStream>(stream_.release());
  // A doorbell stays: nobody rings it while its owner does not ask for it.
  g_engine->unwatch(end_watch_);
  if (stream_->poll_writes()) g_engine->unwatch(data_watch_);
  watching_writes_ = false;
  g_engine->statistics.links_held.add(1);
  g_host->needs_clc(stamp.cluster, stamp.sn);
}

void Link::watch_held_writes(bool writing) {
  if (writing)
    g_engine->watch(data_watch_, stream_->fd(), EPOLLOUT, false);
  else
    g_engine->unwatch(data_watch_);
}

void Link::watch_stream() {
  g_engine->unwatch(data_watch_);
  watching_writes_ = false;
  const bool held = border_ != nullptr && border_->held;
  if (stream_->fd() >= 0 && !(held && stream_->poll_writes()))
    g_engine->watch(data_watch_, stream_->fd(), EPOLLIN, false);
  if (stream_->end_fd() >= 0 && !held) g_engine->watch(end_watch_, stream_->end_fd(), EPOLLIN | EPOLLRDHUP, true);
}

// The held message and those behind it that have been read already; the rest is for the next turn.
void Link::release_if_admitted() {
  switch (g_engine->border->judge(border_->stamp)) {
    case federation::Arrival::kHold:
      g_host->needs_clc(border_->stamp.cluster, border_->stamp.sn);
      return;
    case federation::Arrival::kDead:
      down("its message is of an incarnation that is over");
      return;
    case federation::Arrival::kDeliver:
      break;
  }
  border_->held = false;
  Stream* stream = static_cast<HeldStream*>(stream_.get())->release();
  g_engine->bury(stream_.release());
  stream_.reset(stream);
  watch_stream();
  readable = true;
  g_engine->want_turn();
  parse_buffer();
}

void Link::on_new_state() {
  const bool over = g_engine->border->incarnation_of(border_->cluster) != border_->incarnation;
  if (over) {
    if (!border_->shut) shut();
    look_for_successor();
    return;
  }
  const bool was_shut = std::exchange(border_->shut, false);
  if (g_engine->border->policy() == federation::Policy::kVector) border_->told_out = 0;  // D may be another
  if (border_->frozen) return;                                                           // thaw() looks
  if (border_->held) release_if_admitted();
  if (was_shut) kick_queues();
  wake_queues();
  pump();
}

void Link::kick_queues() {
  for (auto it = qps_.begin(); it != qps_.end();) {
    Qp& qp = *it++;
    qp.kick();
  }
  if (!qps_.empty()) want_connection();
}

void Link::look_for_successor() {
  g_engine->disarm(retry_);
  if (border_->frozen || !g_engine->border->has_come_back(border_->cluster)) return;
  Endpoint successor;
  if (g_engine->rendezvous->successor_of(peer_, &successor)) {
    follow(successor);
    return;
  }
  backoff_ns_ = std::clamp(backoff_ns_ * 2, kFirstLookNs, kLastLookNs);
  g_engine->arm(retry_, monotonic_ns() + backoff_ns_);
}

void Link::follow(const Endpoint& successor) {
  g_engine->disarm(retry_);
  peer_ = successor;
  first_address = 0;
  backoff_ns_ = 0;
  silent_ = absent_ = told_later_ = false;  // that was the one before
  border_->incarnation = successor.incarnation;
  border_->shut = g_engine->border->incarnation_of(border_->cluster) != border_->incarnation;
  if (!border_->shut && !border_->frozen) kick_queues();
}

// Whether a queue pair has something to say to a peer that nobody answers for.
bool Link::is_wanted() const {
  return std::any_of(qps_.begin(), qps_.end(), [](const Qp& qp) { return qp.has_something_to_say(); });
}

// Refusals that outlive their queue pair get the number of now, and under `vector` the frame that goes before it.
// Before CLC 1 they stay.
void Link::prepare_loose() {
  const federation::Sn sn = g_engine->border->sn();
  bool any = false;
  for (auto it = loose_.begin(); it != loose_.end();) {
    if (!is_message(*it)) {
      ++it;
    } else if (sn == 0) {
      border_->parting.push_back(*it);
      it = loose_.erase(it);
      g_engine->border->ask_for_first();
    } else {
      it++->sn = sn;
      any = true;
    }
  }
  if (!any || g_engine->border->policy() != federation::Policy::kVector || !begin_telling(sn)) return;
  const federation::PerCluster& depends = g_engine->border->dependencies_under(sn);
  FrameHeader vector{};
  vector.version = kWireVersion;
  vector.opcode = Opcode::kVector;
  vector.sn = sn;
  vector.length = depends.clusters * static_cast<std::uint32_t>(sizeof(depends.of[0]));
  std::memcpy(tx_.get() + tx_end_, &vector, sizeof(vector));
  std::memcpy(tx_.get() + tx_end_ + sizeof(vector), depends.of.data(), vector.length);
  tx_end_ += sizeof(vector) + vector.length;
}

// --- freeze ---

void Link::freeze() {
  border_->frozen = true;
  if (state_ == State::kConnecting) {
    abandon_attempt();
    state_ = State::kDown;
  }
  g_engine->disarm(retry_);
  if (stream_ != nullptr && body_count_ != 0) snapshot_body();
  if (stream_ == nullptr) return;
  g_engine->unwatch(data_watch_);
  g_engine->unwatch(end_watch_);
  border_->was_confirming = state_ == State::kConfirming;
  border_->parked = std::move(stream_);
  state_ = State::kFrozen;
}

void Link::thaw() {
  border_->frozen = false;
  if (border_->parked == nullptr) {
    is_over() ? look_for_successor() : kick_queues();
    return;
  }
  stream_ = std::move(border_->parked);
  state_ = border_->was_confirming ? State::kConfirming : State::kUp;
  stream_->wake_up();
  watch_stream();
  readable = true;
  g_engine->want_turn();
  if (border_->held) release_if_admitted();
  wake_queues();
  pump();
}

// Answers and requests may have gathered while nothing could leave.
void Link::wake_queues() {
  if (!up()) return;
  if (g_engine->border->sn() != 0 && !border_->parting.empty()) {
    loose_.insert(loose_.end(), border_->parting.begin(), border_->parting.end());
    border_->parting.clear();
  }
  for (auto it = qps_.begin(); it != qps_.end();) {
    Qp& qp = *it++;
    qp.on_border_open();
    ready(qp);
  }
  for (Qp* qp : g_engine->datagram_qps) qp->on_datagram_link_up();
  g_engine->want_turn();
}

// The peer's cluster went back: nothing of that incarnation is delivered, or sent to it, any more.
void Link::shut() {
  border_->shut = true;
  for (Qp& qp : qps_) qp.on_peer_gone();
  if (state_ == State::kConnecting) {
    abandon_attempt();
    state_ = State::kDown;
  }
  g_engine->disarm(retry_);
  if (border_->parked != nullptr) {
    stream_ = std::move(border_->parked);
    state_ = State::kUp;
  }
  down("its cluster went back");
  g_engine->want_turn();  // that ends the stream
}

}  // namespace shadowib::ib2tcp
