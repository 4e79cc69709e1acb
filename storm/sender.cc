#include "storm/sender.h"

#include <algorithm>
#include <cstring>

#include "examples/extended_verbs/extended_verbs.h"
#include "storm/opcodes.h"
#include "storm/payload.h"
#include "storm/sabotage.h"

namespace storm {
namespace {

constexpr std::uint32_t kMostSendPieces = 4;

// A message that says who it is and that nobody waits for.
bool is_plain(const Operation& op) { return op.kind == Kind::kSend && !op.signaled && op.bytes >= 16; }

}  // namespace

Sender::Sender(Wiring& wiring, SharedAdditions& shared)
    : wiring_(wiring), shared_(shared), dice_(key_of(wiring.out().key, 11)) {}

std::uint8_t* Sender::at(std::uint32_t place) const {
  return wiring_.memory + wiring_.mine.outgoing + static_cast<std::size_t>(place) * wiring_.out().slot_bytes;
}

std::uint64_t Sender::swapped() const { return swaps_ == 0 ? 0 : mix(swap_key(wiring_.out().key) + swaps_); }

bool Sender::may_post(const Operation& op) const {
  const DirectionPlan& plan = wiring_.out();
  if (!has_room()) return false;
  const bool to_ring = is_to_ring(op.kind), invalidates = op.kind == Kind::kSendInvalidate;
  if (to_ring && plan.manner != Manner::kPermit && ring_writes_ >= credits_.released + plan.ring &&
      !saboteur().is(Sabotage::kEarly))
    return false;
  if (is_message(op.kind) && plan.manner == Manner::kPaced && messages_ >= credits_.receives) return false;
  return !plan.windowed || !(to_ring || invalidates) || window_open_;
}

void Sender::post(ibv_send_wr* chain) {
  ibv_send_wr* bad = nullptr;
  if (wiring_.builder != nullptr)
    STORM_ZERO(extended_post(wiring_.builder, chain));
  else
    STORM_ZERO(ibv_post_send(wiring_.sending, chain, &bad));
  ledger().raise_to(Count::kDeepest, log_.size());
}

// Sabotage: operation next_ is not posted, or a write is posted once more.
bool Sender::skips(const Operation& op) {
  if (!wiring_.reliable() || !is_plain(op) || next_ + 1 == wiring_.out().operations ||
      !is_plain(operation_at(wiring_.out(), wiring_.plan.transport, next_ + 1)) ||
      !saboteur().strikes(Sabotage::kLost))
    return false;
  ++next_;
  ++messages_;
  return true;
}

bool Sender::step() {
  const DirectionPlan& plan = wiring_.out();
  if (all_posted() || dice_.below(plan.laziness) != 0) return false;
  stopped_ |= saboteur().strikes(Sabotage::kHung) || saboteur().goes_on_with(Sabotage::kStuck);
  if (stopped_) return false;
  look_at_credits();
  if (saboteur().is(Sabotage::kReplayed) && !log_.empty()) post_again(log_.front());
  const std::uint32_t most = dice_.between(1, plan.chain);
  std::vector<ibv_send_wr> chain(most);
  std::vector<ibv_sge> pieces(static_cast<std::size_t>(most) * kMostSendPieces);
  std::uint32_t n = 0;
  while (n < most && !all_posted()) {
    const Operation op = operation_at(plan, wiring_.plan.transport, next_);
    if (!may_post(op)) break;
    if (skips(op)) continue;
    prepare(log(op), chain[n], &pieces[static_cast<std::size_t>(n) * kMostSendPieces]);
    ++next_;
    if (n > 0) chain[n - 1].next = &chain[n];
    ++n;
  }
  if (n == 0) return false;
  post(chain.data());
  if (n == 1 && is_plain(log_.back().op) && has_room() && saboteur().strikes(Sabotage::kDoubled)) {
    ++unlogged_;
    post(chain.data());
  }
  // What was inline is the program's again.
  for (std::size_t i = log_.size() - n; i < log_.size(); ++i)
    if (log_[i].op.inlined) std::memset(at(log_[i].place), 0x99, plan.slot_bytes);
  return true;
}

void Sender::look_at_credits() {
  if (!wiring_.reliable()) return;
  const auto* there = reinterpret_cast<const Credits*>(wiring_.memory + wiring_.mine.credits);
  credited(
      {__atomic_load_n(&there->released, __ATOMIC_ACQUIRE), __atomic_load_n(&there->receives, __ATOMIC_ACQUIRE)});
}

void Sender::credited(const Credits& credits) {
  if (credits.released < credits_.released || credits.receives < credits_.receives)
    ledger().fault(Fault::kDoubled,
                   "%s: credits of %lu places and %lu receives were followed by older ones: %lu, %lu", wiring_.name(),
                   credits_.released, credits_.receives, credits.released, credits.receives);
  if (credits.released > ring_writes_)
    ledger().fault(Fault::kCorrupted, "%s: %lu places are said to be free again, of %lu", wiring_.name(),
                   credits.released, ring_writes_);
  credits_ = credits;
}

void Sender::window_bound(std::uint32_t key) {
  window_open_ = true;
  window_key_ = key;
}

void Sender::completed(const ibv_wc& wc) {
  if (wc.status != IBV_WC_SUCCESS) {
    ledger().fault(Fault::kCompletion, "%s: request %lx: %s (vendor error %u)", wiring_.name(), wc.wr_id,
                   ibv_wc_status_str(wc.status), wc.vendor_err);
    return;
  }
  if (signaled_ == 0) {
    ledger().fault(Fault::kCompletion, "%s: request %lx completes, and none is due", wiring_.name(), wc.wr_id);
    return;
  }
  bool last = false;
  while (!last) {
    const Entry entry = log_.front();
    log_.pop_front();
    last = entry.op.signaled;
    if (last && (wc.wr_id != entry.id || wc.opcode != completion_of(entry.op.kind)))
      ledger().fault(Fault::kCompletion, "%s: request %lx, opcode %d completes where %lx, %s is due", wiring_.name(),
                     wc.wr_id, wc.opcode, entry.id, storm::name_of(entry.op.kind));
    retire(entry);
  }
  --signaled_;
}

void Sender::retire(const Entry& entry) {
  ledger().did(entry.op.kind);
  ledger().count(Count::kBytes, entry.op.bytes);
  own_binds_ += entry.op.kind == Kind::kBind;
  if (entry.op.kind == Kind::kRead || entry.op.kind == Kind::kMirrorRead) check_read(entry);
  if (answers(entry.op.kind) && opcode_of(entry.op.kind) != IBV_WR_RDMA_READ) check_atomic(entry);
}

void Sender::check_read(const Entry& entry) {
  const DirectionPlan& plan = wiring_.out();
  const bool mirror = entry.op.kind == Kind::kMirrorRead;
  const std::uint64_t from = mirror ? 0 : entry.op.detail % Layout::kLibraryBytes;
  const auto wrong =
      first_difference(at(entry.place), from, from + entry.op.bytes,
                       mirror ? mirror_key(plan.key) : library_key(plan.key), mirror ? entry.expected : 0);
  if (wrong)
    ledger().fault(Fault::kCorrupted, "%s: operation %lu read %u bytes of %s, and byte %lu is wrong", wiring_.name(),
                   entry.number, entry.op.bytes, mirror ? "what it has written" : "the library", *wrong);
}

void Sender::check_atomic(const Entry& entry) {
  std::uint64_t found;
  std::memcpy(&found, at(entry.place), 8);
  if (entry.op.kind == Kind::kSharedAdd) {
    const std::size_t counter = entry.op.detail % kSharedCounters;
    if (found < next_shared_[counter])
      ledger().fault(Fault::kReordered, "%s: operation %lu found %lx in a shared counter, after %lx", wiring_.name(),
                     entry.number, found, next_shared_[counter]);
    next_shared_[counter] = found + 1;
    ++shared_.count[counter];
    shared_.hash[counter] += mix(found);
  } else if (found != entry.expected) {
    const bool add = entry.op.kind == Kind::kAdd;
    ledger().fault(found == 0xccccccccccccccccu ? Fault::kLost : Fault::kDoubled,
                   "%s: operation %lu, %s, found %lx and should have found %lx", wiring_.name(), entry.number,
                   add ? "fetch-and-add" : "compare-and-swap", found, entry.expected);
  }
}

std::string Sender::describe() const {
  const DirectionPlan& plan = wiring_.out();
  char text[400];
  std::snprintf(text, sizeof(text),
                "sends %lu of %u, %zu outstanding (%u signaled, depth %u), messages %lu, writes %lu of ring %u, told "
                "%lu released and %lu receives, window %s",
                next_, plan.operations, log_.size(), signaled_, plan.send_depth, messages_, ring_writes_, plan.ring,
                credits_.released, credits_.receives, window_open_ ? "open" : "closed");
  return text;
}

}  // namespace storm
