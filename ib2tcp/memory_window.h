// Memory windows: what a peer may reach of a region, for as long as a window is bound to it.
//
// A key is kWindowKey, 23 bits that are the window's for life and 8 that each bind chooses anew. The key of an
// earlier bind names nothing. A window of type 2 (2B) is reached through the queue pair it was bound by only, which
// may also invalidate it: by a request of its own or one of its peer's.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace shadowib::ib2tcp {

class Qp;
struct Mr;
struct Send;

// Set in keys of windows, clear in keys of regions.
inline constexpr std::uint32_t kWindowKey = 1u << 31;

// Under the engine's lock.
struct Mw {
  ibv_mw verbs{};    // first
  Mr* mr = nullptr;  // what it is bound to, or nullptr; below: while bound
  Qp* qp = nullptr;  // type 2: by which queue pair
  std::uint32_t key = 0;
  std::uint64_t begin = 0, bytes = 0;  // in the region's addresses
  int access = 0;
  const ibv_pd* plain_pd = nullptr;  // as Mr's
};

// The memory that a peer's request on `qp` names by a region's or a window's key, or nullptr if it must not. As
// translate() in memory.h.
void* translate_remote(const Qp& qp, const ibv_pd* pd, std::uint32_t key, std::uint64_t address, std::uint64_t bytes,
                       int access);

// The memory of a region with windows has changed, or is as it was.
void note_plain_windows(const Mr& mr);
// Whether memory of a region or a window, by its key, is still the one that was registered.
bool is_kept(std::uint32_t key, void* memory, std::uint64_t bytes);

// Whether no window goes by this key, and a request that has been posted is to bind one to it.
bool awaits_bind(std::uint32_t key);

// 0, or the errno to refuse a bind with that can never be right.
int check_bind(const ibv_send_wr& wr);
// Puts a bind into the request, in fields that have other uses otherwise; executes it.
void record_bind(Send& send, const ibv_send_wr& wr);
ibv_wc_status bind_window(Qp& qp, const Send& send);
// Whether `key` is a bound window's that `qp` may invalidate; does it.
bool may_invalidate(const Qp& qp, std::uint32_t key);
bool invalidate_window(Qp& qp, std::uint32_t key);
// The queue pair is reset or destroyed.
void unbind_windows_of(Qp& qp);

// Slots of BackendOps.
ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type);
int dealloc_mw(ibv_mw* mw);

}  // namespace shadowib::ib2tcp
