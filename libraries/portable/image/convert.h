// Values of one architecture's layout into another's. Knows both layouts; goes through no third one.
//
// Types are compared by structure: kinds, and members by name. Never gives another value: what does not fit throws
// Refused and names the element. A rounded float is counted.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libraries/portable/image/layout.h"

namespace shadowib::portable {

// A pointer to be written, once what it leads to has an address.
struct PointerPlace {
  unsigned char* at;
  std::uint64_t old_address;
  TypeIndex element;     // in the old layout: what it leads to, or kNoType
  std::uint32_t object;  // Converter::object at that time
};

class Converter {
 public:
  // Both must have passed check_layouts, and outlive the converter.
  Converter(const Layouts& from, const Layouts& to) : from_(from), to_(to) {}

  // Bytes of an object in the new layout, of `size` bytes in the old one.
  std::uint64_t new_size(TypeIndex from, TypeIndex to, std::uint64_t size);

  // Converts an object: `from_bytes[0..from_size)` into `to_bytes[0..to_size)`, which the caller has zeroed. Pointers
  // are added to `pointers`, and their places stay zero. A Refused begins behind the name of the object.
  void convert(TypeIndex from, TypeIndex to, const unsigned char* from_bytes, std::uint64_t from_size,
               unsigned char* to_bytes, std::uint64_t to_size);

  // The new offset of what a pointer to `element` finds at `offset` of an object of `from_size` bytes; at most
  // `to_size`. Throws Refused.
  std::uint64_t offset_of(TypeIndex from, TypeIndex to, std::uint64_t from_size, std::uint64_t to_size,
                          std::uint64_t offset, TypeIndex element = kNoType);

  std::deque<PointerPlace> pointers;  // grows without a copy
  std::uint32_t object = 0;           // the caller's number of what is converted
  std::uint64_t rounded = 0;          // floats that lost digits

 private:
  // How one type becomes another. Built once for each pair of types.
  struct Pair {
    enum What : std::uint8_t { kCopy, kSwap, kWhole, kReal, kPointer, kList, kStruct, kChoice, kZeros };
    struct Part {
      Pair* pair;
      std::uint64_t from_bit, from_width, to_bit, to_width;
      std::string name;
    };
    enum Quads : std::uint8_t { kNone, kFromQuad, kToQuad, kFromDoubles };
    What what = kZeros;
    Quads quads = kNone;  // of kReal: between the long doubles of x86 and of others
    TypeIndex from, to;
    std::uint64_t from_size = 0, to_size = 0, count = 0;
    bool from_signed = false, to_signed = false, unknown_sign = false;
    Pair* element = nullptr;
    std::vector<Part> parts;             // of the new struct, in its order
    std::vector<std::size_t> new_index;  // of each old member
  };

  Pair& pair(TypeIndex from, TypeIndex to);
  void build(Pair& pair, const LayoutType& from, const LayoutType& to);
  void build_struct(Pair& pair, const LayoutType& from, const LayoutType& to);
  bool copies(const Pair& pair, const LayoutType& from, const LayoutType& to) const;
  bool swaps(const Pair& pair, const LayoutType& from, const LayoutType& to) const;
  void run(const Pair& pair, const unsigned char* from, unsigned char* to);
  void member(const Pair::Part& part, const unsigned char* from, unsigned char* to);
  void list(const Pair& element, std::uint64_t count, const unsigned char* from, unsigned char* to);
  void whole(const Pair& pair, const unsigned char* from, std::uint64_t from_bit, std::uint64_t from_width,
             unsigned char* to, std::uint64_t to_bit, std::uint64_t to_width);
  std::uint64_t quads(const Pair& element, std::uint64_t count, const unsigned char* from, unsigned char* to);
  void real(const Pair& pair, const unsigned char* from, unsigned char* to);
  [[noreturn]] void differ(TypeIndex from, TypeIndex to, const std::string& how) const;

  const Layouts& from_;
  const Layouts& to_;
  std::map<std::pair<TypeIndex, TypeIndex>, std::unique_ptr<Pair>> pairs_;
};

}  // namespace shadowib::portable
