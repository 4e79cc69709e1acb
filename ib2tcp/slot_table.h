// Objects by the number a peer or a work request names them with (qp_num, lkey, rkey): a dense array of slots.
//
// A number is base + (generation << kSlotBits | slot), cut to kIdBits. The base is random per load and a slot's
// generation changes at each reuse, so that a stale number names nothing. Guarded by the engine's lock.
#pragma once

#include <errno.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "ib2tcp/host.h"

namespace shadowib::ib2tcp {

// How a table numbers its objects, for one that takes its place.
struct Numbering {
  std::uint32_t base, generation;  // no slot has given out a number of this generation or a later one
};

template <typename T, unsigned kSlotBits, unsigned kIdBits>
class SlotTable {
 public:
  static constexpr std::uint32_t kIdMask = kIdBits == 32 ? ~0u : (1u << kIdBits) - 1;
  static constexpr std::uint32_t kMaxObjects = 1u << kSlotBits;

  SlotTable() : base_(random_value<std::uint32_t>() & kIdMask) {}

  // Gives `object` a number; 0 if the table is full. 0, 1 and the all-ones number are never given (QP0, QP1 and
  // multicast are special to verbs).
  std::uint32_t insert(T* object) {
    if (wanted_ != 0) return insert_at(std::exchange(wanted_, 0), object);
    // Slots of wanted numbers may be on the list, too.
    while (took_over_ && !free_.empty() && slots_[free_.front()].object != nullptr) free_.pop_front();
    std::uint32_t slot;
    if (free_.size() > kReuseDelay || (slots_.size() == kMaxObjects && !free_.empty())) {
      slot = free_.front();
      free_.pop_front();
    } else if (slots_.size() < kMaxObjects) {
      slot = static_cast<std::uint32_t>(slots_.size());
      slots_.push_back({nullptr, 0, first_generation_});
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
    std::uint32_t slot = slot_of(id);
    if (slot >= slots_.size() || slots_[slot].id != id) return nullptr;
    return slots_[slot].object;
  }

  void remove(std::uint32_t id) {
    std::uint32_t slot = slot_of(id);
    slots_[slot].object = nullptr;
    slots_[slot].id = 0;
    free_.push_back(slot);
    --live_;
  }

  Numbering numbering() const {
    std::uint32_t generation = first_generation_;
    for (const Slot& slot : slots_) generation = std::max(generation, slot.generation);
    return {base_, generation};
  }
  // Precondition: the table is empty. It goes on as that one would. New objects get no number that one gave out
  // lately.
  void take_over(const Numbering& former) {
    base_ = former.base & kIdMask;
    first_generation_ = former.generation;
    took_over_ = true;
  }
  // The next object gets this number, which the former table gave out. 0, EINVAL or EEXIST.
  int want(std::uint32_t id) {
    if (id <= 1 || id >= kIdMask) return EINVAL;
    const std::uint32_t slot = slot_of(id);
    if (slot < slots_.size() && slots_[slot].object != nullptr) return EEXIST;
    wanted_ = id;
    return 0;
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
  std::uint32_t slot_of(std::uint32_t id) const { return (id - base_) & (kMaxObjects - 1); }
  std::uint32_t insert_at(std::uint32_t id, T* object) {
    const std::uint32_t slot = slot_of(id);
    while (slots_.size() <= slot) {
      if (slots_.size() != slot) free_.push_back(static_cast<std::uint32_t>(slots_.size()));
      slots_.push_back({nullptr, 0, first_generation_});
    }
    slots_[slot].id = id;
    slots_[slot].object = object;
    ++live_;
    return id;
  }

  std::uint32_t base_;
  std::uint32_t live_ = 0;
  std::uint32_t wanted_ = 0, first_generation_ = 0;
  bool took_over_ = false;
  std::vector<Slot> slots_;
  std::deque<std::uint32_t> free_;
};

}  // namespace shadowib::ib2tcp
