#include "libraries/portable/runtime/containers.h"

#include <cctype>
#include <cstring>

#include "libraries/portable/runtime/heap.h"

namespace shadowib::portable {
namespace {

// Of a member function, by the linker's name: its class in std. "": no member, or of another class.
std::string class_in_std(const std::string& name) {
  if (name.compare(0, 3, "_ZN") != 0) return "";
  std::size_t at = name.find_first_not_of("rVKRO", 3);
  if (at == std::string::npos || name.compare(at, 2, "St") != 0) return "";
  at += 2;
  if (name.compare(at, 8, "7__cxx11") == 0) at += 8;
  std::size_t length = 0;
  while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at])) && length < name.size())
    length = length * 10 + static_cast<std::size_t>(name[at++] - '0');
  return name.substr(at, length);
}

class Settle {
 public:
  explicit Settle(State& state)
      : image_(state.image), layouts_(state.image.layouts), has_(layouts_.types.size(), kUnknown) {
    for (const FrameState& frame : image_.frames) {
      const std::string of = class_in_std(image_.functions[frame.function].name);
      if (of == "vector" || of == "_Vector_base") vector_changes_ = true;
      if (of == "optional" || of.compare(0, 10, "_Optional_") == 0) optional_changes_ = true;
      if (of == "basic_string") text_changes_ = true;
    }
  }

  // `bytes` may be a copy of what the program has.
  void object(const Object& object, unsigned char* bytes) {
    const std::uint64_t each = layouts_[object.type].size;
    if (each == 0 || !has(object.type)) return;
    const Shape shape = shape_of(layouts_, object.type, value_bytes(image_, object));
    list(object.type, shape.count, object.address, bytes);
    if (!shape.tail) return;
    const LayoutMember& last = layouts_[object.type].members.back();
    list(layouts_[last.type].element, shape.tail, object.address + last.bit_offset / 8, bytes + last.bit_offset / 8);
  }

 private:
  enum Has : std::uint8_t { kUnknown, kNone, kSome };

  bool has(TypeIndex index) {
    if (has_[index] == kUnknown) {
      const LayoutType& type = layouts_[index];
      bool some = type.kind == kTypeStruct && type.format != kRecordPlain;
      if (is_list(type)) some = has(type.element);
      if (type.kind == kTypeStruct)
        for (const LayoutMember& member : type.members) some |= has(member.type);
      has_[index] = some ? kSome : kNone;
    }
    return has_[index] == kSome;
  }

  void list(TypeIndex element, std::uint64_t count, std::uint64_t address, unsigned char* bytes) {
    const std::uint64_t each = layouts_[element].size;
    if (!has(element)) return;
    for (std::uint64_t i = 0; i < count; i++) one(element, address + i * each, bytes + i * each);
  }

  void one(TypeIndex index, std::uint64_t address, unsigned char* bytes) {
    const LayoutType& type = layouts_[index];
    if (is_list(type)) return list(type.element, type.count, address, bytes);
    if (type.kind != kTypeStruct) return;
    if (type.format == kRecordText) text(type, address, bytes);
    if (type.format == kRecordOptional && !optional_changes_) optional(type, bytes);
    if (type.format == kRecordVector && !vector_changes_) vector(type, bytes);
    for (const LayoutMember& member : type.members) {
      if (!member.bit_width && has(member.type))
        one(member.type, address + member.bit_offset / 8, bytes + member.bit_offset / 8);
    }
  }

  static std::uintptr_t pointer_at(const LayoutType& type, std::size_t member, const unsigned char* bytes) {
    std::uintptr_t address = 0;
    std::memcpy(&address, bytes + type.members[member].bit_offset / 8, sizeof address);
    return address;
  }

  // Pointer, number of characters, union of the characters and the room.
  void text(const LayoutType& type, std::uint64_t address, unsigned char* bytes) {
    if (type.members.size() != 3 || !is_choice(layouts_[type.members[2].type])) return;
    const std::uint64_t at = type.members[2].bit_offset / 8;
    const LayoutType& either = layouts_[type.members[2].type];
    const std::uintptr_t characters = pointer_at(type, 0, bytes);
    std::size_t used = layouts_[either.members[1].type].size;  // the room's number
    if (characters == address + at) {
      std::size_t length = 0;
      std::memcpy(&length, bytes + type.members[1].bit_offset / 8, sizeof length);
      const std::size_t each = layouts_[layouts_[either.members[0].type].element].size;
      used = text_changes_ ? either.size - each : length * each;
      if (used >= either.size) return;
    } else if (characters == 0) {
      used = 0;  // not made yet
    }
    std::memset(bytes + at + used, 0, either.size - used);
    if (characters && characters != address + at) bytes[at + either.size - 1] = 0xff;
  }

  void optional(const LayoutType& type, unsigned char* bytes) const {
    if (type.members.size() != 2 || layouts_[type.members[1].type].kind != kTypeBool) return;
    if (bytes[type.members[1].bit_offset / 8] == 0)
      std::memset(bytes + type.members[0].bit_offset / 8, 0, layouts_[type.members[0].type].size);
  }

  static void vector(const LayoutType& type, const unsigned char* bytes) {
    if (type.members.size() < 3) return;
    const std::uintptr_t begin = pointer_at(type, 0, bytes), end = pointer_at(type, 1, bytes),
                         room = pointer_at(type, 2, bytes);
    auto* block = reinterpret_cast<unsigned char*>(begin);
    if (!begin || begin > end || end > room || !heap_owns(block)) return;
    if (room - begin > heap_size(block)) return;
    std::memset(block + (end - begin), 0, room - end);
  }

  const Image& image_;
  const Layouts& layouts_;
  std::vector<Has> has_;
  // A frame of a member function is on the stack. It makes or ends an element before it moves the end.
  bool vector_changes_ = false, optional_changes_ = false, text_changes_ = false;
};

}  // namespace

void settle_containers(State& state) {
  Settle settle(state);
  for (std::size_t i = 0; i < state.image.objects.size(); i++) {
    if (state.image.objects[i].data != kNoData) settle.object(state.image.objects[i], state.memory[i]);
  }
}

}  // namespace shadowib::portable
