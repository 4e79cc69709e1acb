#include "libraries/portable/image/layout.h"

#include <algorithm>

namespace shadowib::portable {
namespace {

[[noreturn]] void damaged(const std::string& text) { throw Refused{"the table of types is wrong: " + text}; }

bool has_format(const LayoutType& type) {
  switch (type.format) {
    case kFloatIeee:
      return type.size == 2 || type.size == 4 || type.size == 8 || type.size == 16;
    case kFloatX87:
      return type.size == 10 || type.size == 12 || type.size == 16;
    case kFloatDoubleDouble:
      return type.size == 16;
    default:
      return false;
  }
}

class LayoutCheck {
 public:
  explicit LayoutCheck(const Layouts& layouts) : layouts_(layouts), depth_(layouts.types.size(), 0) {}

  void all() {
    for (TypeIndex i = 0; i < layouts_.types.size(); i++) own(layouts_[i]);
    for (TypeIndex i = 0; i < layouts_.types.size(); i++) depth(i, 0);
  }

 private:
  void index(TypeIndex type) const {
    if (type >= layouts_.types.size()) damaged("an index is beyond it");
  }

  void own(const LayoutType& type) const {
    if (type.kind > kTypeBits) damaged("a kind is unknown");
    if (type.kind != kTypePointer && type.size > kMostBytes) damaged(type.name + " is too large");
    if (type.kind == kTypePointer && type.size != layouts_.pointer_size) damaged("a pointer has another size");
    if (is_integer(type) && (type.size == 0 || type.size > 16)) damaged("a whole number has a size of its own");
    if (type.kind == kTypeFloat && !has_format(type)) damaged("a float has an unknown format");
    if (is_list(type)) list(type);
    if (type.element != kNoType) index(type.element);
    if (type.kind == kTypeStruct || type.kind == kTypeUnion) members(type);
    if (is_choice(type)) choice(type);
  }

  void list(const LayoutType& type) const {
    index(type.element);
    const std::uint64_t each = layouts_[type.element].size;
    if (each ? type.count > type.size / each : type.count > kMostBytes) damaged("elements are beyond their array");
  }

  void members(const LayoutType& type) const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
    for (const LayoutMember& member : type.members) {
      index(member.type);
      const LayoutType& of = layouts_[member.type];
      if (of.size > kMostBytes) damaged("a member is too large");
      const std::uint64_t bits = member.bit_width ? member.bit_width : of.size * 8;
      if (member.bit_width > 128 || (member.bit_width && !is_integer(of))) damaged("a bit-field is no whole number");
      if (!member.bit_width && member.bit_offset % 8) damaged("a member begins within a byte");
      if (member.bit_offset > type.size * 8 || bits > type.size * 8 - member.bit_offset)
        damaged("a member is beyond its struct");
      if (bits) places.emplace_back(member.bit_offset, member.bit_offset + bits);
    }
    if (type.kind == kTypeUnion) return;
    std::sort(places.begin(), places.end());
    for (std::size_t i = 1; i < places.size(); i++) {
      if (places[i].first < places[i - 1].second) damaged("members overlap");
    }
  }

  // The byte that tells is the characters' last or beyond the room's number.
  void choice(const LayoutType& type) const {
    if (type.members.size() != 2 || type.size == 0) damaged("a union has no two members to choose from");
    for (const LayoutMember& member : type.members) {
      if (member.bit_offset || member.bit_width) damaged("a union's member is not at its begin");
    }
    if (layouts_[type.members[1].type].size >= type.size) damaged("a union has no byte that tells");
  }

  // How deep the types within lie. A type that contains itself is found by its depth.
  std::uint32_t depth(TypeIndex at, std::uint32_t above) {
    if (above > kDeepest) damaged("types are nested too deep");
    if (depth_[at]) {
      if (above + depth_[at] > kDeepest + 1) damaged("types are nested too deep");
      return depth_[at];
    }
    const LayoutType& type = layouts_[at];
    std::uint32_t deepest = 0;
    if (is_list(type)) deepest = depth(type.element, above + 1);
    for (const LayoutMember& member : type.members) deepest = std::max(deepest, depth(member.type, above + 1));
    return depth_[at] = deepest + 1;
  }

  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;
  const Layouts& layouts_;
  std::vector<std::uint32_t> depth_;
};

class Path {
 public:
  Path(const Layouts& layouts, std::vector<std::uint64_t>& steps) : layouts_(layouts), steps_(steps) {}

  // `tail`: elements of the open array at the end of this type.
  void within(TypeIndex index, std::uint64_t offset, std::uint64_t tail) {
    if (offset == 0) return;
    const LayoutType& type = layouts_[index];
    if (is_list(type)) return elements(type.element, type.count, offset, 0);
    if (type.kind == kTypeStruct) return members(type, offset, tail);
    if (is_choice(type)) {
      steps_.push_back(0);
      return within(type.members[0].type, offset, 0);
    }
    if (offset != type.size) throw Refused{"a pointer to a byte within " + type_name(layouts_, index)};
    steps_.push_back(1);  // one past it
  }

  void elements(TypeIndex element, std::uint64_t count, std::uint64_t offset, std::uint64_t tail) {
    const std::uint64_t each = layouts_[element].size;
    if (each == 0) throw Refused{"a pointer beyond an empty object"};
    const std::uint64_t which = tail ? 0 : offset / each;
    if (which > count || (which == count && offset % each)) throw Refused{"a pointer beyond its object"};
    steps_.push_back(which);
    within(element, offset - which * each, tail);
  }

 private:
  void members(const LayoutType& type, std::uint64_t offset, std::uint64_t tail) {
    const int open = open_member(layouts_, type);
    if (open >= 0 && tail && offset >= type.members[open].bit_offset / 8) {
      steps_.push_back(open);
      return elements(layouts_[type.members[open].type].element, tail, offset - type.members[open].bit_offset / 8, 0);
    }
    if (offset == type.size) {
      steps_.push_back(type.members.size());  // one past it
      return;
    }
    for (std::size_t i = type.members.size(); i-- > 0;) {
      const LayoutMember& member = type.members[i];
      const std::uint64_t begin = member.bit_offset / 8, size = layouts_[member.type].size;
      if (member.bit_width || offset < begin || offset - begin > size) continue;
      steps_.push_back(i);
      return within(member.type, offset - begin, 0);
    }
    throw Refused{"a pointer between the members of struct " + type.name};
  }

  const Layouts& layouts_;
  std::vector<std::uint64_t>& steps_;
};

}  // namespace

bool is_integer(const LayoutType& type) {
  switch (type.kind) {
    case kTypeSigned:
    case kTypeUnsigned:
    case kTypeBool:
    case kTypeBits:
    case kTypeChar:
      return true;
    default:
      return false;
  }
}

bool is_list(const LayoutType& type) {
  return type.kind == kTypeArray || type.kind == kTypeVector || type.kind == kTypeComplex;
}

int open_member(const Layouts& layouts, const LayoutType& type) {
  if (type.kind != kTypeStruct || type.members.empty()) return -1;
  const LayoutMember& last = type.members.back();
  const LayoutType& array = layouts[last.type];
  const bool open =
      !last.bit_width && array.kind == kTypeArray && array.count == 0 && layouts[array.element].size > 0;
  return open ? static_cast<int>(type.members.size()) - 1 : -1;
}

void check_layouts(const Layouts& layouts) { LayoutCheck(layouts).all(); }

Shape shape_of(const Layouts& layouts, TypeIndex index, std::uint64_t size) {
  const LayoutType& type = layouts[index];
  if (const int open = open_member(layouts, type); open >= 0 && size >= type.size) {
    const std::uint64_t begin = type.members[open].bit_offset / 8;
    return {1, (size - begin) / layouts[layouts[type.members[open].type].element].size};
  }
  if (type.size == 0 ? size > 0 : size % type.size != 0)
    throw Refused{std::to_string(size) + " bytes are no whole number of " + type_name(layouts, index) + " (" +
                  std::to_string(type.size) + " bytes each)"};
  return {type.size ? size / type.size : 0, 0};
}

std::vector<std::uint64_t> path_to(const Layouts& layouts, TypeIndex type, const Shape& shape, std::uint64_t offset) {
  std::vector<std::uint64_t> steps;
  if (offset) Path(layouts, steps).elements(type, shape.count, offset, shape.tail);
  return steps;
}

std::string type_name(const Layouts& layouts, TypeIndex index) {
  for (std::uint32_t depth = 0; index != kNoType && depth < kDeepest; depth++) {
    const LayoutType& type = layouts[index];
    if (type.kind == kTypeStruct) return "struct " + type.name;
    if (type.kind == kTypeUnion) return "union " + type.name;
    if (type.kind != kTypeArray && type.kind != kTypeVector) return type.name.empty() ? "a value" : type.name;
    index = type.element;
  }
  return "an array";
}

std::string bytes_of(const Layouts& layouts, TypeIndex index) {
  const std::string name = type_name(layouts, index);
  return "bytes of " + name + (name.find(", which ") == std::string::npos ? ", whose meaning is not known" : "");
}

bool is_choice(const LayoutType& type) { return type.kind == kTypeUnion && type.format == kRecordTextOrRoom; }

std::size_t chosen(const LayoutType& type, const unsigned char* bytes) { return bytes[type.size - 1] ? 1 : 0; }

bool plain_union(const Layouts& layouts, const LayoutType& type) {
  if (type.members.empty()) return false;
  const LayoutType& first = layouts[type.members[0].type];
  if (first.kind != kTypeFloat && !is_integer(first)) return false;
  for (const LayoutMember& member : type.members) {
    const LayoutType& other = layouts[member.type];
    if (member.bit_width || other.kind != first.kind || other.size != first.size || other.format != first.format)
      return false;
  }
  return true;
}

}  // namespace shadowib::portable
