// Which shadow has a real queue pair number: for completions that say no more than that, those of shared receives.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "shadowib/objects/ids.h"

namespace shadowib {

struct ShadowQp;

// Open addressing, at most half full. find() takes no lock and may run beside the others, which need the registry's.
// A table that has grown too small rests until the next one does, since a reader may still be in it; set-up calls are
// far slower than a look-up.
class QpNumbers {
 public:
  QpNumbers() = default;
  ~QpNumbers() { delete table_.load(); }
  QpNumbers(const QpNumbers&) = delete;
  QpNumbers& operator=(const QpNumbers&) = delete;

  // nullptr: none has that number (any more).
  ShadowQp* find(RealQpNum number) const {
    const Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr) return nullptr;
    for (std::uint32_t i = first(*table, number);; i = (i + 1) & table->mask) {
      const std::uint32_t held = table->entries[i].number.load(std::memory_order_acquire);
      if (held == number.value) return table->entries[i].qp.load(std::memory_order_relaxed);
      if (held == 0) return nullptr;
    }
  }

  void insert(RealQpNum number, ShadowQp* qp) {
    Table* table = table_.load(std::memory_order_relaxed);
    if (table == nullptr || 2 * (table->used + 1) > table->mask + 1) table = grow(table);
    put(*table, number, qp);
  }

  void erase(RealQpNum number) {
    Table* table = table_.load(std::memory_order_relaxed);
    if (table == nullptr) return;
    for (std::uint32_t i = first(*table, number);; i = (i + 1) & table->mask) {
      const std::uint32_t held = table->entries[i].number.load(std::memory_order_relaxed);
      if (held == number.value) table->entries[i].qp.store(nullptr, std::memory_order_relaxed);
      if (held == number.value || held == 0) return;
    }
  }

  // Threads are stopped.
  void clear() {
    delete table_.exchange(nullptr);
    resting_.reset();
  }

 private:
  struct Entry {
    std::atomic<std::uint32_t> number{0};  // 0: free; stays when its queue pair has gone
    std::atomic<ShadowQp*> qp{nullptr};
  };
  struct Table {
    explicit Table(std::uint32_t size) : mask(size - 1), entries(new Entry[size]) {}
    std::uint32_t mask, used = 0;
    std::unique_ptr<Entry[]> entries;
  };

  static std::uint32_t first(const Table& table, RealQpNum number) {
    return (number.value * 2654435761u >> 8) & table.mask;
  }
  static void put(Table& table, RealQpNum number, ShadowQp* qp) {
    std::uint32_t i = first(table, number);
    while (true) {
      const std::uint32_t held = table.entries[i].number.load(std::memory_order_relaxed);
      if (held == 0 || held == number.value) break;
      i = (i + 1) & table.mask;
    }
    table.entries[i].qp.store(qp, std::memory_order_relaxed);
    if (table.entries[i].number.load(std::memory_order_relaxed) == 0) ++table.used;
    table.entries[i].number.store(number.value, std::memory_order_release);
  }
  Table* grow(Table* old) {
    std::uint32_t live = 0;
    for (std::uint32_t i = 0; old != nullptr && i <= old->mask; ++i) live += old->entries[i].qp.load() != nullptr;
    std::uint32_t size = 16;
    while (size < 4 * (live + 1)) size *= 2;
    auto* table = new Table(size);
    for (std::uint32_t i = 0; old != nullptr && i <= old->mask; ++i)
      if (ShadowQp* qp = old->entries[i].qp.load(); qp != nullptr) put(*table, {old->entries[i].number.load()}, qp);
    table_.store(table, std::memory_order_release);
    resting_.reset(old);
    return table;
  }

  std::atomic<Table*> table_{nullptr};
  std::unique_ptr<Table> resting_;
};

}  // namespace shadowib
