#include "libraries/portable/runtime/restart.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <tuple>

#include "libraries/portable/image/convert.h"
#include "libraries/portable/runtime/heap.h"
#include "libraries/portable/runtime/options.h"
#include "libraries/portable/runtime/state.h"
#include "libraries/portable/runtime/statics.h"
#include "libraries/portable/runtime/twins.h"

namespace shadowib::portable {
namespace {

// A pointer with this value leads to nothing: no page is ever mapped there.
constexpr std::uint64_t kLeadsNowhere = 0xf000;
// No page is mapped below it: a pointer holds a number.
constexpr std::uint64_t kNumbers = 65536;
constexpr std::uint64_t kBelowZero = 4096;  // numbers, too, as MAP_FAILED

// The new place of an object of the image.
struct Home {
  std::uint64_t address = 0;  // 0: none yet
  std::uint64_t size = 0;
  TypeIndex type = kNoType;
  bool present = false;
  bool inner = false;  // of a frame that may not be entered yet: a pointer of a frame above cannot mean it
};

struct FrameWork {
  std::deque<PointerPlace> values;     // in the frame's buffer
  std::deque<PointerPlace> variables;  // in the frame's buffer now, in variables with addresses later
};

class Restart {
 public:
  Restart(const std::string& path, bool exact)
      : image_(read_image(path)),
        index_(image_),
        states_(state_),
        exact_(exact),
        converter_(image_.layouts, state_.image.layouts) {
    add_program(state_, states_);
    check_sources();
    match_functions();
    homes_.resize(image_.objects.size());
    make_frames();
    make_globals();
    make_blocks();
    check_layouts(state_.image.layouts);
    fill_all();
  }

  std::uint64_t visits() const { return image_.visits; }

  void enter(Frame& frame) {
    const std::size_t i = image_.frames.size() - 1 - entered_++;
    FrameWork& work = frames_[i];
    for (std::uint32_t j = 0; j < frame.site->slot_count; j++) {
      const Slot& slot = frame.site->slots[j];
      if (!(slot.flags & kSlotAddress)) continue;
      const std::uint64_t address = slot_address(frame, slot);
      auto* variable = reinterpret_cast<unsigned char*>(static_cast<std::uintptr_t>(address));
      unsigned char* kept = frame.buffer.get() + slot.offset;
      std::memcpy(variable, kept, slot.size);
      const std::uint32_t object = slots_.at({i, j});
      homes_[object].address = address;
      for (PointerPlace& place : work.variables) {
        if (place.at >= kept && place.at < kept + slot.size) place.at = variable + (place.at - kept);
      }
    }
    later_.insert(later_.end(), work.variables.begin(), work.variables.end());
    for (const PointerPlace& place : work.values) write_pointer(place);
  }

  void end() {
    for (const PointerPlace& place : later_) write_pointer(place);
    if (nowhere_)
      std::fprintf(stderr,
                   "shadowib: %llu pointers lead nowhere, first %s: they led to freed memory, or hold numbers\n",
                   static_cast<unsigned long long>(nowhere_), first_nowhere_.c_str());
  }

 private:
  void check_sources() {
    std::map<std::string, std::uint64_t> ours;
    for (const ModuleName& module : state_.image.modules) ours[module.file] = module.source_hash;
    for (const ModuleName& module : image_.modules) {
      auto found = ours.find(module.file);
      if (found == ours.end()) throw Refused{"the program has no file " + module.file + "; the image's has"};
      if (found->second != module.source_hash)
        throw Refused{module.file + " had another source" + changed(module.file)};
      ours.erase(found);
    }
    if (!ours.empty()) throw Refused{"the image's program had no file " + ours.begin()->first};
  }

  std::string changed(const std::string& file) const {
    for (const FunctionName& now : state_.image.functions) {
      for (const FunctionName& then : image_.functions) {
        if (now.file == file && then.file == file && now.name == then.name && now.source_hash != then.source_hash)
          return ": " + function_text(now.name) + " differs";
      }
    }
    return "";
  }

  void match_functions() {
    Twins<FunctionKey> ours, theirs;
    for (const FunctionName& now : state_.image.functions) ours.add(function_key(state_.image, now), now.name);
    for (const FunctionName& then : image_.functions) theirs.add(function_key(image_, then), then.name);
    for (const std::size_t found : theirs.match(ours))
      functions_.push_back(found == kNone ? nullptr : state_.functions[found]);
  }

  void make_frames() {
    frames_.resize(image_.frames.size());
    left_stack().frames.clear();
    left_stack().entered = 0;
    for (std::size_t i = 0; i < image_.frames.size(); i++) {
      const FrameState& old = image_.frames[i];
      const FunctionName& name = image_.functions[old.function];
      const Function* function = functions_[old.function];
      if (!function || old.site >= function->site_count)
        throw Refused{"the program has no such call in " + function_text(name.name) +
                      " as the image: it was compiled otherwise"};
      const Site* site = function->sites[old.site];
      if (function->site_count != old.sites || site->line != old.line ||
          canonical_name(site->callee ? site->callee : "") != canonical_name(old.callee))
        throw Refused{"the image's call of " + function_text(old.callee) + " at line " + std::to_string(old.line) +
                      " of " + function_text(name.name) +
                      " is another one in the program: it was compiled otherwise"};
      Frame frame;
      frame.site = site;
      frame.buffer.reset(new unsigned char[site->buffer_size + 16]());
      match_slots(i, old, *site);
      left_stack().frames.push_back(std::move(frame));
    }
  }

  // Variables by name and line; those without a name by their order.
  void match_slots(std::size_t frame, const FrameState& old, const Site& site) {
    std::map<std::tuple<std::string, std::uint32_t, std::uint32_t>, std::uint32_t> ours;
    std::map<std::pair<std::string, std::uint32_t>, std::uint32_t> seen;
    for (std::uint32_t j = 0; j < site.slot_count; j++) {
      const Slot& slot = site.slots[j];
      const std::string name = slot.name ? slot.name : "";
      const std::uint32_t line = name.empty() ? 0 : slot.line;
      ours[{name, line, seen[{name, line}]++}] = j;
    }
    seen.clear();
    for (std::uint32_t k = 0; k < old.slot_count; k++) {
      const std::uint32_t object = old.first_slot + k;
      const Object& then = image_.objects[object];
      const std::uint32_t line = then.name.empty() ? 0 : then.line;
      auto found = ours.find({then.name, line, seen[{then.name, line}]++});
      if (found == ours.end())
        throw Refused{object_name(image_, then) + " lives in the image at line " + std::to_string(site.line) +
                      ", and not in the program: it was compiled otherwise"};
      const Slot& slot = site.slots[found->second];
      homes_[object] = {0, slot.size, states_.type(slot.type), true, (slot.flags & kSlotAddress) != 0};
      slots_[{frame, found->second}] = object;
      ours.erase(found);
    }
    if (!ours.empty())
      throw Refused{"a variable " + std::get<0>(ours.begin()->first) + " of " + function_text(site.function->name) +
                    " lives in the program and not in the image: it was compiled otherwise"};
  }

  void make_globals() {
    Twins<GlobalKey> ours, theirs;
    for (const Object& now : state_.image.objects) ours.add(global_key(state_.image, now), now.name);
    for (const Object& then : image_.objects) {
      if (then.kind == kObjectGlobal || then.kind == kObjectLiteral)
        theirs.add(global_key(image_, then), then.name);
      else
        theirs.skip();
    }
    const std::vector<std::size_t> pairs = theirs.match(ours);
    for (std::size_t i = 0; i < image_.objects.size(); i++) {
      const Object& then = image_.objects[i];
      if (then.kind != kObjectGlobal && then.kind != kObjectLiteral) continue;
      const std::size_t found = pairs[i];
      const bool literal = then.kind == kObjectLiteral;
      if (found == kNone) {
        if (literal || then.data == kNoData) continue;
        throw Refused{"the program has no variable " + object_name(image_, then)};
      }
      const Object& now = state_.image.objects[found];
      if (literal && now.source_hash != then.source_hash) continue;
      if (now.line != then.line)
        throw Refused{object_name(image_, then) + " is at line " + std::to_string(then.line) +
                      " in the image, and at " + std::to_string(now.line) + " in the program"};
      homes_[i] = {now.address, now.size, now.type, true};
    }
  }

  void make_blocks() {
    Twins<AllocationKey> ours, theirs;
    for (const AllocationSite& now : state_.image.allocations)
      ours.add(allocation_key(state_.image, now), now.function);
    for (const AllocationSite& then : image_.allocations) theirs.add(allocation_key(image_, then), then.function);
    const std::vector<std::size_t> pairs = theirs.match(ours);
    for (std::size_t i = 0; i < image_.objects.size(); i++) {
      const Object& then = image_.objects[i];
      if (then.kind != kObjectHeap) continue;
      const std::size_t found = pairs[then.allocation];
      if (found == kNone || state_.image.allocations[found].type == kNoType)
        throw Refused{"the program does not allocate " + object_name(image_, then)};
      const TypeIndex type = state_.image.allocations[found].type;
      const std::uint64_t size = converter_.new_size(then.type, type, then.size);
      const std::uint64_t alignment = std::uint64_t{1} << then.flags;
      void* block = size == static_cast<std::size_t>(size) && alignment == static_cast<std::size_t>(alignment)
                        ? heap_take(size, std::max<std::size_t>(alignment, 16), state_.allocations[found])
                        : nullptr;
      if (!block) throw Refused{"there is no memory for " + object_name(image_, then)};
      homes_[i] = {reinterpret_cast<std::uintptr_t>(block), size, type, true};
    }
  }

  // All values into their new places, but for pointers.
  void fill_all() {
    for (std::size_t i = 0; i < image_.objects.size(); i++) {
      const Object& then = image_.objects[i];
      if ((then.kind == kObjectGlobal || then.kind == kObjectHeap) && then.data != kNoData)
        fill(i, reinterpret_cast<unsigned char*>(static_cast<std::uintptr_t>(homes_[i].address)));
    }
    later_.swap(converter_.pointers);
    for (const auto& [slot, object] : slots_) {
      Frame& frame = left_stack().frames[slot.first];
      const Slot& place = frame.site->slots[slot.second];
      FrameWork& work = frames_[slot.first];
      fill(object, frame.buffer.get() + place.offset);
      std::deque<PointerPlace>& found = place.flags & kSlotAddress ? work.variables : work.values;
      found.insert(found.end(), converter_.pointers.begin(), converter_.pointers.end());
      converter_.pointers.clear();
    }
    if (exact_ && converter_.rounded) throw Refused{std::to_string(converter_.rounded) + " floats would be rounded"};
    if (converter_.rounded)
      std::fprintf(stderr, "shadowib: %llu floats were rounded to this processor's formats\n",
                   static_cast<unsigned long long>(converter_.rounded));
  }

  void fill(std::size_t object, unsigned char* memory) {
    const Object& then = image_.objects[object];
    const Home& home = homes_[object];
    std::memset(memory, 0, home.size);
    converter_.object = static_cast<std::uint32_t>(object);
    try {
      converter_.convert(then.type, home.type, image_.data(then), value_bytes(image_, then), memory, home.size);
    } catch (const Refused& refused) {
      throw Refused{object_name(image_, then) + refused.text};
    }
  }

  void write_pointer(const PointerPlace& place) {
    const auto pointer = static_cast<std::uintptr_t>(resolve(place));
    std::memcpy(place.at, &pointer, sizeof pointer);
  }

  std::uint64_t resolve(const PointerPlace& place) {
    const std::uint64_t old = place.old_address;
    const Target target = index_.find(old);
    switch (target.kind) {
      case Target::kNull:
        return 0;
      case Target::kFunction: {
        const FunctionName& name = image_.functions[target.index];
        const Function* function = functions_[target.index];
        if (!function)
          throw Refused{"the program has no function " + function_text(name.name) + " that a pointer leads to"};
        return reinterpret_cast<std::uintptr_t>(function->address);
      }
      case Target::kForeign:
        return foreign(image_.foreign[target.index].name);
      case Target::kObject:
        return within(target, place);
      case Target::kNowhere:
        break;
    }
    const std::uint64_t top = image_.layouts.pointer_size == 4 ? std::uint64_t{1} << 32 : 0;
    if (old < kNumbers) return old;
    if (top - old <= kBelowZero) return std::uint64_t{0} - (top - old);
    return nowhere(place);
  }

  std::uint64_t nowhere(const PointerPlace& place) {
    if (nowhere_++ == 0) first_nowhere_ = object_name(image_, image_.objects[place.object]);
    return kLeadsNowhere;
  }

  std::uint64_t within(const Target& target, const PointerPlace& place) {
    const Object& then = image_.objects[target.index];
    const Home& home = homes_[target.index];
    if (!home.present) throw Refused{"the program has no " + object_name(image_, then) + " that a pointer leads to"};
    if (!home.address && home.inner) return nowhere(place);
    if (!home.address) throw Refused{object_name(image_, then) + ", which a pointer leads to, has no address"};
    if (target.offset == 0) return home.address;  // most of all
    try {
      return home.address + converter_.offset_of(then.type, home.type, value_bytes(image_, then), home.size,
                                                 target.offset, place.element);
    } catch (const Refused& refused) {
      throw Refused{"a pointer into " + object_name(image_, then) + ": " + refused.text};
    }
  }

  static std::uint64_t foreign(const std::string& name) {
    if (name == "stdin") return reinterpret_cast<std::uintptr_t>(stdin);
    if (name == "stdout") return reinterpret_cast<std::uintptr_t>(stdout);
    if (name == "stderr") return reinterpret_cast<std::uintptr_t>(stderr);
    void* found = dlsym(RTLD_DEFAULT, name.c_str());
    if (!found) throw Refused{"no library has " + name + ", which a pointer leads to"};
    return reinterpret_cast<std::uintptr_t>(found);
  }

  Image image_;
  AddressIndex index_;
  State state_;
  StateIndex states_;
  bool exact_;
  Converter converter_;
  std::vector<Home> homes_;                                               // of each object of the image
  std::vector<FrameWork> frames_;                                         // of each frame, innermost first
  std::map<std::pair<std::size_t, std::uint32_t>, std::uint32_t> slots_;  // frame and slot here -> object there
  std::deque<PointerPlace> later_;
  std::vector<const Function*> functions_;  // of each function of the image: ours, or null
  std::size_t entered_ = 0;
  std::uint64_t nowhere_ = 0;
  std::string first_nowhere_;
};

Restart* restart = nullptr;

template <typename Work>
void or_end(Work work) {
  try {
    work();
  } catch (const Refused& refused) {
    std::fprintf(stderr, "shadowib: %s cannot be restarted: %s\n", options().from.c_str(), refused.text.c_str());
    // No orderly end: the image is at fault, and not the program.
    for (;;) syscall(SYS_exit_group, kExitImage);
  }
}

}  // namespace

std::uint64_t begin_restart(const std::string& path, bool exact) {
  note_statics();
  restart = new Restart(path, exact);
  return restart->visits();
}

bool restarting() { return restart != nullptr; }

void restart_frame(Frame& frame) {
  or_end([&] { restart->enter(frame); });
}

void end_restart() {
  or_end([] { restart->end(); });
  register_statics();
  delete restart;
  restart = nullptr;
}

}  // namespace shadowib::portable
