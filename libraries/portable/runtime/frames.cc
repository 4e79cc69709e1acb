// Calls of instrumented code, in the modes LEAVE and ENTER.
#include "libraries/portable/runtime/frames.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "libraries/portable/image/image.h"
#include "libraries/portable/runtime/refill.h"
#include "libraries/portable/runtime/restart.h"

volatile std::uint32_t shadowib_portable_mode = shadowib::portable::kModeNormal;

namespace shadowib::portable {

LeftStack& left_stack() {
  static auto* only = new LeftStack;
  return *only;
}

std::uint64_t slot_address(const Frame& frame, const Slot& slot) {
  std::uint64_t address = 0;
  std::memcpy(&address, frame.buffer.get() + slot.offset - 8, 8);
  return address;
}

void broken(const char* text, const char* detail) {
  std::fprintf(stderr, "shadowib: %s: %s\n", text, detail);
  std::abort();
}

namespace {

Frame& next_frame() {
  LeftStack& stack = left_stack();
  if (stack.entered == stack.frames.size())
    broken("the stack was entered deeper than it was left", "compile all files again");
  return stack.frames[stack.frames.size() - 1 - stack.entered];
}

}  // namespace
}  // namespace shadowib::portable

using namespace shadowib::portable;

extern "C" unsigned char* shadowib_portable_leave(const Site* site) {
  Frame frame;
  frame.site = site;
  frame.buffer.reset(new unsigned char[site->buffer_size + 16]());
  left_stack().frames.push_back(std::move(frame));
  return left_stack().frames.back().buffer.get();
}

extern "C" void shadowib_portable_keep(const Site* site) {
  Frame& frame = left_stack().frames.back();
  for (std::uint32_t i = 0; i < site->slot_count; i++) {
    const Slot& slot = site->slots[i];
    if (slot.flags & kSlotAddress)
      std::memcpy(frame.buffer.get() + slot.offset,
                  reinterpret_cast<const void*>(static_cast<std::uintptr_t>(slot_address(frame, slot))), slot.size);
  }
}

extern "C" std::uint32_t shadowib_portable_enter(const Function* function) {
  Frame& frame = next_frame();
  if (frame.site->function != function)
    broken("another function was entered than was left", function_text(function->name).c_str());
  return frame.site->index;
}

extern "C" unsigned char* shadowib_portable_frame(const Site* site) {
  Frame& frame = next_frame();
  if (frame.site != site)
    broken("another call was entered than was left", function_text(site->function->name).c_str());
  if (!restarting()) keep_addresses(frame);
  return frame.buffer.get();
}

extern "C" void shadowib_portable_fill(const Site*) {
  Frame& frame = next_frame();
  restarting() ? restart_frame(frame) : fill_frame(frame);
  left_stack().entered++;
}
