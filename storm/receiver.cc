#include "storm/receiver.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "storm/payload.h"

namespace storm {
namespace {

constexpr std::uint64_t kFresh = ~0ull;     // the seal of places that nothing was written to
constexpr std::uint64_t kLongestAway = 30;  // ticks: what an unreliable transport has not brought until then is lost
constexpr std::uint64_t kLookedThrough = 4096;  // operations around one that a stray write may be of

}  // namespace

Receiver::Receiver(Wiring& wiring, std::vector<Receives*> queues, Sender& back, ibv_mw* window, ibv_mr* window_region,
                   const std::atomic<std::uint64_t>& ticks)
    : wiring_(wiring),
      queues_(std::move(queues)),
      back_(back),
      window_(window),
      window_region_(window_region),
      ticks_(ticks),
      dice_(key_of(wiring.in().key, 13)),
      next_message_(skip(0, is_message)),
      next_write_(skip(0, is_to_ring)) {}

std::uint64_t Receiver::skip(std::uint64_t n, bool (*wanted)(Kind)) const {
  while (n < wiring_.in().operations && !wanted(operation(n).kind)) ++n;
  return n;
}

std::uint8_t* Receiver::place_at(std::uint64_t place) const {
  return wiring_.memory + wiring_.mine.ring + place * wiring_.in().slot_bytes;
}

std::uint64_t Receiver::word(std::size_t offset) const {
  return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(wiring_.memory + offset), __ATOMIC_ACQUIRE);
}

void Receiver::prepare() {
  const DirectionPlan& plan = wiring_.in();
  for (std::uint64_t place = 0; place < plan.ring; ++place) seal(place_at(place), plan.slot_bytes, plan.key, kFresh);
  fill(wiring_.memory + wiring_.mine.library, Layout::kLibraryBytes + plan.slot_bytes, library_key(plan.key), 0);
  for (Receives* queue : queues_)
    if (plan.shared_queue || plan.manner == Manner::kLate)
      continue;
    else
      queue->post(queue->free_places());
}

std::uint32_t Receiver::outstanding() const {
  std::uint32_t sum = 0;
  for (const Receives* queue : queues_) sum += queue->outstanding();
  return sum;
}

bool Receiver::step() {
  bool some = poll_ring();
  some |= release();
  some |= post_receives();
  some |= serve_window();
  return tell() || some;
}

bool Receiver::post_receives() {
  if (wiring_.in().shared_queue) return false;
  bool some = false;
  for (Receives* queue : queues_) some |= post_receives_of(*queue);
  return some;
}

bool Receiver::post_receives_of(Receives& queue) {
  const std::uint32_t free = queue.free_places();
  if (free == 0) return false;
  switch (wiring_.in().manner) {
    case Manner::kLate:
      if (queue.outstanding() > 0) return false;
      if (patience_ == 0) patience_ = dice_.between(1, 300);
      if (--patience_ > 0) return false;
      queue.post(dice_.between(1, free));
      return true;
    case Manner::kPermit:
      if (patience_ == 0) patience_ = dice_.between(1, 100);
      if (--patience_ > 0) return false;
      if (!sealed_.empty()) check_sealed(sealed_.back());
      queue.post(1);
      return true;
    default:
      if (free < dice_.between(1, queue.size() / 2 + 1)) return false;
      queue.post(dice_.percent(50) ? free : dice_.between(1, free));
      return true;
  }
}

// Writes without immediate data: nothing but memory tells of them.
bool Receiver::poll_ring() {
  const DirectionPlan& plan = wiring_.in();
  bool some = false;
  while (next_write_ < plan.operations) {
    const Operation op = operation(next_write_);
    if (op.kind != Kind::kWrite) break;
    if (last_word(place_at(consumed_ % plan.ring), plan.slot_bytes) != landed_word(plan.key, next_write_)) break;
    consume(op, true);
    some = true;
  }
  return some;
}

// A message has come: the writes before it have, too, or never will.
void Receiver::consume_ring(std::uint64_t before) {
  const DirectionPlan& plan = wiring_.in();
  while (next_write_ < before) {
    const std::uint64_t place = plan.manner == Manner::kPermit ? 0 : consumed_ % plan.ring;
    const bool landed = last_word(place_at(place), plan.slot_bytes) == landed_word(plan.key, next_write_);
    if (!landed && wiring_.reliable())
      complain_of_place(place, next_write_, "a message came, and not this write before it");
    if (!landed) ledger().count(Count::kDropped);
    consume(operation(next_write_), landed);
  }
}

void Receiver::consume(const Operation& op, bool landed) {
  const DirectionPlan& plan = wiring_.in();
  const std::uint64_t number = next_write_;
  const std::uint64_t place = plan.manner == Manner::kPermit ? 0 : consumed_ % plan.ring;
  const std::uint8_t* data = place_at(place) + plan.slot_bytes - op.bytes;
  if (landed) {
    if (const auto wrong = first_difference(data, 0, op.bytes - 8, plan.key, number))
      ledger().fault(is_of_later(place, data + *wrong, number) ? Fault::kEarly : Fault::kCorrupted,
                     "%s: write %lu of %u bytes is wrong at byte %lu", wiring_.name(), number, op.bytes, *wrong);
  }
  // Overwritten at once: a write that is done again is seen when the place is released.
  seal(place_at(place), plan.slot_bytes, plan.key, number);
  if (plan.manner == Manner::kPermit) sealed_.clear();
  sealed_.push_back({place, number});
  ++consumed_;
  next_write_ = skip(number + 1, is_to_ring);
  moved_at_ = ticks_;
}

bool Receiver::release() {
  const DirectionPlan& plan = wiring_.in();
  if (plan.manner == Manner::kPermit || sealed_.size() < plan.hold) return false;
  for (const Sealed& what : sealed_) check_sealed(what);
  released_ += sealed_.size();
  sealed_.clear();
  return true;
}

void Receiver::check_sealed(const Sealed& what) {
  const DirectionPlan& plan = wiring_.in();
  if (!sealed(place_at(what.place), plan.slot_bytes, plan.key, what.number))
    complain_of_place(what.place, what.number,
                      "its place was read and sealed, and was written to before it was released");
}

void Receiver::check_places() {
  for (const Sealed& what : sealed_) check_sealed(what);
}

// Whether what lies there is of a write that has come before the place of `number` was free.
bool Receiver::is_of_later(std::uint64_t place, const std::uint8_t* at, std::uint64_t number) const {
  const DirectionPlan& plan = wiring_.in();
  for (std::uint64_t n = number + 1; n < number + kLookedThrough && n < plan.operations; ++n) {
    const Operation op = operation(n);
    const std::uint8_t* begin = place_at(place) + plan.slot_bytes - op.bytes;
    if (!is_to_ring(op.kind) || at < begin) continue;
    const auto from = static_cast<std::size_t>(at - begin);
    if (from + 8 <= op.bytes - 8 && !first_difference(at, from, from + 8, plan.key, n)) return true;
  }
  return false;
}

// Says what a place holds instead of what it should, by its last word or its seal.
void Receiver::complain_of_place(std::uint64_t place, std::uint64_t number, const char* what) {
  const DirectionPlan& plan = wiring_.in();
  const std::uint64_t found = last_word(place_at(place), plan.slot_bytes);
  Fault fault = sealed(place_at(place), plan.slot_bytes, plan.key, number) ? Fault::kLost : Fault::kCorrupted;
  std::uint64_t of = kFresh;
  const std::uint64_t from = number > kLookedThrough ? number - kLookedThrough : 0;
  for (std::uint64_t n = from; n < number + kLookedThrough && n < plan.operations; ++n)
    if (found == landed_word(plan.key, n) ||
        (n > number && sealed(place_at(place), plan.slot_bytes, plan.key, n)))  // it was read there, too
      of = n;
  if (of != kFresh) fault = of > number ? Fault::kEarly : Fault::kDoubled;
  if (of == kFresh && next_write_ == number) fault = Fault::kLost;
  ledger().fault(fault, "%s: write %lu, place %lu: %s; there is %lx (write %ld)", wiring_.name(), number, place, what,
                 found, static_cast<long>(of));
}

bool Receiver::tell() {
  const Credits now{released_, messages_ + (wiring_.in().manner == Manner::kPaced ? outstanding() : 0)};
  const std::uint64_t step = std::max(1u, wiring_.in().receive_depth / 4);
  if (now.released == told_.released && now.receives < told_.receives + step) return false;
  if (wiring_.in().manner != Manner::kPaced && now.released == told_.released) return false;
  if (wiring_.reliable()) {
    if (!back_.post_credit(now)) return false;
  } else {
    Message message{};
    message.word = Word::kCredit;
    message.epoch = wiring_.epoch;
    message.values[0] = now.released;
    message.values[1] = now.receives;
    wiring_.control->say(message);
  }
  told_ = now;
  return true;
}

// Binds the window anew when the sender has invalidated it, and tells its key when it is bound.
bool Receiver::serve_window() {
  const DirectionPlan& plan = wiring_.in();
  if (window_ == nullptr) return false;
  if (window_key_ == 0) {
    const ibv_mw_bind_info what{window_region_, wiring_.address(wiring_.mine.ring),
                                static_cast<std::uint64_t>(plan.ring) * plan.slot_bytes, IBV_ACCESS_REMOTE_WRITE};
    const auto fresh_key = [this] { return (window_->rkey & ~0xffu) | ((++binds_ * 7) & 0xff); };
    if (!back_.has_room(3)) return false;
    if (dice_.percent(30)) {  // once more, for nothing
      const std::uint32_t key = fresh_key();
      back_.post_bind(window_, key, what);
      back_.post_invalidation(key);
    }
    window_key_ = fresh_key();
    return back_.post_bind(window_, window_key_, what);
  }
  if (binds_told_ == binds_ || back_.bound() < binds_) return false;
  Message message{};
  message.word = Word::kWindow;
  message.epoch = wiring_.epoch;
  message.values[0] = window_key_;
  wiring_.control->say(message);
  binds_told_ = binds_;
  return true;
}

// Of an unreliable transport messages say themselves which they are.
std::uint64_t Receiver::number_of(const ibv_wc& wc, const std::uint8_t* data) {
  const DirectionPlan& plan = wiring_.in();
  if (wiring_.reliable()) return next_message_;
  const std::uint64_t said = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM ? (ntohl(wc.imm_data) ^ plan.key) & 0xffffffff
                                                                    : sequence_in(data, plan.key);
  if (said >= plan.operations) {
    ledger().fault(Fault::kCorrupted, "%s: a message says that it is %lx", wiring_.name(), said);
  } else if (said < next_message_) {
    ledger().fault(Fault::kDoubled, "%s: message %lu came when %lu was the next", wiring_.name(), said,
                   next_message_);
  } else {
    while (next_message_ < said) {
      ledger().count(Count::kDropped);
      ++messages_;
      next_message_ = skip(next_message_ + 1, is_message);
    }
  }
  return next_message_;
}

void Receiver::received(const ibv_wc& wc) {
  const DirectionPlan& plan = wiring_.in();
  std::uint32_t place;
  Receives* queue = queues_.back();
  for (Receives* candidate : queues_)
    if (candidate->owns(wc.wr_id)) queue = candidate;
  const std::uint8_t* data = queue->take(wc.wr_id, &place);
  if (data == nullptr) return;
  if (flushing_ && wc.status == IBV_WC_WR_FLUSH_ERR) {
    ledger().count(Count::kFlushed);
    return;
  }
  if (wc.status != IBV_WC_SUCCESS) {
    ledger().fault(Fault::kCompletion, "%s: receive %lx: %s (vendor error %u)", wiring_.name(), wc.wr_id,
                   ibv_wc_status_str(wc.status), wc.vendor_err);
    return;
  }
  if (wiring_.plan.transport == Transport::kUd) {
    check_datagram(wc);
    data += kRouteHeader;
  }
  const std::uint64_t number = number_of(wc, data);
  if (number >= plan.operations) {
    ledger().fault(Fault::kDoubled, "%s: a message came behind the last", wiring_.name());
    return;
  }
  const Operation op = operation(number);
  check_message(wc, op, data);
  queue->check_rest(place, op.kind == Kind::kWriteImm ? 0 : wc.byte_len);
  queue->free(place);
  consume_ring(op.kind == Kind::kWriteImm ? number + 1 : number);
  if (op.kind == Kind::kSendInvalidate) window_key_ = 0;
  ++messages_;
  next_message_ = skip(number + 1, is_message);
  moved_at_ = ticks_;
}

void Receiver::check_datagram(const ibv_wc& wc) const {
  const bool global = wiring_.plan.by_gid || wiring_.adapter->always_global();
  if (wc.src_qp != wiring_.peer.sending || (!wiring_.adapter->always_global() && wc.slid != wiring_.peer.lid) ||
      ((wc.wc_flags & IBV_WC_GRH) != 0) != global)
    ledger().fault(Fault::kCompletion, "%s: a datagram of %u:%u, flags %x, where %u:%u sends", wiring_.name(),
                   wc.slid, wc.src_qp, wc.wc_flags, wiring_.peer.lid, wiring_.peer.sending);
}

void Receiver::check_message(const ibv_wc& wc, const Operation& op, const std::uint8_t* data) {
  const DirectionPlan& plan = wiring_.in();
  const std::uint32_t header = wiring_.plan.transport == Transport::kUd ? kRouteHeader : 0;
  const bool write = op.kind == Kind::kWriteImm, with_immediate = write || op.kind == Kind::kSendImm;
  const bool invalidates = op.kind == Kind::kSendInvalidate;
  // Another message of the flow than the next, whatever that is.
  const std::uint64_t says =
      wc.opcode == IBV_WC_RECV && wc.byte_len >= header + 16 ? sequence_in(data, plan.key) : kFresh;
  if (says < plan.operations && says != next_message_) {
    ledger().fault(says < next_message_ ? Fault::kDoubled : Fault::kLost,
                   "%s: message %lu came where %lu is the next", wiring_.name(), says, next_message_);
    return;
  }
  if (!write) {
    if (const auto wrong = first_difference(data, 0, std::min(op.bytes, plan.slot_bytes), plan.key, next_message_)) {
      const std::uint64_t said = op.bytes >= 8 ? sequence_in(data, plan.key) : kFresh;
      const Fault fault = said == next_message_ || said >= plan.operations ? Fault::kCorrupted
                          : said < next_message_                           ? Fault::kDoubled
                                                                           : Fault::kLost;
      ledger().fault(fault, "%s: message %lu of %u bytes is wrong at byte %lu; it says it is %ld", wiring_.name(),
                     next_message_, op.bytes, *wrong, static_cast<long>(said));
    }
  }
  if (wc.opcode != (write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV) || wc.byte_len != op.bytes + header)
    ledger().fault(Fault::kCompletion, "%s: message %lu (%s, %u bytes): opcode %d, %u bytes", wiring_.name(),
                   next_message_, storm::name_of(op.kind), op.bytes, wc.opcode, wc.byte_len);
  if (((wc.wc_flags & IBV_WC_WITH_IMM) != 0) != with_immediate ||
      (with_immediate && ntohl(wc.imm_data) != immediate(plan, next_message_)))
    ledger().fault(Fault::kCompletion, "%s: message %lu (%s): flags %x, immediate data %x", wiring_.name(),
                   next_message_, storm::name_of(op.kind), wc.wc_flags, ntohl(wc.imm_data));
  if (((wc.wc_flags & IBV_WC_WITH_INV) != 0) != invalidates || (invalidates && wc.invalidated_rkey != window_key_))
    ledger().fault(Fault::kCompletion, "%s: message %lu (%s): flags %x, key %x, where %x is the window's",
                   wiring_.name(), next_message_, storm::name_of(op.kind), wc.wc_flags, wc.invalidated_rkey,
                   window_key_);
}

void Receiver::sender_at(std::uint64_t n, bool for_good) {
  if (sender_at_ != n) moved_at_ = ticks_;
  sender_at_ = n;
  if (wiring_.reliable() || ticks_ < moved_at_ + kLongestAway) return;
  // What has not come now does not.
  consume_ring(n);
  for (; next_message_ < n; next_message_ = skip(next_message_ + 1, is_message)) {
    ledger().count(Count::kDropped);
    ++messages_;
  }
  if (!for_good) moved_at_ = ticks_;
}

bool Receiver::all_received() const {
  return next_message_ == wiring_.in().operations && next_write_ == wiring_.in().operations;
}

std::string Receiver::describe() const {
  const DirectionPlan& plan = wiring_.in();
  char text[400];
  std::snprintf(
      text, sizeof(text),
      "waits for message %lu and write %lu of %u, manner %d%s, %u receives posted, %lu messages, %lu writes, "
      "%lu released, %zu sealed, window bound %lu",
      next_message_, next_write_, plan.operations, static_cast<int>(plan.manner),
      plan.shared_queue ? " (shared)" : "", outstanding(), messages_, consumed_, released_, sealed_.size(), binds_);
  return text;
}

}  // namespace storm
