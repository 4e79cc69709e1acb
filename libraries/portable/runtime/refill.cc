#include "libraries/portable/runtime/refill.h"

#include <cstring>
#include <vector>

namespace shadowib::portable {
namespace {

std::vector<std::uint64_t>& old_addresses() {
  static auto* only = new std::vector<std::uint64_t>;
  return *only;
}

}  // namespace

void keep_addresses(const Frame& frame) {
  auto& kept = old_addresses();
  kept.clear();
  for (std::uint32_t i = 0; i < frame.site->slot_count; i++) {
    const Slot& slot = frame.site->slots[i];
    if (slot.flags & kSlotAddress) kept.push_back(slot_address(frame, slot));
  }
}

void fill_frame(Frame& frame) {
  std::size_t at = 0;
  for (std::uint32_t i = 0; i < frame.site->slot_count; i++) {
    const Slot& slot = frame.site->slots[i];
    if (!(slot.flags & kSlotAddress)) continue;
    std::uint64_t address = slot_address(frame, slot);
    // One process, one stack, one frame layout: a variable comes back to its place, so pointers to it stay right.
    if (address != old_addresses()[at++]) broken("a variable came to another address in this process", slot.name);
    std::memcpy(reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), frame.buffer.get() + slot.offset,
                slot.size);
  }
}

}  // namespace shadowib::portable
