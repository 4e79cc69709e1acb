// Frames coming in: header, checks, then the payload straight into the place the header's checks allowed.
#include <errno.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "ib2tcp/border.h"
#include "ib2tcp/copy_in_order.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/memory_window.h"
#include "ib2tcp/pinned.h"

namespace shadowib::ib2tcp {
namespace {

// What one call takes at most, so that one busy peer does not starve the others.
constexpr int kFramesPerTurn = 32;
constexpr std::size_t kBytesPerTurn = 4 << 20;
// From this payload on the next header is read alone behind it, so that the payload after that goes straight home.
constexpr std::uint32_t kLargePayload = 32 << 10;

bool known(Opcode opcode) {
  return is_request(opcode) || is_datagram(opcode) ||
         (opcode >= Opcode::kReadResponse && opcode <= Opcode::kDatagramDone) ||
         (opcode >= Opcode::kHello && opcode <= Opcode::kVector);
}

constexpr std::uint8_t kFlags = kFlagSolicited | kFlagAckValid | kFlagPaused;

// What is wrong with a header whatever it is for; nullptr: nothing.
const char* fault(const FrameHeader& header) {
  if (header.version != kWireVersion) return "version";
  if (!known(header.opcode)) return "opcode";
  if (header.length > kMaxMessageBytes) return "length";
  if (is_atomic(header.opcode) && header.length != sizeof(std::uint64_t)) return "length";
  if (is_datagram(header.opcode) && header.length > kMaxDatagramBytes) return "length";
  return (header.flags & ~kFlags) != 0 ? "flags" : nullptr;
}

}  // namespace

bool Link::receive() {
  bool moved = false;
  std::size_t bytes = 0;
  for (int frames = kFramesPerTurn; frames > 0 && bytes < kBytesPerTurn;) {
    std::size_t wanted = 0;
    if (traits_.in_place && rx_begin_ == rx_end_) {
      std::size_t there;
      const char* begin = stream_->peek(&there);
      // A payload that is still coming is read in one go, as far as it is there.
      if (there >= (sink_.active ? sink_.remaining : sizeof(FrameHeader))) {
        Input in{begin, begin + there};
        if (const Parsed parsed = parse(&in, &frames); parsed != Parsed::kMore) {
          if (parsed == Parsed::kHeld) stream_->consume(there - in.left());
          return true;
        }
        const std::size_t taken = there - in.left();
        stream_->consume(taken);
        moved = true;
        bytes += taken;
        if (!stream_->readable()) return true;
        continue;
      }
    }
    --frames;
    ssize_t n = read_some(&wanted);
    if (n < 0) {
      if (errno == EFAULT && sink_.active && sink_.qp != nullptr) {
        // Registered memory has changed unseen (pinned.h). The bytes are still in the stream.
        sink_.discard = sink_.careful = true;
        continue;
      }
      down("its end was closed");
      return true;
    }
    if (n == 0) {
      if (!traits_.memory_readable) readable = false;
      return moved;
    }
    moved = true;
    bytes += static_cast<std::size_t>(n);
    int any = kInput / sizeof(FrameHeader) + 1;  // as many as were read
    Input in{rx_.get() + rx_begin_, rx_.get() + rx_end_};
    if (const Parsed parsed = parse(&in, &any); parsed != Parsed::kMore) {
      if (parsed == Parsed::kHeld) rx_begin_ = rx_end_ - in.left();
      return true;
    }
    rx_begin_ = rx_end_ - in.left();
    // A short read from a socket means that it is empty: asking again would be a system call for nothing.
    if (static_cast<std::size_t>(n) < wanted && !traits_.memory_readable) return true;
    if (traits_.memory_readable && !stream_->readable()) return true;
  }
  return moved;
}

ssize_t Link::read_some(std::size_t* wanted) {
  iovec parts[kMaxParts + 1];
  int count = 0;
  std::size_t direct = 0;
  if (rx_begin_ == rx_end_) rx_begin_ = rx_end_ = 0;
  if (sink_.active) {
    // The buffer is empty while a payload is incomplete.
    if (sink_.discard) {
      parts[0] = {rx_.get(), std::min<std::size_t>(sink_.remaining, kInput)};
      *wanted = parts[0].iov_len;
      ssize_t n = stream_->readv(parts, 1);
      if (n > 0 && sink_.careful) feed_sink_carefully(rx_.get(), static_cast<std::size_t>(n));
      if (n > 0) sink_.remaining -= static_cast<std::uint32_t>(n);
      return n;
    }
    for (int i = sink_.at; i < sink_.count; ++i) {
      parts[count++] = sink_.parts[i];
      direct += sink_.parts[i].iov_len;
    }
  } else if (rx_begin_ > 0) {
    std::memmove(rx_.get(), rx_.get() + rx_begin_, rx_end_ - rx_begin_);
    rx_end_ -= rx_begin_;
    rx_begin_ = 0;
  }
  std::size_t ahead = kInput - rx_end_;
  if (!traits_.read_ahead || large_frames_) ahead = sizeof(FrameHeader) - rx_end_;
  // Through memory a second look is free, and the payload of the next frame may not be there yet.
  if (direct == 0 || traits_.read_ahead) parts[count++] = {rx_.get() + rx_end_, ahead};
  *wanted = direct + (direct == 0 || traits_.read_ahead ? ahead : 0);
  ssize_t n = stream_->readv(parts, count);
  if (n <= 0) return n;
  auto got = static_cast<std::size_t>(n);
  std::size_t placed = std::min(got, direct);
  sink_.remaining -= static_cast<std::uint32_t>(placed);
  rx_end_ += got - placed;
  while (placed > 0) {
    iovec& part = sink_.parts[sink_.at];
    std::size_t step = std::min(placed, part.iov_len);
    part.iov_base = static_cast<char*>(part.iov_base) + step;
    part.iov_len -= step;
    placed -= step;
    if (part.iov_len == 0) ++sink_.at;
  }
  return n;
}

// Up to *frames of them. kHeld: the next one waits for a CLC, and has not been taken.
Link::Parsed Link::parse(Input* in, int* frames) {
  for (;;) {
    if (sink_.active) {
      feed_sink(in);
      if (sink_.remaining > 0) return Parsed::kMore;
      finish_frame();
      if (stream_ == nullptr) return Parsed::kEnded;
    }
    if (in->left() < sizeof(FrameHeader) || *frames == 0) return Parsed::kMore;
    --*frames;
    // The peer may change what lies there: the copy is checked, and nothing is read a second time.
    FrameHeader header;
    std::memcpy(&header, in->at, sizeof(header));
    std::atomic_signal_fence(std::memory_order_seq_cst);
    in->at += sizeof(header);
    if (!begin_frame(header, *in)) {
      if (!is_held()) return Parsed::kEnded;
      in->at -= sizeof(header);
      return Parsed::kHeld;
    }
  }
}

// What was read before the link was held.
void Link::parse_buffer() {
  int any = kInput / sizeof(FrameHeader) + 1;
  Input in{rx_.get() + rx_begin_, rx_.get() + rx_end_};
  if (parse(&in, &any) != Parsed::kEnded) rx_begin_ = rx_end_ - in.left();
}

void Link::feed_sink(Input* in) {
  while (sink_.remaining > 0 && in->at != in->end) {
    std::size_t n = std::min<std::size_t>(sink_.remaining, in->left());
    if (!sink_.discard) {
      iovec& part = sink_.parts[sink_.at];
      n = std::min(n, part.iov_len);
      copy_in_order(part.iov_base, in->at, n);
      part.iov_base = static_cast<char*>(part.iov_base) + n;
      part.iov_len -= n;
      if (part.iov_len == 0) ++sink_.at;
    } else if (sink_.careful) {
      feed_sink_carefully(in->at, n);
    }
    in->at += n;
    sink_.remaining -= static_cast<std::uint32_t>(n);
  }
}

void Link::feed_sink_carefully(const char* from, std::size_t bytes) {
  while (bytes > 0) {
    iovec& part = sink_.parts[sink_.at];
    const std::size_t n = std::min(bytes, part.iov_len);
    if (!is_kept(sink_.regions[sink_.at], part.iov_base, n) || !write_carefully(part.iov_base, from, n)) {
      sink_.careful = false;
      sink_.qp->fail_sink(sink_);
      sink_.abandon();
      return;
    }
    part.iov_base = static_cast<char*>(part.iov_base) + n;
    part.iov_len -= n;
    from += n;
    bytes -= n;
    if (part.iov_len == 0) ++sink_.at;
  }
}

[[gnu::always_inline]] inline bool Link::begin_admitted_frame(const FrameHeader& header, const Input& in) {
  if (header.opcode >= Opcode::kHello)
    return frame_error(header.opcode == Opcode::kHello ? "second greeting" : "between clusters only", header), false;
  std::uint32_t payload = payload_bytes(header);
  large_frames_ = payload >= kLargePayload;
  sink_.active = true;
  sink_.header = header;
  sink_.qp = nullptr;
  sink_.receive = nullptr;
  sink_.discard = true;
  sink_.careful = false;
  sink_.remaining = payload;
  sink_.at = sink_.count = 0;

  if (is_datagram(header.opcode)) {
    keep_datagram(in);
    return true;
  }
  Qp* qp = g_engine->qps.find(header.dest_qpn);
  if (header.opcode == Opcode::kDatagramDone) {
    if (qp == nullptr || qp->has_peer()) return true;
    qp->on_datagram_done(*this, header.seq);
    return stream_ != nullptr;
  }
  if (qp == nullptr || !qp->has_peer() || qp->link() != this || qp->peer_qpn() != header.src_qpn ||
      !qp->connected()) {
    if (is_request(header.opcode)) refuse(header);
    return true;
  }
  if ((header.flags & kFlagAckValid) != 0) qp->on_ack(header.ack);
  if (!qp->connected()) {  // the completions that caused overran their queue, or a request that waited has failed
    if (is_request(header.opcode)) refuse(header);
    return stream_ != nullptr;
  }
  if (is_request(header.opcode)) {
    if (qp->executes(header))
      qp->begin_request(header, &sink_);
    else if (header.sn == 0)
      refuse(header);
    else
      return frame_error("a number, within one cluster", header), false;
  } else if (header.opcode == Opcode::kNak) {
    qp->on_nak(header);
  } else if (header.opcode == Opcode::kReceivePosted) {
    qp->on_receive_posted();
  } else if (header.opcode != Opcode::kAck) {
    qp->begin_response(header, &sink_);
  }
  return stream_ != nullptr;
}

bool Link::begin_frame(const FrameHeader& header, const Input& in) {
  g_engine->statistics.frames_received.add(1);
  if (const char* what = fault(header); what != nullptr) return frame_error(what, header), false;
  if (judged_) return begin_judged_frame(header, in);
  return begin_admitted_frame(header, in);
}

// The first frame of a connection, and all of one to another cluster.
[[gnu::noinline]] bool Link::begin_judged_frame(FrameHeader header, const Input& in) {
  const Admission admission = admit(header);
  if (admission != Admission::kFollow) return admission == Admission::kTaken;
  if (border_ == nullptr || is_datagram(header.opcode)) return begin_admitted_frame(header, in);
  Qp* qp = g_engine->qps.find(header.dest_qpn);
  if (qp == nullptr || !qp->is_connected_to(*this, header.src_qpn)) return begin_admitted_frame(header, in);
  qp->before_border_frame(header);
  const std::uint32_t expected = qp->expected();
  if (!begin_admitted_frame(header, in)) return false;
  if (is_message(header) && (sink_.qp == qp || qp->expected() != expected || header.opcode == Opcode::kNak))
    note_delivery(header);
  if (is_atomic(header.opcode)) qp->keep_result();
  return true;
}

void Link::finish_frame() {
  sink_.active = false;
  Qp* qp = sink_.qp;
  if (is_datagram(sink_.header.opcode)) {
    if (sink_.header.dest_qpn == kMulticastQpn)
      g_engine->multicast.deliver(*this, sink_.header, payload_);
    else if (qp = g_engine->qps.find(sink_.header.dest_qpn); qp != nullptr && !qp->has_peer())
      qp->take_datagram(sink_.header, payload_);
    note_done(sink_.header);
    return;
  }
  if (qp == nullptr) return;
  if (is_request(sink_.header.opcode)) {
    qp->finish_request(sink_);
  } else {
    qp->finish_response(sink_);
  }
}

// Until it is whole. It may be for several queue pairs; and receives complete in order, so none may wait for a
// sender's second half while datagrams of others come in.
void Link::keep_datagram(const Input& in) {
  if (in.left() >= sink_.remaining) {
    payload_ = in.at;  // and is passed over there
    return;
  }
  if (datagram_ == nullptr) datagram_.reset(new char[kMaxDatagramBytes]);
  payload_ = datagram_.get();
  sink_.parts[0] = {datagram_.get(), sink_.remaining};
  sink_.regions[0] = 0;
  sink_.count = 1;
  sink_.discard = false;
}

// A number for many: what comes from one sender is told of by the last.
void Link::note_done(const FrameHeader& header) {
  constexpr std::size_t kSearched = 8, kAtOnce = 32;
  const std::size_t n = done_.size();
  for (std::size_t i = n; i > 0 && i + kSearched > n; --i)
    if (done_[i - 1].dest_qpn == header.src_qpn && done_[i - 1].src_qpn == header.dest_qpn) {
      done_[i - 1].seq = header.seq;
      if (++done_count_ >= kAtOnce) flush_done();
      return;
    }
  FrameHeader& done = done_.emplace_back();
  done.version = kWireVersion;
  done.opcode = Opcode::kDatagramDone;
  done.dest_qpn = header.src_qpn;
  done.src_qpn = header.dest_qpn;
  done.seq = header.seq;
  if (++done_count_ >= kAtOnce) flush_done();
}

// Unlike other frames without a queue pair none of these may be lost: its sender would wait for good.
void Link::flush_done() {
  done_count_ = 0;
  if (loose_.size() + done_.size() > 4 * kMaxLoose) {
    down("it sends and does not read");
    return;
  }
  loose_.insert(loose_.end(), done_.begin(), done_.end());
  done_.clear();
  g_engine->want_turn();
}

void Link::refuse(const FrameHeader& header, std::uint32_t why) {
  FrameHeader answer{};
  answer.version = kWireVersion;
  answer.opcode = Opcode::kNak;
  answer.syndrome = Syndrome::kNotReady;
  answer.dest_qpn = header.src_qpn;
  answer.src_qpn = header.dest_qpn;
  answer.seq = header.seq;
  answer.imm = why;
  // An acknowledgement still to leave would come behind the refusal, whose number would not fit before. The peer has
  // always looked at `ack` where the flag is. Without a debt there is none: the peer may have begun anew since.
  const Qp* qp = is_request(header.opcode) ? g_engine->qps.find(header.dest_qpn) : nullptr;
  if (qp != nullptr && qp->is_peer(*this, header.src_qpn) && qp->has_ack_to_send()) {
    answer.flags = kFlagAckValid;
    answer.ack = qp->expected();
  }
  if (!g_engine->pause.counts()) answer.flags |= kFlagPaused;
  send_loose(answer);
}

}  // namespace shadowib::ib2tcp
