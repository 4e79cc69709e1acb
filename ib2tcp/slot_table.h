// Objects by the number a peer or a work request names them with (qp_num, lkey, rkey): a dense array of slots.
//
// A number is base + (generation << kSlotBits | slot), cut to kIdBits. The base is random per load and a slot's
// generation changes at each reuse, so that a stale number names nothing. Guarded by the engine's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "ib2tcp/host.h"

namespace shadowib::ib2tcp {

template <typename T, unsigned kSlotBits, unsigned kIdBits>
class SlotTable {
 public:
  static constexpr std::uint32_t kIdMask = kIdBits == 32 ? ~0u : (1u << kIdBits) - 1;
  static constexpr std::uint32_t kMaxObjects = 1u << kSlotBits;

  SlotTable() : base_(random_value<std::uint32_t>() & kIdMask) {}

  // Gives `object` a number; 0 if the table is full. 0, 1 and the all-ones number are never given (QP0, QP1 and
  // multicast are special to verbs).
  std::uint32_t insert(T* object) {
    std::uint32_t slot;
    if (free_.size() > kReuseDelay || (slots_.size() == kMaxObjects && !free_.empty())) {
      slot = free_.front();
      free_.pop_front();
    } else if (slots_.size() < kMaxObjects) {
      slot = static_cast<std::uint32_t>(slots_.size());
      slots_.push_back({});
    } else {
      return 0;
    }
    Slot& entry = slots_[slot];
    do {
      entry.id = (base_ + ((entry.generation++ << kSlotBits) | slot)) & kIdMask;
    } while (entry.id <= 1 || entry.id == kIdMask);
    entry.object = object;
    ++live_;
    return entry.id;
  }

  T* find(std::uint32_t id) const {
    std::uint32_t slot = (id - base_) & (kMaxObjects - 1);
    if (slot >= slots_.size() || slots_[slot].id != id) return nullptr;
    return slots_[slot].object;
  }

  void remove(std::uint32_t id) {
    std::uint32_t slot = (id - base_) & (kMaxObjects - 1);
    slots_[slot].object = nullptr;
    slots_[slot].id = 0;
    free_.push_back(slot);
    --live_;
  }

  std::uint32_t live() const { return live_; }

  template <typename Function>
  void for_each(Function function) {
    for (std::size_t i = 0; i < slots_.size(); ++i)
      if (slots_[i].object != nullptr) function(*slots_[i].object);
  }

 private:
  static constexpr std::size_t kReuseDelay = 64;
  struct Slot {
    T* object = nullptr;
    std::uint32_t id = 0;
    std::uint32_t generation = 0;
  };
  std::uint32_t base_;
  std::uint32_t live_ = 0;
  std::vector<Slot> slots_;
  std::deque<std::uint32_t> free_;
};

}  // namespace shadowib::ib2tcp
