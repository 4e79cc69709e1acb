// The life of a link: connecting, being connected, losing the connection. Input and output have files of their own.
#include "ib2tcp/link.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ib2tcp/border.h"
#include "ib2tcp/handshake.h"
#include "ib2tcp/host.h"
#include "ib2tcp/memory.h"

namespace shadowib::ib2tcp {
namespace {

constexpr std::int64_t kFirstBackoffNs = 5'000'000, kLastBackoffNs = 200'000'000;

}  // namespace

Link::Link(const Endpoint& peer, bool self) : peer_(peer), self_(self) {
  retry_.fire = [](void* owner) {
    auto* link = static_cast<Link*>(owner);
    link->is_over() ? link->look_for_successor() : link->want_connection();
  };
  retry_.owner = this;
  become_border();
}

Link::~Link() = default;

void Link::want_connection() {
  if (state_ != State::kDown || retry_.hook.is_linked() || is_kept_from_connecting()) return;
  if (self_) {
    on_connected(make_self_stream(kShmRingBytes), false);
    return;
  }
  state_ = State::kConnecting;
  attempt_ = nullptr;
  Handshake* attempt = Handshake::connect(*this);  // may fail at once, and say so
  if (state_ == State::kConnecting) attempt_ = attempt;
}

bool Link::being_made() const {
  if (state_ == State::kConfirming || told_later_) return true;
  // A peer of another cluster may be stopped, or hold the connection that broke. Only one that is gone counts.
  if (border_ != nullptr)
    return is_kept_from_connecting() || !absent_ || (attempt_ != nullptr && attempt_->answered()) ||
           g_engine->rendezvous->is_greeted_by(peer_.uuid);
  if (state_ == State::kDown && put_off_since_ns_ != 0)
    return monotonic_ns() - put_off_since_ns_ < kHandshakeTimeoutNs;
  if (state_ != State::kConnecting || attempt_ == nullptr) return false;
  return attempt_->answered() || (attempt_->is_listened_for() && !silent_) || attempt_->has_more_addresses();
}

void Link::note_put_off() {
  is_put_off_ = true;
  if (put_off_since_ns_ == 0) put_off_since_ns_ = monotonic_ns();
}

void Link::on_connect_failed(const char* reason) {
  told_later_ = std::exchange(is_told_later_, false);
  // Who comes later has a time of its own.
  if (!std::exchange(is_put_off_, false) || qps_.empty()) put_off_since_ns_ = 0;
  attempt_ = nullptr;
  if (state_ == State::kConnecting) state_ = State::kDown;
  backoff_ns_ = std::clamp(backoff_ns_ * 2, kFirstBackoffNs, kLastBackoffNs);
  log_message(LogLevel::kInfo, "no connection to the process of LID %u yet: %s", peer_.lid, reason);
  // Only while somebody waits for it: retried by the waiting queue pairs' timers otherwise.
  if (border_ != nullptr ? is_wanted() : !qps_.empty()) g_engine->arm(retry_, monotonic_ns() + backoff_ns_);
}

bool Link::accepts_incoming() const {
  if (self_ || state_ == State::kUp || state_ == State::kConfirming || is_kept_from_connecting()) return false;
  // Both are connecting: the attempt of the smaller uuid is the one that counts.
  if (state_ == State::kConnecting)
    return std::memcmp(g_engine->rendezvous->self().uuid, peer_.uuid, sizeof(peer_.uuid)) > 0;
  return true;
}

void Link::abandon_attempt() {
  if (attempt_ != nullptr) attempt_->abandon();
  attempt_ = nullptr;
}

void Link::on_connected(Stream* stream, bool accepted) {
  if (accepted) {
    abandon_attempt();
  } else {
    attempt_ = nullptr;
  }
  g_engine->disarm(retry_);
  silent_ = absent_ = told_later_ = false;
  put_off_since_ns_ = 0;
  stream_.reset(stream);
  g_engine->add_connected(*this);
  rx_.reset(new char[kInput]);
  tx_.reset(new char[kOutput]);
  traits_ = stream->traits();
  if (!traits_.memory_readable) g_engine->add_sockets(1);
  rx_begin_ = rx_end_ = tx_begin_ = tx_end_ = 0;
  drop_body();
  sink_ = Sink{};
  loose_.clear();
  done_.clear();
  done_count_ = 0;
  readable = true;
  watching_writes_ = false;
  judged_ = accepted || border_ != nullptr;
  if (border_ != nullptr) {
    border_->held = false;
    border_->parting.clear();
    border_->told_in = border_->told_out = 0;
  }
  auto events = [](void* link, std::uint32_t what) { static_cast<Link*>(link)->stream_events(what); };
  data_watch_ = {events, this};
  end_watch_ = {[](void* link, std::uint32_t) {
                  auto* self = static_cast<Link*>(link);
                  self->stream_->on_end_ready();
                  self->readable = true;
                },
                this};
  if (stream->fd() >= 0) g_engine->watch(data_watch_, stream->fd(), EPOLLIN, false);
  if (stream->end_fd() >= 0) g_engine->watch(end_watch_, stream->end_fd(), EPOLLIN | EPOLLRDHUP, true);
  log_message(LogLevel::kDebug, "connected to the process of LID %u by %s", peer_.lid, traits_.name);
  if (accepted) {
    // The peer may have given this attempt up before it read our answer; its first frame says that it has not.
    state_ = State::kConfirming;
    g_engine->want_turn();  // a helper that sleeps has not told this stream so: nobody would ring
    return;
  }
  state_ = State::kUp;
  backoff_ns_ = 0;
  if (!self_) {
    Frame hello;
    begin_at(room(), &hello);
    *hello.header = FrameHeader{};
    hello.header->version = kWireVersion;
    hello.header->opcode = Opcode::kHello;
    append(hello);
  }
  tell_up();
  pump();
}

void Link::tell_up() {
  for (Qp& qp : qps_) qp.on_link_up();
  for (Qp* qp : g_engine->datagram_qps) qp->on_datagram_link_up();
}

void Link::down(const char* reason) {
  if (stream_ == nullptr) return;
  bool was_up = state_ == State::kUp;
  g_engine->unwatch(data_watch_);
  g_engine->unwatch(end_watch_);
  if (sink_.active && sink_.qp != nullptr) sink_.qp->give_up_sink(sink_);
  sink_ = Sink{};
  if (border_ != nullptr) border_->held = false;
  state_ = State::kDown;
  if (!traits_.memory_readable) g_engine->add_sockets(-1);
  // A caller further up may be inside the stream, or at a buffer: they go when the turn is over.
  g_engine->bury(stream_.release());
  g_engine->bury(std::move(rx_));
  g_engine->bury(std::move(tx_));
  if (datagram_ != nullptr) g_engine->bury(std::move(datagram_));
  loose_ = {};
  done_ = {};
  rx_begin_ = rx_end_ = tx_begin_ = tx_end_ = 0;
  drop_body();
  ready_.clear();
  if (!was_up) {
    on_connect_failed(reason);
    return;
  }
  g_engine->statistics.links_lost.add(1);
  log_message(LogLevel::kInfo, "the connection to the process of LID %u ended: %s", peer_.lid, reason);
  // A border is dialled again whatever ended it, so not at once: a peer that breaks the rules would do so for ever.
  if (border_ != nullptr) g_engine->arm(retry_, monotonic_ns() + kFirstBackoffNs);
  for (auto it = qps_.begin(); it != qps_.end();) {
    Qp& qp = *it++;
    qp.on_link_down();
  }
  for (Qp* qp : g_engine->datagram_qps) qp->on_datagram_link_down(*this);
}

void Link::end_if_lost(std::uint32_t patience_ms) {
  if (stream_ != nullptr && stream_->has_lost_peer(patience_ms)) down("its host does not answer");
}

void Link::stream_events(std::uint32_t) {
  readable = true;
  if (g_engine->helper_looks()) stream_->on_fd_ready();
}

Receive* Link::cut(Qp& qp) {
  detach_output(qp);
  if (!sink_.active || sink_.qp != &qp) return nullptr;
  sink_.abandon();
  return std::exchange(sink_.receive, nullptr);
}

void Link::forget(Qp& qp) {
  qp.of_link.unlink();
  qp.ready_hook.unlink();
  qp.ack_hook.unlink();
  if (qps_.empty()) put_off_since_ns_ = 0;
}

void Link::forget_memory(std::uint32_t key, const void* memory, std::size_t bytes) {
  // On the way out the address is enough: a copy too many does no harm.
  const char* begin = static_cast<const char*>(memory);
  auto touches = [&](const iovec& part) {
    const char* at = static_cast<const char*>(part.iov_base);
    return at < begin + bytes && at + part.iov_len > begin;
  };
  for (int i = body_at_; i < body_count_; ++i)
    if (touches(body_[i])) {
      snapshot_body();
      break;
    }
  if (!sink_.active || sink_.qp == nullptr) return;
  for (int i = sink_.at; i < sink_.count; ++i)
    if (sink_.regions[i] == key) {
      Qp* qp = sink_.qp;
      sink_.discard = true;
      qp->fail_sink(sink_);
      sink_.abandon();
      return;
    }
}

void Link::memory_changes(const char* begin, std::size_t bytes) {
  auto touches = [&](const iovec& part) {
    const char* at = static_cast<const char*>(part.iov_base);
    return at < begin + bytes && at + part.iov_len > begin;
  };
  if (std::any_of(body_ + body_at_, body_ + body_count_, touches)) snapshot_body();
  if (!sink_.active || sink_.qp == nullptr || sink_.discard) return;
  if (std::any_of(sink_.parts + sink_.at, sink_.parts + sink_.count, touches)) sink_.discard = sink_.careful = true;
}

bool Link::prepare_sleep() {
  // What became ready after this turn's pump: by a timer, or a connection that just came up.
  if (up() && unsent() && tx_begin_ == tx_end_ && body_count_ == 0) return false;
  bool writing = tx_begin_ != tx_end_ || body_count_ != 0;
  if (stream_->poll_writes() && writing != watching_writes_) {
    watching_writes_ = writing;
    if (is_held())
      watch_held_writes(writing);
    else
      g_engine->rewatch(data_watch_, writing ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
  return stream_->prepare_sleep(writing);
}

void Link::wake_up() {
  if (stream_ != nullptr) stream_->wake_up();
}

bool Link::turn(bool read) {
  bool moved = read && receive();
  if (stream_ != nullptr && unsent()) moved |= pump();
  return moved;
}

void Link::frame_error(const char* what, const FrameHeader& h) {
  g_engine->statistics.frames_refused.add(1);
  log_message(
      LogLevel::kWarn,
      "the process of LID %u sent a bad frame (%s: version %u opcode %u flags %u length %u for queue pair %u); "
      "the connection is closed",
      peer_.lid, what, h.version, static_cast<unsigned>(h.opcode), h.flags, h.length, h.dest_qpn);
  down("bad frame");
}

}  // namespace shadowib::ib2tcp
