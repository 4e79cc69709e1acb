// Goes through the values of an object, in the order of its type.
#pragma once

#include <cstdint>
#include <string>

#include "libraries/portable/image/layout.h"

namespace shadowib::portable {

class Walk {
 public:
  explicit Walk(const Layouts& layouts) : layouts_(layouts) {}
  virtual ~Walk() = default;
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;

  // Bytes of an object that passed shape_of.
  void object(TypeIndex type, const unsigned char* bytes, std::uint64_t size) {
    const Shape shape = shape_of(layouts_, type, size);
    list(type, shape.count, bytes, shape.count != 1);
    if (!shape.tail) return;
    const LayoutMember& last = layouts_[type].members.back();
    enter(last.name, 0);
    list(layouts_[last.type].element, shape.tail, bytes + last.bit_offset / 8, true);
    leave();
  }

 protected:
  // One value: a number, pointer, union, or bytes without a meaning. `width` 0: no bit-field, whole bytes.
  virtual void value(TypeIndex type, const unsigned char* at, std::uint64_t bit, std::uint64_t width) = 0;
  // False: what is within this type is passed over.
  virtual bool wanted(TypeIndex) { return true; }
  virtual void enter(const std::string& /*member*/, std::uint64_t /*element*/) {}
  virtual void leave() {}

  const Layouts& layouts_;

 private:
  void list(TypeIndex element, std::uint64_t count, const unsigned char* bytes, bool named) {
    const std::uint64_t size = layouts_[element].size;
    if (size == 0 || !wanted(element)) return;
    for (std::uint64_t i = 0; i < count; i++) {
      if (named) enter("", i);
      one(element, bytes + i * size);
      if (named) leave();
    }
  }

  void one(TypeIndex index, const unsigned char* bytes) {
    const LayoutType& type = layouts_[index];
    if (is_list(type)) return list(type.element, type.count, bytes, true);
    if (is_choice(type)) {
      const LayoutMember& member = type.members[chosen(type, bytes)];
      if (!wanted(member.type)) return;
      enter(member.name, 0);
      one(member.type, bytes);
      return leave();
    }
    if (type.kind != kTypeStruct) return value(index, bytes, 0, 0);
    for (const LayoutMember& member : type.members) {
      if (layouts_[member.type].size == 0 || !wanted(member.type)) continue;
      enter(member.name, 0);
      if (member.bit_width) {
        value(member.type, bytes, member.bit_offset, member.bit_width);
      } else {
        one(member.type, bytes + member.bit_offset / 8);
      }
      leave();
    }
  }
};

}  // namespace shadowib::portable
