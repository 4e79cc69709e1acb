// Registered memory: slots that mean the same registration in all processes, since all register in the same order.
//
// One thread. A look-up is a comparison for the address asked for last, else a binary search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "libraries/bsp/pattern.h"

namespace shadowib::bsp {

// A process's memory of a registration, as others reach it.
struct RemoteMemory {
  std::uint64_t address = 0, bytes = 0;
  std::uint32_t key = 0;
};

class Registers {
 public:
  static constexpr std::uint32_t kNone = ~0u;

  explicit Registers(int processes) : processes_(processes) {}

  // Notes a registration or a removal, which count from commit() on. pop() returns false if the address has none. In
  // a job of two byte orders memory has a pattern.
  void push(const void* memory, std::size_t bytes, std::uint32_t key, void* handle, Pattern pattern = {});
  bool pop(const void* memory);

  // The registrations and removals of this superstep, in order, as others are told.
  struct Pending {
    bool is_push;
    std::uint32_t slot;  // of a pop; or kPendingBit and a place in this list
    const void* memory;
    std::size_t bytes;
    std::uint32_t key;
    void* handle;
    std::vector<RemoteMemory> remote;  // by process
    Pattern pattern;                   // of the process that has registered most
    std::size_t pattern_bytes;
  };
  static constexpr std::uint32_t kPendingBit = 1u << 31;
  const std::vector<Pending>& pending() const { return pending_; }
  // Equal in all processes that have registered alike; 0 if nothing was registered.
  std::uint64_t order() const { return order_; }
  // The next registration that process `from` tells.
  bool hear(int from, const RemoteMemory& memory);
  // The pattern of that registration. Returns false if another process has told other numbers of theirs.
  bool hear_pattern(int from, const Pattern& pattern);
  // They count now. Calls forget(handle) for each removed one.
  template <typename Forget>
  void commit(Forget&& forget) {
    for (void* handle : apply()) forget(handle);
  }

  // The slot of the newest registration of that address, or kNone.
  std::uint32_t find(const void* memory) {
    return memory == last_address_ && last_slot_ != kNone ? last_slot_ : search(memory);
  }
  const RemoteMemory& remote(std::uint32_t slot, int process) const { return slots_[slot].remote[process]; }
  std::byte* local(std::uint32_t slot) const { return slots_[slot].memory; }
  const Pattern& pattern(std::uint32_t slot) const { return slots_[slot].pattern; }
  std::size_t count() const { return by_address_.size(); }
  // Slots of all registrations, oldest first: in this order they can be made again.
  std::vector<std::uint32_t> by_age() const;

 private:
  struct Registration {
    std::byte* memory = nullptr;
    void* handle = nullptr;
    std::vector<RemoteMemory> remote;
    Pattern pattern;
  };
  struct Entry {
    std::uintptr_t address;
    std::uint64_t age;
    std::uint32_t slot;
  };

  std::uint32_t search(const void* memory);
  std::vector<void*> apply();
  void note_order(std::uint64_t what);

  int processes_;
  std::vector<Registration> slots_;
  std::vector<std::uint32_t> free_;
  std::vector<Entry> by_address_;  // sorted by address, then age
  std::vector<Pending> pending_;
  std::vector<std::size_t> heard_;  // by process: place in pending_ of the next registration
  std::uint64_t order_ = 0, age_ = 0;
  const void* last_address_ = nullptr;
  std::uint32_t last_slot_ = kNone;
};

}  // namespace shadowib::bsp
