// Translation of ids after a restart: one probe in a dense table, no allocation on look-up.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "shadowib/objects/ids.h"

namespace shadowib {

// Virtual id -> real id. One that is not in the table is its own translation: ids made after a restart are chosen so
// that virtual equals real (see Registry::choose_key). Open addressing, at most half full; nothing is ever taken out.
// find() takes no lock and may run beside insert(), which needs the caller's. A table that has grown too small stays
// until clear(), since a reader may be held up in it for any time. All of them together are smaller than the last.
template <typename Virtual, typename Real>
class IdTable {
 public:
  IdTable() = default;
  IdTable(const IdTable&) = delete;
  IdTable& operator=(const IdTable&) = delete;

  void insert(Virtual from, Real to) {
    Table* table = table_.load(std::memory_order_relaxed);
    if (table == nullptr || table->size < 2 * (count_ + 1)) table = grow(table);
    Slot& slot = table->probe(from.value);
    count_ += !slot.used.load(std::memory_order_relaxed);
    slot.set(from.value, to.value);
  }

  // Returns false if there is none; *to is then the id's own value.
  bool find(Virtual from, Real* to) const {
    *to = {from.value};
    const Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr) return false;
    const Slot& slot = table->probe(from.value);
    // An empty slot may have been filled with another since the probe ended there.
    if (!slot.used.load(std::memory_order_acquire) || slot.from.load(std::memory_order_relaxed) != from.value)
      return false;
    to->value = slot.to.load(std::memory_order_relaxed);
    return true;
  }

  // Threads are stopped.
  void clear() {
    table_ = nullptr;
    tables_.clear();
    count_ = 0;
  }

 private:
  struct Slot {
    std::atomic<std::uint32_t> from{0}, to{0};
    std::atomic<bool> used{false};
    void set(std::uint32_t id, std::uint32_t real) {
      from.store(id, std::memory_order_relaxed);
      to.store(real, std::memory_order_relaxed);
      used.store(true, std::memory_order_release);
    }
  };
  struct Table {
    explicit Table(std::size_t n) : size(n), slots(new Slot[n]) {}
    // Where the id is, or would be put.
    Slot& probe(std::uint32_t id) const {
      const std::size_t mask = size - 1;
      std::size_t i = (id * 2654435761u >> 7) & mask;
      while (slots[i].used.load(std::memory_order_acquire) && slots[i].from.load(std::memory_order_relaxed) != id)
        i = (i + 1) & mask;
      return slots[i];
    }
    const std::size_t size;
    const std::unique_ptr<Slot[]> slots;
  };
  Table* grow(const Table* old) {
    Table* table = tables_.emplace_back(std::make_unique<Table>(old == nullptr ? 16 : 2 * old->size)).get();
    for (std::size_t i = 0; old != nullptr && i < old->size; ++i) {
      const Slot& slot = old->slots[i];
      if (slot.used.load(std::memory_order_relaxed)) {
        const std::uint32_t id = slot.from.load(std::memory_order_relaxed);
        table->probe(id).set(id, slot.to.load(std::memory_order_relaxed));
      }
    }
    table_.store(table, std::memory_order_release);
    return table;
  }

  std::atomic<Table*> table_{nullptr};
  std::vector<std::unique_ptr<Table>> tables_;
  std::size_t count_ = 0;
};

using KeyTable = IdTable<VirtualKey, RealKey>;
using DestinationTable = IdTable<VirtualQpNum, DestinationIndex>;

}  // namespace shadowib
