#include "libraries/bsp/registers.h"

#include <algorithm>

namespace shadowib::bsp {

void Registers::note_order(std::uint64_t what) {
  order_ = (order_ ^ what) * 0x9e3779b97f4a7c15u;
  order_ ^= order_ >> 29;
}

void Registers::push(const void* memory, std::size_t bytes, std::uint32_t key, void* handle, Pattern pattern) {
  const std::size_t pattern_bytes = pattern.is_known() ? bytes : 0;
  pending_.push_back({true, 0, memory, bytes, key, handle, std::vector<RemoteMemory>(processes_), std::move(pattern),
                      pattern_bytes});
  note_order(1);
}

bool Registers::pop(const void* memory) {
  // One of this superstep is the newest.
  for (std::size_t i = pending_.size(); i-- > 0;) {
    if (!pending_[i].is_push || pending_[i].memory != memory) continue;
    const std::uint32_t slot = kPendingBit | static_cast<std::uint32_t>(i);
    const bool popped = std::any_of(pending_.begin() + i, pending_.end(),
                                    [slot](const Pending& p) { return !p.is_push && p.slot == slot; });
    if (popped) continue;
    pending_.push_back({false, slot, memory, 0, 0, nullptr, {}, {}, 0});
    note_order(2 + (std::uint64_t{slot} << 8));
    return true;
  }
  // Else the newest that counts, and was not removed in this superstep.
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  for (std::size_t i = by_address_.size(); i-- > 0;) {
    if (by_address_[i].address != address) continue;
    const std::uint32_t slot = by_address_[i].slot;
    const bool popped = std::any_of(pending_.begin(), pending_.end(),
                                    [slot](const Pending& p) { return !p.is_push && p.slot == slot; });
    if (popped) continue;
    pending_.push_back({false, slot, memory, 0, 0, nullptr, {}, {}, 0});
    note_order(2 + (std::uint64_t{slot} << 8));
    return true;
  }
  return false;
}

bool Registers::hear(int from, const RemoteMemory& memory) {
  if (heard_.empty()) heard_.assign(processes_, 0);
  std::size_t& at = heard_[from];
  while (at < pending_.size() && !pending_[at].is_push) ++at;
  if (at == pending_.size()) return false;
  pending_[at++].remote[from] = memory;
  return true;
}

bool Registers::hear_pattern(int from, const Pattern& pattern) {
  Pending& heard = pending_[heard_[from] - 1];
  const std::size_t bytes = heard.remote[from].bytes;
  if (heard.pattern.is_known() && !pattern.agrees(heard.pattern, std::min(bytes, heard.pattern_bytes))) return false;
  if (bytes > heard.pattern_bytes) heard.pattern = pattern, heard.pattern_bytes = bytes;
  return true;
}

std::vector<void*> Registers::apply() {
  std::vector<void*> removed;
  std::vector<std::uint32_t> slot_of(pending_.size(), kNone);
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    Pending& p = pending_[i];
    if (p.is_push) {
      std::uint32_t slot = static_cast<std::uint32_t>(slots_.size());
      if (free_.empty()) {
        slots_.emplace_back();
      } else {
        slot = free_.back();
        free_.pop_back();
      }
      slots_[slot] = {static_cast<std::byte*>(const_cast<void*>(p.memory)), p.handle, std::move(p.remote),
                      std::move(p.pattern)};
      const Entry entry{reinterpret_cast<std::uintptr_t>(p.memory), age_++, slot};
      const auto place =
          std::upper_bound(by_address_.begin(), by_address_.end(), entry, [](const Entry& a, const Entry& b) {
            return a.address != b.address ? a.address < b.address : a.age < b.age;
          });
      by_address_.insert(place, entry);
      slot_of[i] = slot;
      continue;
    }
    const std::uint32_t slot = (p.slot & kPendingBit) != 0 ? slot_of[p.slot & ~kPendingBit] : p.slot;
    if (slots_[slot].handle != nullptr) removed.push_back(slots_[slot].handle);
    slots_[slot] = {};
    free_.push_back(slot);
    std::erase_if(by_address_, [slot](const Entry& entry) { return entry.slot == slot; });
  }
  pending_.clear();
  heard_.clear();
  order_ = 0;
  last_slot_ = kNone;
  return removed;
}

std::vector<std::uint32_t> Registers::by_age() const {
  std::vector<Entry> entries = by_address_;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.age < b.age; });
  std::vector<std::uint32_t> slots;
  for (const Entry& entry : entries) slots.push_back(entry.slot);
  return slots;
}

std::uint32_t Registers::search(const void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  auto behind = std::upper_bound(by_address_.begin(), by_address_.end(), address,
                                 [](std::uintptr_t a, const Entry& entry) { return a < entry.address; });
  if (behind == by_address_.begin() || (--behind)->address != address) return kNone;
  last_address_ = memory;
  last_slot_ = behind->slot;
  return last_slot_;
}

}  // namespace shadowib::bsp
