// Where numbers lie in memory of the program, for a library that hands memory to processes of another byte order.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "libraries/portable/image/layout.h"
#include "libraries/portable/runtime/frames.h"
#include "libraries/portable/runtime/heap.h"
#include "libraries/portable/runtime/registry.h"

namespace shadowib::portable {
namespace {

constexpr std::size_t kMostRuns = 4096;  // in one element

struct NumberRun {
  std::uint64_t offset, width, count;
  std::string why;  // not empty: `count` bytes that are no numbers, for that reason
};

// The numbers of one element of a type, in the order of their places.
class NumberPlaces {
 public:
  explicit NumberPlaces(const Type* type) : unit_(type->size) {
    add(type, 0);
    // An array within a struct may be one number after the other all along.
    if (runs_.size() == 1 && runs_[0].why.empty() && runs_[0].width * runs_[0].count == unit_)
      unit_ = runs_[0].width, runs_[0].count = 1;
  }

  std::uint64_t unit() const { return unit_; }
  const std::vector<NumberRun>& runs() const { return runs_; }

  // Why the `bytes` bytes from `phase` on are not numbers alone. Empty: they are.
  std::string why_not(std::uint64_t phase, std::uint64_t bytes) const {
    for (const NumberRun& run : runs_) {
      const std::uint64_t begin = run.offset, end = begin + run.width * run.count;
      const bool touched = bytes >= unit_ - phase ? end > phase || bytes - (unit_ - phase) > begin
                                                  : end > phase && begin < phase + bytes;
      if (!touched) continue;
      if (!run.why.empty()) return run.why;
      if (begin < phase && phase < end && (phase - begin) % run.width != 0) return "a number begins before it";
    }
    return {};
  }

 private:
  void add(const Type* type, std::uint64_t at) {
    if (!type) return add_refused(at, 1, "has no known type");
    switch (type->kind) {
      case kTypeSigned:
      case kTypeUnsigned:
      case kTypeBool:
      case kTypeChar:
      case kTypeBits:
        return add_numbers(at, type->size, 1);
      case kTypeFloat:
        if (type->format != kFloatIeee) return add_refused(at, type->size, "is a " + name_of(type));
        return add_numbers(at, type->size, 1);
      case kTypeComplex:
      case kTypeVector:
      case kTypeArray:
        return add_array(type, at);
      case kTypeStruct:
        return add_members(type, at);
      case kTypeUnion:
        if (is_plain(type)) return add(type->members[0].type, at);
        return add_refused(at, type->size, "is a union");
      case kTypePointer:
        return add_refused(at, type->size, "is a pointer");
      default:
        return add_refused(at, std::max<std::uint64_t>(type->size, 1), "has no known type");
    }
  }

  void add_array(const Type* type, std::uint64_t at) {
    if (type->count == 0 || !type->element)
      return add_refused(at, std::max<std::uint64_t>(type->size, 1), "is an array without a length");
    const Type* element = type->element;
    const std::size_t before = runs_.size();
    add(element, at);
    const bool is_one = runs_.size() == before + 1 && runs_[before].why.empty() && runs_[before].offset == at &&
                        runs_[before].width * runs_[before].count == element->size;
    if (is_one) {
      runs_[before].count *= type->count;
      return merge();
    }
    for (std::uint64_t i = 1; i < type->count && runs_.size() <= kMostRuns; i++) add(element, at + i * element->size);
  }

  void add_members(const Type* type, std::uint64_t at) {
    for (std::uint64_t i = 0; i < type->count; i++) {
      const Member& member = type->members[i];
      way_.push_back(member.name ? member.name : "");
      if (member.bit_width)
        add_refused(at + member.bit_offset / 8, (member.bit_offset % 8 + member.bit_width + 7) / 8, "is a bit-field");
      else
        add(member.type, at + member.bit_offset / 8);
      way_.pop_back();
    }
  }

  void add_numbers(std::uint64_t at, std::uint64_t width, std::uint64_t count) {
    if (width == 1) return;  // nothing to turn
    if (width != 2 && width != 4 && width != 8 && width != 16) return add_refused(at, width, "has an odd size");
    if (runs_.size() >= kMostRuns) return add_refused(at, width, "is beyond the first 4096 members");
    runs_.push_back({at, width, count, ""});
    merge();
  }

  // The last run continues the one before.
  void merge() {
    if (runs_.size() < 2) return;
    NumberRun &before = runs_[runs_.size() - 2], &last = runs_.back();
    if (!before.why.empty() || !last.why.empty() || before.width != last.width ||
        before.offset + before.width * before.count != last.offset)
      return;
    before.count += last.count;
    runs_.pop_back();
  }

  void add_refused(std::uint64_t at, std::uint64_t bytes, const std::string& what) {
    std::string where;
    for (const std::string& member : way_) where += (where.empty() ? "" : ".") + member;
    runs_.push_back({at, 1, bytes, (where.empty() ? "a value" : "member " + where) + " " + what});
  }

  static std::string name_of(const Type* type) { return type->name ? type->name : "long double"; }

  static bool is_plain(const Type* type) {
    if (type->count == 0 || !type->members[0].type) return false;
    const Type* first = type->members[0].type;
    const auto is_number = [](const Type* one) {
      return one->kind == kTypeFloat || one->kind == kTypeSigned || one->kind == kTypeUnsigned ||
             one->kind == kTypeBool || one->kind == kTypeChar;
    };
    return std::all_of(type->members, type->members + type->count, [&](const Member& member) {
      return !member.bit_width && member.type && is_number(member.type) && member.type->size == first->size &&
             member.type->kind == first->kind && member.type->format == first->format;
    });
  }

  std::uint64_t unit_;
  std::vector<NumberRun> runs_;
  std::vector<std::string> way_;
};

struct FoundObject {
  const Type* type = nullptr;
  const unsigned char* begin = nullptr;
  std::uint64_t size = 0;
};

bool lies_in(const void* address, const void* begin, std::uint64_t size) {
  const auto at = reinterpret_cast<std::uintptr_t>(address), from = reinterpret_cast<std::uintptr_t>(begin);
  return begin && at >= from && at - from < size;
}

bool find_global(const void* memory, FoundObject* found) {
  for (const Module* module : modules()) {
    for (std::uint32_t i = 0; i < module->global_count; i++) {
      const Global& global = *module->globals[i];
      if (!lies_in(memory, global.address, global.size)) continue;
      *found = {global.type, static_cast<const unsigned char*>(global.address), global.size};
      return true;
    }
  }
  return false;
}

// Variables of the frames that were entered last, while these still run.
bool find_local(const void* memory, FoundObject* found) {
  for (const Frame& frame : left_stack().frames) {
    for (std::uint32_t i = 0; i < frame.site->slot_count; i++) {
      const Slot& slot = frame.site->slots[i];
      const void* begin = slot.flags & kSlotAddress
                              ? reinterpret_cast<const void*>(static_cast<std::uintptr_t>(slot_address(frame, slot)))
                              : nullptr;
      if (!lies_in(memory, begin, slot.size)) continue;
      *found = {slot.type, static_cast<const unsigned char*>(begin), slot.size};
      return true;
    }
  }
  return false;
}

bool find_object(const void* memory, bool entered, FoundObject* found) {
  HeapBlock block;
  if (heap_block_at(memory, &block)) {
    *found = {block.allocation->type, block.address, block.size};
    return true;
  }
  return find_global(memory, found) || (entered && find_local(memory, found));
}

const Type* element_of(const Type* type) {
  while (type && type->kind == kTypeArray && type->count > 0) type = type->element;
  return type;
}

using NoteNumbers = void (*)(void* context, std::uint64_t offset, std::uint32_t width, std::uint64_t count);
enum KnownNumbers : int { kKnown = 0, kUnknown = 1, kRefused = 2 };

int tell_numbers(const Type* type, std::uint64_t offset, std::uint64_t bytes, std::uint64_t* unit,
                 std::uint64_t* phase, NoteNumbers note, void* context, std::string* why) {
  const NumberPlaces places(type);
  *phase = offset % places.unit();
  *why = places.why_not(*phase, bytes);
  if (!why->empty()) return kRefused;
  *unit = places.unit();
  for (const NumberRun& run : places.runs())
    if (run.why.empty()) note(context, run.offset, static_cast<std::uint32_t>(run.width), run.count);
  return kKnown;
}

}  // namespace
}  // namespace shadowib::portable

using namespace shadowib::portable;

// Where the compiler has put no type.
extern "C" void* shadowib_portable_type() { return nullptr; }

// The numbers that lie in memory[0..bytes), bytes > 0, by the type of the object there: a block, a variable of a
// file, or, if `entered`, a variable of the frames that a restart has just entered. Calls note(context, ...) for each
// run of `count` numbers in a unit of *unit bytes; the memory begins at *phase of a unit. Returns 0; 1: no object is
// known; 2: they are not numbers alone, and *why tells it until the next call.
extern "C" int shadowib_portable_numbers_at(const void* memory, std::size_t bytes, int entered, std::uint64_t* unit,
                                            std::uint64_t* phase, NoteNumbers note, void* context, const char** why) {
  static std::string text;
  FoundObject found;
  if (!find_object(memory, entered != 0, &found)) return kUnknown;
  const Type* type = element_of(found.type);
  if (!type || type->size == 0) return kUnknown;
  const auto offset = static_cast<std::uint64_t>(static_cast<const unsigned char*>(memory) - found.begin);
  int known = kRefused;
  if (bytes > found.size - offset)
    text =
        "only " + std::to_string(found.size - offset) + " of " + std::to_string(bytes) + " bytes are the program's";
  else
    known = tell_numbers(type, offset, bytes, unit, phase, note, context, &text);
  *why = text.c_str();
  return known;
}

// The same by the type that a pointer leads to (shadowib_portable_type). Pointers to characters tell it only of an
// array.
extern "C" int shadowib_portable_numbers_of(const void* pointee, std::size_t bytes, int is_array, std::uint64_t* unit,
                                            NoteNumbers note, void* context, const char** why) {
  static std::string text;
  const Type* type = element_of(static_cast<const Type*>(pointee));
  const bool tells = type && type->size > 0 && type->kind != kTypeUnknown && type->kind != kTypeVoid &&
                     type->kind != kTypeFunction && type->kind != kTypeOpaque &&
                     (type->kind != kTypeChar || is_array != 0);
  *why = type && type->kind == kTypeChar ? "its pointer is one to characters, which may be anything"
                                         : "its pointer tells none";
  if (!tells) return kUnknown;
  std::uint64_t phase = 0;
  const int known = tell_numbers(type, 0, bytes, unit, &phase, note, context, &text);
  if (known == kRefused) *why = text.c_str();
  return known;
}
