// All shadow objects of the process, and the backend they stand on.
#pragma once

#include <memory>
#include <vector>

#include "shadowib/objects/address_handle.h"
#include "shadowib/objects/backend.h"
#include "shadowib/objects/completion.h"
#include "shadowib/objects/context.h"
#include "shadowib/objects/memory.h"
#include "shadowib/objects/queue_pair.h"

namespace shadowib {

template <typename T>
using ObjectList = boost::intrusive::list<T, boost::intrusive::member_hook<T, ListHook, &T::hook>,
                                          boost::intrusive::constant_time_size<false>>;

// Guarded by `lock` (set-up calls take it; posts and polls never do). Lives in the image.
struct Registry {
  SpinLock lock;
  std::vector<ShadowDevice*> devices;
  ObjectList<ShadowContext> contexts;
  ObjectList<ShadowPd> pds;
  ObjectList<ShadowMr> mrs;
  ObjectList<ShadowMw> mws;
  ObjectList<ShadowChannel> channels;
  ObjectList<ShadowCq> cqs;
  ObjectList<ShadowSrq> srqs;
  ObjectList<ShadowQp> qps;
  ObjectList<ShadowQp> opened;  // further handles of XRC targets
  ObjectList<ShadowXrcd> xrcds;
  ObjectList<ShadowAh> ahs;
  ObjectList<ShadowAh> destroyed_ahs;  // by the program; requests that have not run may name them
  std::uint32_t next_pd_id = 1;
  // Virtual ids that peers may still hold from before a restart: never given to anything new.
  std::vector<std::uint32_t> reserved_keys;      // sorted
  std::vector<std::uint32_t> reserved_blocks;    // of windows; sorted
  std::vector<std::uint32_t> reserved_qp_nums;   // sorted
  std::vector<std::uint32_t> reserved_srq_nums;  // sorted

  // The program has destroyed the handle, whose real one is gone. The caller holds `lock` in these.
  void note_destroyed(ShadowAh& ah);
  // Deletes those of destroyed_ahs that no request names any more. Until then their domains are in use.
  void sweep_address_handles();

  // Virtual keys for new objects: the real value unless that is taken or reserved, then late ones. Numbers of queue
  // pairs are chosen among all members (cr/announce.h).
  VirtualKey choose_key(RealKey real, bool remote);
  VirtualKey choose_window_key(RealKey real);  // with the same lowest byte

  // Makes a queue pair known by its real number to those whose completions name it by that alone, and unknown. An XRC
  // target's are found in any context of its device.
  void number(ShadowQp& qp);
  void unnumber(const ShadowQp& qp, RealQpNum number);
  void number_targets(ShadowContext& context);  // one that is new

 private:
  std::size_t destroyed_since_sweep_ = 0, looked_at_in_sweep_ = 0;
};

Registry& registry();

// Keys made after a restart are the real ones, or else of these. Peers are told of each of these keys in use, also of
// a key that is the real one. So no key is taken for a real one. That one may belong to somebody else when its owner
// is gone and its row has been taken back.
inline constexpr std::uint32_t kLateKeys = 0xe0000000, kLateKeyMask = 0xf0000000;
inline constexpr bool is_late_key(std::uint32_t key) { return (key & kLateKeyMask) == kLateKeys; }

// Likewise numbers of queue pairs and XRC queues. Several processes of a job may share an adapter, and so each of
// these is claimed in the exchange.
inline constexpr std::uint32_t kLateNumbers = 0xe00000, kLateNumberMask = 0xf00000;
inline constexpr bool is_late_number(std::uint32_t number) { return (number & kLateNumberMask) == kLateNumbers; }

// In a forked child inherited objects are foreign: every call on them fails, nothing reaches the parent's backend.
void disown_objects_in_child();

}  // namespace shadowib
