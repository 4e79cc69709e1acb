// Types as one architecture lays them out: what an image says of its own, and what a program's tables say of it.
//
// Threads: none of these is shared between threads. Errors: `Refused` is thrown; the caller at the C ABI catches it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libraries/portable/tables.h"

namespace shadowib::portable {

// Says why something cannot be done, in words for the program's user.
struct Refused {
  std::string text;
};

using TypeIndex = std::uint32_t;
constexpr TypeIndex kNoType = ~TypeIndex{0};

struct LayoutMember {
  std::string name;
  TypeIndex type = kNoType;
  std::uint64_t bit_offset = 0;
  std::uint64_t bit_width = 0;  // 0: no bit-field
};

struct LayoutType {
  std::string name;
  std::uint32_t kind = kTypeUnknown;
  std::uint32_t format = kFloatNone;
  std::uint64_t size = 0;  // bytes
  std::uint64_t count = 0;
  TypeIndex element = kNoType;
  std::vector<LayoutMember> members;
};

struct Layouts {
  bool big_endian = false;
  std::uint32_t pointer_size = 8;
  std::vector<LayoutType> types;

  const LayoutType& operator[](TypeIndex index) const { return types[index]; }
};

// An object's elements: `count` of its type, and `tail` elements of the array at the end of a struct that has no
// count of its own.
struct Shape {
  std::uint64_t count = 0;
  std::uint64_t tail = 0;
};

constexpr std::uint32_t kDeepest = 64;  // structs and arrays within each other

bool is_integer(const LayoutType& type);
bool is_list(const LayoutType& type);  // array, vector, complex
// A struct whose last member is an array without a count: its index, else -1.
int open_member(const Layouts& layouts, const LayoutType& type);

// Checks what all others rely on: indices are of the table, parts lie within their wholes and do not overlap, no type
// contains itself. Throws Refused.
void check_layouts(const Layouts& layouts);

// The elements of an object of `size` bytes. Throws Refused if they are no whole number.
Shape shape_of(const Layouts& layouts, TypeIndex type, std::uint64_t size);

// The way from the begin of an object to byte `offset`: indices of elements and members. Empty: the begin. The last
// index may be a count: one past the end. Throws Refused if the offset is within a number, or beyond the object.
std::vector<std::uint64_t> path_to(const Layouts& layouts, TypeIndex type, const Shape& shape, std::uint64_t offset);

// A short name for messages: "struct node", "int", "double[]".
std::string type_name(const Layouts& layouts, TypeIndex type);

// The union of std::string: its last byte tells which of its two members it holds.
bool is_choice(const LayoutType& type);
std::size_t chosen(const LayoutType& type, const unsigned char* bytes);

// Why a type without a meaning is refused: "bytes of union u, whose meaning is not known". Names of classes tell it.
std::string bytes_of(const Layouts& layouts, TypeIndex index);

// A union that is converted as if it were its first member: all are numbers of one kind and size.
bool plain_union(const Layouts& layouts, const LayoutType& type);

}  // namespace shadowib::portable
