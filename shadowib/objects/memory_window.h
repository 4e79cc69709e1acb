// Shadow memory windows, and what is known of their binds.
//
// Requests in send queues and peers change the binding of a window. A restart binds again what was bound as of the
// frontier, so each change is kept from its post until it is known to have run. Virtual and real keys of a window
// differ in their upper 24 bits only, which are the window's for life. So peers learn them once, and know each bind's
// new key before it is posted (H15).
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <boost/intrusive/list.hpp>
#include <unordered_map>
#include <vector>

#include "shadowib/base/lock.h"
#include "shadowib/objects/ids.h"

namespace shadowib {

struct ShadowMr;
struct ShadowQp;
using ListHook = boost::intrusive::list_member_hook<>;

constexpr std::uint32_t window_block(std::uint32_t key) { return key >> 8; }
constexpr std::uint32_t window_key(std::uint32_t of_block, std::uint32_t with_tag) {
  return (of_block & ~0xffu) | (with_tag & 0xffu);
}

// A posted bind or invalidation that is not known to have run.
struct WindowChange {
  ShadowQp* qp;
  std::uint64_t sequence;  // in its send queue
  VirtualKey key;
  bool binds;
  ibv_mw_bind_info info;  // the program's
};

struct ShadowMw {
  ibv_mw mw;  // first: the program's. rkey: type 1: of the bind posted last
  ListHook hook;
  ibv_mw* real = nullptr;
  RealKey real_key;  // as the device has it by the binds that have run: some look for it in real->rkey
  // As bound by what has run; info.mr == nullptr: not bound.
  ibv_mw_bind_info bound{};
  VirtualKey key;                     // of it
  ShadowQp* bound_by = nullptr;       // type 2: its queue pair
  std::vector<WindowChange> changes;  // in the order they were posted
  static ShadowMw* of(ibv_mw* mw) { return reinterpret_cast<ShadowMw*>(mw); }
};

inline bool changes_window(ibv_wr_opcode opcode) { return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV; }

// A context's windows by key. Thread-safe; its lock is taken with a send queue's or the registry's held, and nothing
// but the backend's inside.
class WindowTable {
 public:
  // Whether there was ever one: then requests and completions are looked at one by one.
  bool used() const { return used_.load(std::memory_order_relaxed); }
  void note_used() { used_.store(true); }

  void insert(ShadowMw& mw);
  void erase(ShadowMw& mw, RealKey key);
  // Before real windows are made again.
  void clear();

  // Turns the keys of a bind or an invalidation on this context, in a copy of the program's request `sequence`. It
  // has to be posted before the next bind of the same window is turned.
  void turn(const ShadowQp& qp, std::uint64_t sequence, ibv_send_wr* wr);
  // `wr` is about to be posted as `sequence`, or was not taken after all.
  void note_change(ShadowQp& qp, std::uint64_t sequence, const ibv_send_wr& wr);
  void forget_change(ShadowQp& qp, std::uint64_t sequence, const ibv_send_wr& wr);
  bool is_window(RealKey key);
  // A peer has invalidated a window: its key as the program knows it.
  VirtualKey note_invalidated(RealKey real);

  // Changes that have run by now are no changes any more.
  void settle(ShadowMw& mw);
  // Whether a bind or an invalidation of it may still run.
  bool is_changing(ShadowMw& mw);
  bool has_changes_by(const ShadowQp& qp);
  // Changes by this queue pair will not run; windows of type 2 that it bound are bound no more. leave(): what has
  // run by now is taken into account before.
  void leave(const ShadowQp& qp);
  void abandon(const ShadowQp& qp);
  // Whether a window is or may yet be bound to it.
  bool uses(ShadowMr& mr);

 private:
  ShadowMw* find(VirtualKey key) const SHADOWIB_REQUIRES(lock_);
  static void apply_what_ran(ShadowMw& mw);
  static void drop_flushed(ShadowMw& mw);
  static void unbind(ShadowMw& mw);
  static RealKey real_key_before(const ShadowMw& mw, const ShadowQp& qp, std::uint64_t sequence);
  static void bind(ShadowMw& mw, const WindowChange& change);

  std::atomic<bool> used_{false};
  SpinLock lock_;
  std::unordered_map<std::uint32_t, ShadowMw*> by_virtual_ SHADOWIB_GUARDED_BY(lock_);  // by block
  std::unordered_map<std::uint32_t, ShadowMw*> by_real_ SHADOWIB_GUARDED_BY(lock_);
};

}  // namespace shadowib
