// Regions whose addresses, as requests name them, are not those of their memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_map>

#include "shadowib/base/lock.h"
#include "shadowib/objects/ids.h"

namespace shadowib {

// Displaced regions, found by local key. Thread-safe; its lock is the innermost.
class DisplacedRegions {
 public:
  void insert(VirtualKey lkey, std::uint64_t first_address, const void* memory) {
    SpinGuard guard(lock_);
    any_.store(true, std::memory_order_relaxed);
    by_key_[lkey.value] = reinterpret_cast<std::uint64_t>(memory) - first_address;
  }
  void erase(VirtualKey lkey) {
    if (!any_.load(std::memory_order_relaxed)) return;
    SpinGuard guard(lock_);
    by_key_.erase(lkey.value);
  }
  // Where an element of a list lies.
  void* memory_of(VirtualKey lkey, std::uint64_t address) {
    if (any_.load(std::memory_order_relaxed)) {
      SpinGuard guard(lock_);
      if (auto it = by_key_.find(lkey.value); it != by_key_.end()) address += it->second;
    }
    return reinterpret_cast<void*>(address);
  }

 private:
  std::atomic<bool> any_{false};
  SpinLock lock_;
  std::unordered_map<std::uint32_t, std::uint64_t> by_key_ SHADOWIB_GUARDED_BY(lock_);  // what is added to an address
};

}  // namespace shadowib
