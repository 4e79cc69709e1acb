#include "libraries/portable/image/pointee.h"

namespace shadowib::portable {
namespace {

// Types of a damaged image may be nested so that going through them takes for ever.
constexpr unsigned kMostSteps = 20000;

// Whether a pointer to this type, which is no list, says something about the memory.
bool tells(const LayoutType& type) {
  switch (type.kind) {
    case kTypeUnknown:
    case kTypeVoid:
    case kTypeChar:
    case kTypeFunction:
    case kTypeOpaque:
    case kTypeUnion:  // its bytes are looked at where they lie
      return false;
    default:
      return true;
  }
}

class Pointee {
 public:
  Pointee(const Layouts& layouts, TypeIndex type, const Shape& shape)
      : layouts_(layouts), type_(type), shape_(shape) {}

  // A value of the type `wanted` begins at `offset`, or anything that is looked at where it lies.
  bool begins(std::uint64_t offset, TypeIndex wanted) {
    const std::uint64_t each = layouts_[type_].size;
    if (shape_.tail) return begins_in(type_, offset, wanted, shape_.tail);
    return each && offset / each < shape_.count && begins_in(type_, offset % each, wanted, 0);
  }

  // A value of the type `wanted` ends at `offset`. Then `steps` are the way to its end.
  bool ends(std::uint64_t offset, TypeIndex wanted, std::vector<std::uint64_t>& steps) {
    if (offset == 0) return false;
    if (!shape_.tail) return ends_in_list(type_, shape_.count, offset, wanted, steps);
    steps.push_back(0);
    return ends_in(type_, offset, wanted, shape_.tail, steps);
  }

  // All numbers and pointers of the struct `wanted` lie at `offset`, as far as the object goes.
  bool begins_as(std::uint64_t offset, TypeIndex wanted, std::uint64_t end) {
    if (offset >= end) return true;
    if (!step()) return false;
    const LayoutType& type = layouts_[wanted];
    if (is_list(type)) {
      const std::uint64_t each = layouts_[type.element].size;
      for (std::uint64_t i = 0; each && i < type.count; i++)
        if (!begins_as(offset + i * each, type.element, end)) return false;
      return true;
    }
    if (type.kind != kTypeStruct) return !tells(type) || begins(offset, wanted);
    for (const LayoutMember& member : type.members)
      if (member.bit_width || !begins_as(offset + member.bit_offset / 8, member.type, end)) return false;
    return true;
  }

 private:
  bool step() { return ++steps_ < kMostSteps; }

  // Values of both types have one meaning. All pointers are the same.
  bool same(TypeIndex a, TypeIndex b) {
    if (a == b) return true;
    if (!step()) return false;
    const LayoutType &one = layouts_[a], &two = layouts_[b];
    if (is_integer(one) && is_integer(two)) return one.size == two.size;
    if (one.kind != two.kind || one.size != two.size || one.format != two.format) return false;
    if (is_list(one)) return one.count == two.count && same(one.element, two.element);
    if (one.kind != kTypeStruct && one.kind != kTypeUnion) return true;
    if (one.members.size() != two.members.size()) return false;
    for (std::size_t i = 0; i < one.members.size(); i++) {
      const LayoutMember &first = one.members[i], &second = two.members[i];
      if (first.bit_offset != second.bit_offset || first.bit_width != second.bit_width ||
          !same(first.type, second.type))
        return false;
    }
    return true;
  }

  bool begins_in(TypeIndex at, std::uint64_t offset, TypeIndex wanted, std::uint64_t tail) {
    const LayoutType& type = layouts_[at];
    if (!step()) return false;
    if (offset == 0 && same(at, wanted)) return true;
    if (is_choice(type)) return begins_in(type.members[0].type, offset, wanted, 0);
    if (type.kind == kTypeUnknown || (type.kind == kTypeUnion && !plain_union(layouts_, type))) return true;
    if (type.kind == kTypeUnion) return begins_in(type.members[0].type, offset, wanted, 0);
    if (is_list(type)) {
      const std::uint64_t each = layouts_[type.element].size;
      return each && offset / each < type.count && begins_in(type.element, offset % each, wanted, 0);
    }
    if (type.kind != kTypeStruct) return false;
    if (tail) {
      const LayoutMember& last = type.members.back();
      const TypeIndex element = layouts_[last.type].element;
      const std::uint64_t each = layouts_[element].size, begin = last.bit_offset / 8;
      if (offset >= begin)
        return (offset - begin) / each < tail && begins_in(element, (offset - begin) % each, wanted, 0);
    }
    for (const LayoutMember& member : type.members) {
      const std::uint64_t begin = member.bit_offset / 8;
      if (!member.bit_width && offset >= begin && offset - begin < layouts_[member.type].size)
        return begins_in(member.type, offset - begin, wanted, 0);
    }
    return false;
  }

  bool ends_in_list(TypeIndex element, std::uint64_t count, std::uint64_t offset, TypeIndex wanted,
                    std::vector<std::uint64_t>& steps) {
    const std::uint64_t each = layouts_[element].size;
    if (each == 0 || (offset - 1) / each >= count) return false;
    const std::uint64_t which = (offset - 1) / each, inner = offset - which * each;
    if (inner == each && same(innermost_type(layouts_, element), wanted)) {
      steps.push_back(which + 1);
      return true;
    }
    steps.push_back(which);
    return ends_in(element, inner, wanted, 0, steps);
  }

  bool ends_in(TypeIndex at, std::uint64_t offset, TypeIndex wanted, std::uint64_t tail,
               std::vector<std::uint64_t>& steps) {
    const LayoutType& type = layouts_[at];
    if (!step()) return false;
    if (is_list(type)) return ends_in_list(type.element, type.count, offset, wanted, steps);
    if (offset == type.size && same(at, wanted)) {
      steps.push_back(type.kind == kTypeStruct ? type.members.size() : 1);
      return true;
    }
    if (is_choice(type)) {
      steps.push_back(0);
      return ends_in(type.members[0].type, offset, wanted, 0, steps);
    }
    if (type.kind != kTypeStruct) return false;
    for (std::size_t i = type.members.size(); i-- > 0;) {
      const LayoutMember& member = type.members[i];
      const std::uint64_t begin = member.bit_offset / 8;
      const bool open = tail && i + 1 == type.members.size();
      if (member.bit_width || offset <= begin || (!open && offset - begin > layouts_[member.type].size)) continue;
      steps.push_back(i);
      if (open) return ends_in_list(layouts_[member.type].element, tail, offset - begin, wanted, steps);
      return ends_in(member.type, offset - begin, wanted, 0, steps);
    }
    return false;
  }

  const Layouts& layouts_;
  TypeIndex type_;
  Shape shape_;
  unsigned steps_ = 0;
};

}  // namespace

TypeIndex innermost_type(const Layouts& layouts, TypeIndex type) {
  for (std::uint32_t depth = 0; depth < kDeepest && is_list(layouts[type]); depth++) type = layouts[type].element;
  return type;
}

std::vector<std::uint64_t> way_to(const Layouts& layouts, TypeIndex type, const Shape& shape, std::uint64_t offset,
                                  TypeIndex element) {
  if (offset == 0 || element == kNoType) return path_to(layouts, type, shape, offset);
  const TypeIndex wanted = innermost_type(layouts, element);
  Pointee pointee(layouts, type, shape);
  std::vector<std::uint64_t> steps;
  const bool known = tells(layouts[wanted]) || layouts[wanted].kind == kTypeChar;
  if (known && !pointee.begins(offset, wanted) && pointee.ends(offset, wanted, steps)) return steps;
  return path_to(layouts, type, shape, offset);
}

bool leads_to(const Layouts& layouts, TypeIndex type, const Shape& shape, std::uint64_t offset, TypeIndex element) {
  if (element == kNoType) return true;
  const TypeIndex wanted = innermost_type(layouts, element);
  if (!tells(layouts[wanted])) return true;
  const LayoutType& whole = layouts[type];
  std::uint64_t end = shape.count * whole.size;
  if (shape.tail) {
    const LayoutMember& last = whole.members.back();
    end = last.bit_offset / 8 + shape.tail * layouts[layouts[last.type].element].size;
  }
  Pointee pointee(layouts, type, shape);
  std::vector<std::uint64_t> steps;
  return pointee.begins(offset, wanted) || pointee.ends(offset, wanted, steps) ||
         pointee.begins_as(offset, wanted, end);
}

}  // namespace shadowib::portable
