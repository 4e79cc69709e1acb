#include "shadowib/objects/memory_window.h"

#include <algorithm>

#include "shadowib/base/guard.h"
#include "shadowib/objects/backend.h"
#include "shadowib/objects/queue_pair.h"

namespace shadowib {
namespace {

// Successes are a beginning of the queue, so the backend's count says it of each. Without one the slot has to.
bool has_run(ShadowQp& qp, std::uint64_t sequence) {
  if (g_backend.sq_executed != nullptr)
    return qp.executed_base + g_backend.sq_executed(qp.real) - sequence - 1 < UINT64_MAX / 2;
  const SendSlot& slot = qp.send.slot(sequence);
  return slot.status.load(std::memory_order_acquire) == IBV_WC_SUCCESS;
}

// In error nothing runs that has not.
bool is_in_error(ShadowQp& qp) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  return g_backend.query_qp(qp.real, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR;
}

// Takes those for which `is_over` is true out of the list; it is asked once for each, in order.
template <typename Predicate>
void drop_changes(ShadowMw& mw, Predicate is_over) {
  std::erase_if(mw.changes, [&](const WindowChange& change) {
    if (!is_over(change)) return false;
    if (change.info.mr != nullptr) --ShadowMr::of(change.info.mr)->windows;
    return true;
  });
}

// The request's window, by key if it names none.
ShadowMw* named(const ibv_send_wr& wr) {
  return wr.opcode == IBV_WR_BIND_MW && wr.bind_mw.mw != nullptr ? ShadowMw::of(wr.bind_mw.mw) : nullptr;
}

}  // namespace

ShadowMw* WindowTable::find(VirtualKey key) const {
  auto it = by_virtual_.find(window_block(key.value));
  return it != by_virtual_.end() ? it->second : nullptr;
}

void WindowTable::insert(ShadowMw& mw) {
  SpinGuard guard(lock_);
  mw.real_key = {mw.real->rkey};
  by_virtual_[window_block(mw.mw.rkey)] = &mw;
  by_real_[window_block(mw.real->rkey)] = &mw;
}

void WindowTable::erase(ShadowMw& mw, RealKey key) {
  SpinGuard guard(lock_);
  unbind(mw);
  by_virtual_.erase(window_block(mw.mw.rkey));
  by_real_.erase(window_block(key.value));
}

void WindowTable::clear() {
  SpinGuard guard(lock_);
  by_virtual_.clear();
  by_real_.clear();
}

// The key that the device's window will have when this bind runs.
RealKey WindowTable::real_key_before(const ShadowMw& mw, const ShadowQp& qp, std::uint64_t sequence) {
  RealKey key = mw.real_key;
  for (const WindowChange& change : mw.changes) {
    if (change.qp == &qp && change.sequence == sequence) break;
    if (change.binds) key = {window_key(mw.real->rkey, change.key.value)};
  }
  return key;
}

// What names no window of ours is to fail below as well: a key that stands for nothing.
void WindowTable::turn(const ShadowQp& qp, std::uint64_t sequence, ibv_send_wr* wr) {
  if (wr->opcode == IBV_WR_LOCAL_INV) {
    SpinGuard guard(lock_);
    const ShadowMw* mw = find({wr->invalidate_rkey});
    wr->invalidate_rkey = mw != nullptr ? window_key(mw->real->rkey, wr->invalidate_rkey) : 0;
    return;
  }
  const ShadowMw* mw = named(*wr);
  if (mw == nullptr) return;
  {
    SpinGuard guard(lock_);
    mw->real->rkey = real_key_before(*mw, qp, sequence).value;
  }
  const bool its = window_block(wr->bind_mw.rkey) == window_block(mw->mw.rkey);
  wr->bind_mw.rkey = its ? window_key(mw->real->rkey, wr->bind_mw.rkey) : ~mw->real->rkey;
  wr->bind_mw.mw = mw->real;
  ibv_mr*& mr = wr->bind_mw.bind_info.mr;
  if (mr != nullptr) mr = ShadowMr::of(mr)->real;
}

void WindowTable::note_change(ShadowQp& qp, std::uint64_t sequence, const ibv_send_wr& wr) {
  SpinGuard guard(lock_);
  const bool binds = wr.opcode == IBV_WR_BIND_MW;
  ShadowMw* mw = binds ? named(wr) : find({wr.invalidate_rkey});
  if (mw == nullptr) return;
  apply_what_ran(*mw);
  WindowChange change{&qp, sequence, {binds ? wr.bind_mw.rkey : wr.invalidate_rkey}, binds, {}};
  if (binds) change.info = wr.bind_mw.bind_info;
  if (change.info.mr != nullptr) ++ShadowMr::of(change.info.mr)->windows;
  mw->changes.push_back(change);
}

void WindowTable::forget_change(ShadowQp& qp, std::uint64_t sequence, const ibv_send_wr& wr) {
  SpinGuard guard(lock_);
  ShadowMw* mw = wr.opcode == IBV_WR_BIND_MW ? named(wr) : find({wr.invalidate_rkey});
  if (mw == nullptr) return;
  drop_changes(*mw, [&](const WindowChange& c) { return c.qp == &qp && c.sequence == sequence; });
}

bool WindowTable::is_window(RealKey key) {
  SpinGuard guard(lock_);
  return by_real_.contains(window_block(key.value));
}

VirtualKey WindowTable::note_invalidated(RealKey real) {
  SpinGuard guard(lock_);
  auto it = by_real_.find(window_block(real.value));
  if (it == by_real_.end()) return {real.value};  // deallocated meanwhile
  ShadowMw& mw = *it->second;
  const VirtualKey key{window_key(mw.mw.rkey, real.value)};
  apply_what_ran(mw);
  if (mw.key == key && guarded(Guard::kForgetInvalidated)) unbind(mw);
  return key;
}

void WindowTable::unbind(ShadowMw& mw) {
  if (mw.bound.mr != nullptr) --ShadowMr::of(mw.bound.mr)->windows;
  mw.bound = {};
  mw.bound_by = nullptr;
}

void WindowTable::bind(ShadowMw& mw, const WindowChange& change) {
  unbind(mw);
  mw.real_key = {window_key(mw.real->rkey, change.key.value)};
  if (change.info.mr == nullptr || change.info.length == 0) return;
  ++ShadowMr::of(change.info.mr)->windows;
  mw.bound = change.info;
  mw.key = change.key;
  if (mw.mw.type == IBV_MW_TYPE_2) mw.bound_by = change.qp;
}

// Those of one queue run in their order; between queues the program sees to one, by waiting for the first.
void WindowTable::apply_what_ran(ShadowMw& mw) {
  drop_changes(mw, [&](const WindowChange& change) {
    if (!has_run(*change.qp, change.sequence)) return false;
    if (change.binds)
      bind(mw, change);
    else if (mw.key == change.key)
      unbind(mw);
    return true;
  });
}

void WindowTable::settle(ShadowMw& mw) {
  SpinGuard guard(lock_);
  apply_what_ran(mw);
}

void WindowTable::drop_flushed(ShadowMw& mw) {
  apply_what_ran(mw);
  drop_changes(mw, [](const WindowChange& change) { return is_in_error(*change.qp); });
}

bool WindowTable::is_changing(ShadowMw& mw) {
  SpinGuard guard(lock_);
  drop_flushed(mw);
  return !mw.changes.empty();
}

bool WindowTable::has_changes_by(const ShadowQp& qp) {
  SpinGuard guard(lock_);
  return std::any_of(by_virtual_.begin(), by_virtual_.end(), [&](const auto& entry) {
    const auto& changes = entry.second->changes;
    return std::any_of(changes.begin(), changes.end(), [&](const WindowChange& c) { return c.qp == &qp; });
  });
}

void WindowTable::leave(const ShadowQp& qp) {
  {
    SpinGuard guard(lock_);
    for (auto& [block, mw] : by_virtual_) apply_what_ran(*mw);
  }
  abandon(qp);
}

void WindowTable::abandon(const ShadowQp& qp) {
  SpinGuard guard(lock_);
  for (auto& [block, mw] : by_virtual_) {
    drop_changes(*mw, [&](const WindowChange& change) { return change.qp == &qp; });
    if (mw->bound_by == &qp) unbind(*mw);
  }
}

bool WindowTable::uses(ShadowMr& mr) {
  SpinGuard guard(lock_);
  if (mr.windows == 0) return false;
  for (auto& [block, mw] : by_virtual_) drop_flushed(*mw);
  return mr.windows != 0;
}

}  // namespace shadowib
