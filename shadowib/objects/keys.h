// Translation of memory keys after a restart: one probe in a dense table, no allocation on look-up.
#pragma once

#include <cstdint>
#include <vector>

#include "shadowib/objects/ids.h"

namespace shadowib {

// Virtual key -> real key. A key that is not in the table is its own translation: keys made after a restart are
// chosen so that virtual equals real (see Registry::choose_key). Open addressing, at most half full. Threads: find()
// may run beside insert() only under the caller's lock.
class KeyTable {
 public:
  bool empty() const { return count_ == 0; }

  void insert(VirtualKey from, RealKey to) {
    if (slots_.size() < 2 * (count_ + 1)) grow();
    Slot& slot = probe(from.value);
    if (!slot.used) ++count_;
    slot = {from.value, to.value, true};
  }

  // Returns false if there is none; *to is then the key's own value.
  bool find(VirtualKey from, RealKey* to) const {
    *to = {from.value};
    if (count_ == 0) return false;
    const Slot& slot = const_cast<KeyTable*>(this)->probe(from.value);
    if (slot.used) to->value = slot.to;
    return slot.used;
  }

  void clear() {
    slots_.clear();
    count_ = 0;
  }

 private:
  struct Slot {
    std::uint32_t from = 0, to = 0;
    bool used = false;
  };
  Slot& probe(std::uint32_t key) {
    std::size_t mask = slots_.size() - 1;
    std::size_t i = (key * 2654435761u >> 7) & mask;
    while (slots_[i].used && slots_[i].from != key) i = (i + 1) & mask;
    return slots_[i];
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& s : old)
      if (s.used) probe(s.from) = s;
  }
  std::vector<Slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace shadowib
