// How a sender's requests are made: those of the plan, and its own.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "storm/opcodes.h"
#include "storm/payload.h"
#include "storm/sabotage.h"
#include "storm/sender.h"

namespace storm {

Sender::Entry& Sender::log(const Operation& op) {
  const DirectionPlan& plan = wiring_.out();
  log_.push_back({op, next_, 0, 0, static_cast<std::uint32_t>(position_ % plan.send_depth)});
  Entry& entry = log_.back();
  // Receives have the upper half of their ids zero but for the salt and this bit.
  entry.id = plan.key << 32 | 0x80000000u | (plan.repeating_ids ? 7 : position_ & 0x7fffffff);
  entry.op.signaled |= since_signaled_ + 1 >= std::max(1u, plan.send_depth / 2);
  since_signaled_ = entry.op.signaled ? 0 : since_signaled_ + 1;
  signaled_ += entry.op.signaled;
  ++position_;
  return entry;
}

// One request's elements over its place, from alternating regions.
void Sender::cut(const Entry& entry, ibv_send_wr& wr, ibv_sge* pieces) {
  const std::uint32_t bytes = entry.op.bytes, count = std::min<std::uint32_t>(entry.op.pieces, bytes);
  std::uint32_t from = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t left = bytes - from, spare = left - (count - i);
    const std::uint32_t size = i + 1 == count ? left : 1 + dice_.below(spare + 1);
    pieces[i] = {reinterpret_cast<std::uintptr_t>(at(entry.place)) + from, size, wiring_.lkeys[(position_ + i) % 2]};
    from += size;
  }
  wr.sg_list = pieces;
  wr.num_sge = static_cast<int>(count);
}

void Sender::prepare_data(Entry& entry, ibv_send_wr& wr) {
  const DirectionPlan& plan = wiring_.out();
  const Operation& op = entry.op;
  std::uint8_t* data = at(entry.place);
  fill(data, op.bytes, plan.key, entry.number);
  if (op.bytes >= 24 && saboteur().strikes(Sabotage::kCorrupted)) data[op.bytes / 2] ^= 0x10;
  wr.imm_data = htonl(immediate(plan, entry.number));
  if (op.kind == Kind::kSendInvalidate) {
    wr.invalidate_rkey = window_key_;
    window_open_ = false;
  }
  if (is_to_ring(op.kind)) {  // at the end of its place, whose last word tells that it is there
    const std::uint64_t landed = landed_word(plan.key, entry.number);
    std::memcpy(data + op.bytes - 8, &landed, 8);
    const std::uint64_t place = plan.manner == Manner::kPermit ? 0 : ring_writes_ % plan.ring;
    wr.wr.rdma.remote_addr = wiring_.peer.memory + wiring_.theirs.ring + (place + 1) * plan.slot_bytes - op.bytes;
    wr.wr.rdma.rkey = plan.windowed ? window_key_ : wiring_.peer.rkey;
    entry.remote = wr.wr.rdma.remote_addr;
    entry.rkey = wr.wr.rdma.rkey;
    ++ring_writes_;
  }
  if (is_message(op.kind)) ++messages_;
}

void Sender::prepare_atomic(Entry& entry, ibv_send_wr& wr) {
  const Operation& op = entry.op;
  wr.wr.atomic.rkey = wiring_.peer.rkey;
  if (op.kind == Kind::kAdd) {
    entry.expected = counter_;
    counter_ += op.detail | 1;
    wr.wr.atomic.remote_addr = wiring_.peer.memory + wiring_.theirs.counter;
    wr.wr.atomic.compare_add = op.detail | 1;
  } else if (op.kind == Kind::kSharedAdd) {
    wr.wr.atomic.remote_addr = wiring_.peer.counters + 8 * (op.detail % kSharedCounters);
    wr.wr.atomic.compare_add = saboteur().strikes(Sabotage::kCounter) ? 2 : 1;
    wr.wr.atomic.rkey = wiring_.peer.counters_rkey;
  } else {
    entry.expected = swapped();
    const bool fits = op.detail % 5 != 0;
    wr.wr.atomic.remote_addr = wiring_.peer.memory + wiring_.theirs.swapped;
    wr.wr.atomic.compare_add = fits ? entry.expected : ~entry.expected;
    swaps_ += fits;
    wr.wr.atomic.swap = fits ? swapped() : op.detail;
  }
}

// Of a plan's operation: what leaves is in its place, what comes back is not there yet.
void Sender::prepare(Entry& entry, ibv_send_wr& wr, ibv_sge* pieces) {
  const DirectionPlan& plan = wiring_.out();
  Operation& op = entry.op;
  wr = {};
  Mirror& mirror = mirrors_[op.detail % Layout::kMirrors];
  const std::uint64_t mirror_at = wiring_.theirs.mirrors + op.detail % Layout::kMirrors * plan.slot_bytes;
  if (answers(op.kind)) std::memset(at(entry.place), 0xcc, plan.slot_bytes);
  switch (op.kind) {
    case Kind::kMirrorWrite:
      fill(at(entry.place), op.bytes, mirror_key(plan.key), entry.number);
      mirror = {entry.number, op.bytes};
      wr.wr.rdma.remote_addr = wiring_.peer.memory + mirror_at;
      wr.wr.rdma.rkey = wiring_.peer.rkey;
      break;
    case Kind::kMirrorRead:
      op.bytes = std::min(op.bytes, mirror.bytes);
      entry.expected = mirror.number;
      wr.wr.rdma.remote_addr = wiring_.peer.memory + mirror_at;
      wr.wr.rdma.rkey = wiring_.peer.rkey;
      break;
    case Kind::kRead:
      wr.wr.rdma.remote_addr = wiring_.peer.memory + wiring_.theirs.library + op.detail % Layout::kLibraryBytes;
      wr.wr.rdma.rkey = wiring_.peer.rkey;
      break;
    case Kind::kAdd:
    case Kind::kSharedAdd:
    case Kind::kSwap:
      prepare_atomic(entry, wr);
      break;
    default:
      prepare_data(entry, wr);
  }
  cut(entry, wr, pieces);
  wr.wr_id = entry.id;
  wr.opcode = opcode_of(op.kind);
  op.inlined &= wr.num_sge > 0 && op.bytes <= wiring_.max_inline;
  wr.send_flags = (op.signaled ? IBV_SEND_SIGNALED : 0) | (op.inlined ? IBV_SEND_INLINE : 0) |
                  (op.fenced ? IBV_SEND_FENCE : 0) | (op.solicited ? IBV_SEND_SOLICITED : 0);
  if (!op.signaled && saboteur().strikes(Sabotage::kCompletion)) wr.send_flags |= IBV_SEND_SIGNALED;
  if (wiring_.plan.transport == Transport::kXrc) wr.qp_type.xrc.remote_srqn = wiring_.peer.shared[op.queue];
  if (wiring_.plan.transport == Transport::kUd) {
    wr.wr.ud.ah = route();
    wr.wr.ud.remote_qpn = wiring_.peer.receiving;
    wr.wr.ud.remote_qkey = static_cast<std::uint32_t>(plan.key) & 0x7fffffff;
  }
}

// The way to the peer, a new one now and then.
ibv_ah* Sender::route() {
  if (!route_ || dice_.below(50) == 0) {
    // An address handle may go when the requests that name it have completed.
    if (route_ && !log_.empty() && log_.size() > 1) return route_.get();
    ibv_ah_attr attr = wiring_.adapter->route_to(wiring_.peer, wiring_.plan.by_gid);
    route_.reset();
    route_.reset(made(ibv_create_ah(wiring_.domain, &attr), "ibv_create_ah"));
    ledger().count(Count::kAddressHandles);
  }
  return route_.get();
}

void Sender::post_again(const Entry& entry) {
  if (entry.op.kind != Kind::kWrite || entry.op.inlined || !has_room()) return;
  const Entry old = entry;
  Operation op{};
  op.kind = Kind::kCredit;
  ibv_sge data{reinterpret_cast<std::uintptr_t>(at(old.place)), old.op.bytes, wiring_.lkeys[0]};
  ibv_send_wr wr{};
  wr.wr.rdma.remote_addr = old.remote;
  wr.wr.rdma.rkey = old.rkey;
  post_own(op, wr, &data);
}

void Sender::post_own(const Operation& op, ibv_send_wr& wr, ibv_sge* pieces) {
  Entry& entry = log(op);
  wr.wr_id = entry.id;
  wr.opcode = opcode_of(op.kind);
  wr.send_flags = entry.op.signaled ? IBV_SEND_SIGNALED : 0;
  wr.sg_list = pieces;
  wr.num_sge = pieces != nullptr ? 1 : 0;
  if (wiring_.plan.transport == Transport::kXrc) wr.qp_type.xrc.remote_srqn = wiring_.peer.shared[0];
  post(&wr);
}

bool Sender::post_credit(const Credits& credits) {
  if (!has_room()) return false;
  Operation op{};
  op.kind = Kind::kCredit;
  const std::uint64_t offset = wiring_.mine.credit_sources + position_ % wiring_.out().send_depth * sizeof(Credits);
  std::memcpy(wiring_.memory + offset, &credits, sizeof(credits));
  ibv_sge source{wiring_.address(offset), sizeof(credits), wiring_.lkeys[0]};
  ibv_send_wr wr{};
  wr.wr.rdma.remote_addr = wiring_.peer.memory + wiring_.theirs.credits;
  wr.wr.rdma.rkey = wiring_.peer.rkey;
  post_own(op, wr, &source);
  return true;
}

bool Sender::post_flush() {
  if (!has_room()) return false;
  Operation op{};
  op.kind = Kind::kFlush;
  op.signaled = true;
  ibv_send_wr wr{};
  wr.wr.rdma.remote_addr = wiring_.peer.memory;
  wr.wr.rdma.rkey = wiring_.peer.rkey;
  post_own(op, wr, nullptr);
  return true;
}

bool Sender::post_bind(ibv_mw* window, std::uint32_t key, const ibv_mw_bind_info& what) {
  if (!has_room()) return false;
  Operation op{};
  op.kind = Kind::kBind;
  op.signaled = true;
  ibv_send_wr wr{};
  wr.bind_mw.mw = window;
  wr.bind_mw.rkey = key;
  wr.bind_mw.bind_info = what;
  post_own(op, wr, nullptr);
  return true;
}

bool Sender::post_invalidation(std::uint32_t key) {
  if (!has_room()) return false;
  Operation op{};
  op.kind = Kind::kInvalidate;
  op.signaled = dice_.percent(50);
  ibv_send_wr wr{};
  wr.invalidate_rkey = key;
  post_own(op, wr, nullptr);
  return true;
}

}  // namespace storm
