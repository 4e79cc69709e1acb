// Which shadow has a real queue pair number: for completions that say no more than that.
#pragma once

#include <atomic>
#include <cstdint>

#include "shadowib/objects/ids.h"

namespace shadowib {

struct ShadowQp;

// A tree over the 24 bits of a number, eight at a step. find() takes no lock and may run beside the others, which
// need the registry's. No part that a reader may be in is freed or moved while program threads run, however long the
// reader is held up. A leaf is 2 KiB and serves 256 numbers for good.
class QpNumbers {
 public:
  QpNumbers() = default;
  ~QpNumbers() { clear(); }
  QpNumbers(const QpNumbers&) = delete;
  QpNumbers& operator=(const QpNumbers&) = delete;

  // nullptr: none has that number (any more).
  ShadowQp* find(RealQpNum number) const {
    if (number.value > kLargest) return nullptr;
    const Middle* middle = root_.at[number.value >> 16].load(std::memory_order_acquire);
    if (middle == nullptr) return nullptr;
    const Leaf* leaf = middle->at[number.value >> 8 & 255].load(std::memory_order_acquire);
    return leaf == nullptr ? nullptr : leaf->at[number.value & 255].load(std::memory_order_acquire);
  }

  // Numbers have 24 bits in every backend; one that has more is not kept.
  void insert(RealQpNum number, ShadowQp* qp) {
    if (number.value > kLargest) return;
    Middle& middle = made(root_.at[number.value >> 16]);
    made(middle.at[number.value >> 8 & 255]).at[number.value & 255].store(qp, std::memory_order_release);
  }

  void erase(RealQpNum number) {
    if (find(number) != nullptr) insert(number, nullptr);
  }

  // Threads are stopped.
  void clear() {
    for (auto& entry : root_.at) {
      Middle* middle = entry.exchange(nullptr);
      if (middle == nullptr) continue;
      for (auto& leaf : middle->at) delete leaf.load();
      delete middle;
    }
  }

 private:
  static constexpr std::uint32_t kLargest = 0xffffff;
  template <typename Below>
  struct Level {
    std::atomic<Below*> at[256] = {};
  };
  using Leaf = Level<ShadowQp>;
  using Middle = Level<Leaf>;

  template <typename Below>
  static Below& made(std::atomic<Below*>& entry) {
    Below* below = entry.load(std::memory_order_relaxed);
    if (below == nullptr) {
      below = new Below;
      entry.store(below, std::memory_order_release);
    }
    return *below;
  }

  Level<Middle> root_;
};

}  // namespace shadowib
