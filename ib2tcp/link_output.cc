// Frames going out: small ones gathered in one buffer, the payload of a large one written from where it lies.
#include <errno.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "ib2tcp/as_adapter.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/pinned.h"

namespace shadowib::ib2tcp {

bool Link::pump() {
  if (!up()) return false;
  bool moved = false;
  for (;;) {
    if (tx_begin_ == tx_end_ && body_count_ == 0) moved |= gather();
    if (tx_begin_ == tx_end_ && body_count_ == 0) return moved;
    if (!flush()) {
      // What is left goes when there is room; the helper, if it sleeps, has to watch for that.
      if (stream_ != nullptr) g_engine->want_turn();
      return moved;
    }
    moved = true;
    if (self_) g_engine->want_turn();  // nobody else will read it
  }
}

void Link::send_loose(const FrameHeader& header) {
  if ((stream_ == nullptr && !is_frozen()) || loose_.size() >= kMaxLoose)
    return;  // as lost as a packet on a real wire
  loose_.push_back(header);
  g_engine->want_turn();
}

// An XRC target sends nothing that its acknowledgements could ride on: what the program answers goes by another queue
// pair, and tells the sender that its message was executed. So they go before it.
void Link::acknowledge_first() {
  while (!owing_.empty() && owing_.front().is_target()) {
    Qp& qp = owing_.front();
    owing_.pop_front();
    qp.want_ack_now();
    qp.ready_hook.unlink();
    ready_.push_front(qp);
  }
}

// True if frames have left in place.
bool Link::gather() {
  bool placed = false;
  tx_begin_ = tx_end_ = 0;
  if (!done_.empty()) flush_done();
  if (!owing_.empty() && owing_.front().is_target()) acknowledge_first();
  if (stream_ == nullptr) return false;
  if (!loose_.empty()) {
    if (border_ != nullptr) prepare_loose();
    std::size_t n = std::min(loose_.size(), kOutput / 2 / sizeof(FrameHeader));
    std::memcpy(tx_.get() + tx_end_, loose_.data(), n * sizeof(FrameHeader));
    tx_end_ += n * sizeof(FrameHeader);
    loose_.erase(loose_.begin(), loose_.begin() + static_cast<std::ptrdiff_t>(n));
    if (!loose_.empty()) return false;  // a refusal of before must not come behind what was executed since
  }
  // One frame per queue pair in turn.
  while (!ready_.empty()) {
    char* to = room();
    if (to == nullptr) break;
    Qp& qp = ready_.front();
    ready_.pop_front();
    begin_at(to, &frame_);
    if (!qp.next_frame(&frame_)) continue;
    if (qp.may_have_frames()) ready(qp);
    body_qp_ = &qp;
    if (append(frame_)) break;
    placed |= is_placing_;
  }
  return placed;
}

// Where the next frame goes, unless its payload is large. nullptr: what was gathered has to go first.
char* Link::room() {
  const std::size_t most = sizeof(FrameHeader) + traits_.copy_limit;
  char* to = traits_.in_place && tx_end_ == 0 ? stream_->reserve(most) : nullptr;
  is_placing_ = to != nullptr;
  if (is_placing_) return to;
  return kOutput - tx_end_ >= most ? tx_.get() + tx_end_ : nullptr;
}

void Link::begin_at(char* to, Frame* frame) {
  begun_ = to;
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(to) % alignof(FrameHeader) == 0;
  frame->header = is_aligned ? reinterpret_cast<FrameHeader*>(to) : &apart_;
  frame->bytes = 0;
}

bool Frame::copy_carefully(std::size_t bytes) {
  copy.reset(new (std::nothrow) char[bytes]);
  if (copy == nullptr) return false;
  char* at = copy.get();
  for (int i = 0; i < count; at += parts[i].iov_len, ++i)
    if (!read_carefully(at, parts[i].iov_base, parts[i].iov_len)) return false;
  parts[0] = {copy.get(), bytes};
  count = 1;
  return true;
}

// True if the frame's payload follows the buffer, so that nothing can be added behind it.
bool Link::append(Frame& frame) {
  g_engine->statistics.frames_sent.add(1);
  if (frame.header == &apart_) std::memcpy(begun_, &apart_, sizeof(apart_));
  const bool is_small = frame.bytes <= traits_.copy_limit;
  std::size_t bytes = sizeof(FrameHeader);
  if (is_small && frame.bytes != 0) {
    const AsAdapter unseen;
    char* to = begun_ + sizeof(FrameHeader);
    for (int i = 0; i < frame.count; to += frame.parts[i].iov_len, ++i)
      std::memcpy(to, frame.parts[i].iov_base, frame.parts[i].iov_len);
    bytes += frame.bytes;
  }
  if (is_placing_)
    stream_->commit(bytes);
  else
    tx_end_ += bytes;
  if (is_small) return false;
  std::copy(frame.parts, frame.parts + frame.count, body_);
  body_at_ = 0;
  body_count_ = frame.count;
  if (body_[0].iov_base == frame.copy.get()) body_copy_ = std::move(frame.copy);
  return true;
}

// Writes the buffer and the payload behind it; true when all is gone.
bool Link::flush() {
  while (tx_begin_ != tx_end_ || body_count_ != 0) {
    iovec parts[kMaxParts + 1];
    int count = 0;
    if (tx_begin_ != tx_end_) parts[count++] = {tx_.get() + tx_begin_, tx_end_ - tx_begin_};
    for (int i = body_at_; i < body_count_; ++i) parts[count++] = body_[i];
    ssize_t n = stream_->writev(parts, count);
    if (n < 0 && errno == EFAULT && body_copy_ == nullptr && copy_body(true)) continue;
    if (n < 0) {
      down(errno == EFAULT ? "registered memory that was to be sent is no longer mapped" : "its end was closed");
      return false;
    }
    if (n == 0) return false;
    auto left = static_cast<std::size_t>(n);
    std::size_t head = std::min(left, tx_end_ - tx_begin_);
    tx_begin_ += head;
    left -= head;
    while (left > 0) {
      iovec& part = body_[body_at_];
      std::size_t step = std::min(left, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + step;
      part.iov_len -= step;
      left -= step;
      if (part.iov_len == 0) ++body_at_;
    }
    if (body_count_ != 0 && body_at_ == body_count_ && tx_begin_ == tx_end_) drop_body();
  }
  return true;
}

void Link::detach_output(const Qp& qp) {
  if (body_count_ != 0 && body_qp_ == &qp) snapshot_body();
}

void Link::snapshot_body() {
  if (body_copy_ == nullptr && !copy_body(false))
    down("no memory to keep the rest of a message whose memory goes away");
}

// What is left of the payload, so that its own memory is needed no more. `careful`: it may not be touched.
bool Link::copy_body(bool careful) {
  std::size_t bytes = 0;
  for (int i = body_at_; i < body_count_; ++i) bytes += body_[i].iov_len;
  std::unique_ptr<char[]> copy(new (std::nothrow) char[bytes]);
  if (copy == nullptr) return false;
  std::size_t at = 0;
  const AsAdapter unseen;
  for (int i = body_at_; i < body_count_; ++i) {
    if (!careful)
      std::memcpy(copy.get() + at, body_[i].iov_base, body_[i].iov_len);
    else if (!read_carefully(copy.get() + at, body_[i].iov_base, body_[i].iov_len))
      return false;
    at += body_[i].iov_len;
  }
  body_copy_ = std::move(copy);
  body_[0] = {body_copy_.get(), bytes};
  body_at_ = 0;
  body_count_ = 1;
  return true;
}

void Link::drop_body() {
  body_at_ = body_count_ = 0;
  body_qp_ = nullptr;
  body_copy_.reset();
}

void Link::send_owed_acks() {
  if (!up()) return;
  while (!owing_.empty()) {
    Qp& qp = owing_.front();
    owing_.pop_front();
    qp.want_ack_now();
  }
  if (!done_.empty()) flush_done();
  pump();
}

}  // namespace shadowib::ib2tcp
