#include "libraries/portable/image/convert.h"

#include <gtest/gtest.h>

#include <cstring>

#include "libraries/portable/image/pointee.h"

namespace shadowib::portable {
namespace {

LayoutType scalar(std::uint32_t kind, std::uint64_t size, const char* name = "a number") {
  LayoutType type;
  type.name = name, type.kind = kind, type.size = size;
  if (kind == kTypeFloat) type.format = size == 12 ? kFloatX87 : kFloatIeee;
  return type;
}

// struct { char c; long l; long double d; T* p; } of two architectures.
Layouts layouts(bool big, std::uint64_t word, std::uint64_t align, std::uint64_t extended) {
  Layouts made;
  made.big_endian = big, made.pointer_size = static_cast<std::uint32_t>(word);
  made.types = {scalar(kTypeChar, 1), scalar(kTypeSigned, word, "long"), scalar(kTypeFloat, extended),
                scalar(kTypePointer, word)};
  const std::uint64_t at = word + word, pointer = (at + extended + align - 1) / align * align;
  LayoutType record;
  record.name = "r", record.kind = kTypeStruct, record.size = pointer + word, record.count = 4;
  record.members = {{"c", 0, 0, 0}, {"l", 1, word * 8, 0}, {"d", 2, at * 8, 0}, {"p", 3, pointer * 8, 0}};
  made.types.push_back(record);
  return made;
}

TEST(ConvertTest, StructOfAnotherOrderAndWidth) {
  const Layouts big = layouts(true, 8, 8, 16), small = layouts(false, 4, 4, 12);
  check_layouts(big), check_layouts(small);
  Converter converter(big, small);
  std::vector<unsigned char> from(2 * big[4].size), to(2 * small[4].size);
  from[0] = 'x', from[15] = 5, from[8] = 0;
  from[16] = 0x3f, from[17] = 0xff;  // 1.0 of binary128
  from[39] = 0x77;
  converter.convert(4, 4, from.data(), from.size(), to.data(), to.size());
  EXPECT_EQ(to[0], 'x');
  EXPECT_EQ(to[4], 5);
  EXPECT_EQ(to[8 + 9], 0x3f);  // of the x87 format
  EXPECT_EQ(to[8 + 7], 0x80);
  ASSERT_EQ(converter.pointers.size(), 1U);
  EXPECT_EQ(converter.pointers[0].at, to.data() + 20);
  EXPECT_EQ(converter.pointers[0].old_address, 0x77U);
}

// Whatever the bits are: also those that no arithmetic makes.
TEST(ConvertTest, LongDoublesOfOtherPaddingKeepTheirBits) {
  Layouts wide, narrow;
  wide.pointer_size = 8, narrow.pointer_size = 4;
  wide.types = {scalar(kTypeFloat, 16)}, narrow.types = {scalar(kTypeFloat, 12)};
  wide.types[0].format = narrow.types[0].format = kFloatX87;
  unsigned char from[24], to[32] = {};
  for (unsigned i = 0; i < sizeof from; i++) from[i] = static_cast<unsigned char>(0x3b * i + 1);
  from[12 + 7] = 0, from[12 + 8] = 0xff, from[12 + 9] = 0x3f;  // without the bit before the point
  Converter converter(narrow, wide);
  converter.convert(0, 0, from, sizeof from, to, sizeof to);
  for (unsigned i = 0; i < 2; i++) {
    EXPECT_EQ(std::memcmp(from + 12 * i, to + 16 * i, 10), 0);
    for (unsigned padding = 10; padding < 16; padding++) EXPECT_EQ(to[16 * i + padding], 0);
  }
}

// Zeros and infinities among normal numbers: these go in one step, those one by one.
TEST(ConvertTest, ArraysOfLongDoubles) {
  Layouts big, small;
  big.big_endian = true, big.pointer_size = 8, small.pointer_size = 4;
  big.types = {scalar(kTypeFloat, 16)}, small.types = {scalar(kTypeFloat, 12)};
  const std::vector<unsigned> heads = {0x3fff, 0, 0x4000, 0xbfff, 0x7fff, 0, 0x3fff, 0};  // sign and exponent
  const std::uint64_t count = heads.size();
  std::vector<unsigned char> from(16 * count), there(12 * count), back(16 * count);
  for (std::size_t i = 0; i < count; i++)
    from[16 * i] = static_cast<unsigned char>(heads[i] >> 8), from[16 * i + 1] = static_cast<unsigned char>(heads[i]);
  from[16 * 3 + 15] = 1;  // a bit that is lost
  Converter converter(big, small), other(small, big);
  converter.convert(0, 0, from.data(), from.size(), there.data(), there.size());
  EXPECT_EQ(converter.rounded, 1u);
  for (std::size_t i = 0; i < count; i++) EXPECT_EQ(there[12 * i + 8] | there[12 * i + 9] << 8, heads[i]) << i;
  other.convert(0, 0, there.data(), there.size(), back.data(), back.size());
  from[16 * 3 + 15] = 0;
  EXPECT_EQ(back, from);
}

// Arrays of one width take the short way: it gives the bytes that numbers one by one do.
TEST(ConvertTest, ArraysOfAnotherOrder) {
  for (const std::uint64_t size : {1, 2, 4, 8, 16}) {
    for (const std::uint32_t kind : {kTypeSigned, kTypeUnsigned, kTypeBits, kTypeFloat}) {
      if (kind == kTypeFloat && size == 1) continue;
      Layouts big, small;
      big.big_endian = true, big.pointer_size = small.pointer_size = 8;
      big.types = small.types = {scalar(kind, size)};
      Converter converter(big, small);
      std::vector<unsigned char> from(5 * size), to(5 * size);
      for (std::size_t i = 0; i < from.size(); i++) from[i] = static_cast<unsigned char>(37 * i + 129);
      converter.convert(0, 0, from.data(), from.size(), to.data(), to.size());
      for (std::size_t i = 0; i < from.size(); i++)
        EXPECT_EQ(to[i], from[i / size * size + size - 1 - i % size]) << size << " bytes, kind " << kind;
    }
  }
}

TEST(ConvertTest, LongThatDoesNotFitIsNamed) {
  const Layouts big = layouts(true, 8, 8, 16), small = layouts(false, 4, 4, 12);
  Converter converter(big, small);
  std::vector<unsigned char> from(2 * big[4].size), to(2 * small[4].size);
  from[big[4].size + 8] = 1;
  try {
    converter.convert(4, 4, from.data(), from.size(), to.data(), to.size());
    FAIL();
  } catch (const Refused& refused) {
    EXPECT_EQ(refused.text, "[1].l: 72057594037927936 does not fit long of 32 bits");
  }
}

TEST(ConvertTest, OffsetsOfMembersAndPastTheEnd) {
  const Layouts big = layouts(true, 8, 8, 16), small = layouts(false, 4, 4, 12);
  Converter converter(big, small);
  const std::uint64_t from = 3 * big[4].size, to = 3 * small[4].size;
  EXPECT_EQ(converter.offset_of(4, 4, from, to, 0), 0U);
  EXPECT_EQ(converter.offset_of(4, 4, from, to, from), to);
  EXPECT_EQ(converter.offset_of(4, 4, from, to, big[4].size + 32), small[4].size + 20);
  EXPECT_THROW(converter.offset_of(4, 4, from, to, 9), Refused);
  EXPECT_THROW(converter.offset_of(4, 4, from, to, from + 8), Refused);
  EXPECT_THROW(converter.offset_of(4, 4, from, small[4].size, big[4].size * 2), Refused);
}

// struct { int a[3]; double d; float f[2]; } where a double begins at each multiple of `align`.
Layouts neighbours(std::uint64_t align) {
  Layouts made;
  LayoutType ints = scalar(kTypeArray, 12), floats = scalar(kTypeArray, 8), record = scalar(kTypeStruct, 0, "n");
  ints.element = 0, ints.count = 3, floats.element = 2, floats.count = 2;
  const std::uint64_t second = (12 + align - 1) / align * align;
  record.size = second + 16, record.count = 3;
  record.members = {{"a", 3, 0, 0}, {"d", 1, second * 8, 0}, {"f", 4, second * 8 + 64, 0}};
  made.types = {scalar(kTypeSigned, 4, "int"),
                scalar(kTypeFloat, 8, "double"),
                scalar(kTypeFloat, 4, "float"),
                ints,
                floats,
                record};
  return made;
}

TEST(ConvertTest, EndOfOneMemberAndBeginOfTheNext) {
  const Layouts packed = neighbours(4), padded = neighbours(8);
  Converter converter(packed, padded);
  EXPECT_EQ(converter.offset_of(5, 5, 56, 64, 12, 0), 12U);  // int*: past the end of a
  EXPECT_EQ(converter.offset_of(5, 5, 56, 64, 12, 1), 16U);  // double*: d
  EXPECT_EQ(converter.offset_of(5, 5, 56, 64, 12), 16U);
  EXPECT_EQ(converter.offset_of(5, 5, 56, 64, 28 + 12, 0), 44U);  // of the second struct
  EXPECT_EQ(converter.offset_of(5, 5, 56, 64, 20, 1), 24U);       // double*: past d, where f begins
  EXPECT_EQ(converter.offset_of(5, 5, 56, 64, 28, 2), 32U);       // float*: past f, where the second begins
  EXPECT_EQ(converter.offset_of(5, 5, 56, 64, 56, 5), 64U);
}

TEST(ConvertTest, EndOfCharactersBeforeAPaddedNumber) {
  Layouts packed = neighbours(4), padded = neighbours(8);
  for (Layouts* layouts : {&packed, &padded}) layouts->types[0] = scalar(kTypeChar, 1), layouts->types[3].count = 12;
  Converter converter(packed, padded);
  EXPECT_EQ(converter.offset_of(5, 5, 56, 64, 12, 0), 12U);
  EXPECT_EQ(converter.offset_of(5, 5, 56, 64, 12, 1), 16U);
}

TEST(ConvertTest, WhatPointersLeadTo) {
  Layouts types = neighbours(8);
  const Shape shape = shape_of(types, 5, 64);
  EXPECT_TRUE(leads_to(types, 5, shape, 32, 5));
  EXPECT_TRUE(leads_to(types, 5, shape, 32 + 8, 0));
  EXPECT_TRUE(leads_to(types, 5, shape, 32, 3));
  EXPECT_TRUE(leads_to(types, 5, shape, 12, 0));
  EXPECT_TRUE(leads_to(types, 5, shape, 64, 1));
  EXPECT_TRUE(leads_to(types, 5, shape, 4, kNoType));
  EXPECT_FALSE(leads_to(types, 5, shape, 4, 1));
  EXPECT_FALSE(leads_to(types, 5, shape, 16, 0));
  EXPECT_FALSE(leads_to(types, 5, shape, 16, 5));
  EXPECT_FALSE(leads_to(types, 4, shape_of(types, 4, 80), 0, 5));
  LayoutType begin = types.types[5];  // { int a[3]; double d; } begins as the whole does
  begin.members.pop_back(), begin.size = 24, begin.count = 2;
  types.types.push_back(begin);
  EXPECT_TRUE(leads_to(types, 5, shape, 32, 6));
}

TEST(ConvertTest, LayoutsThatAreNoneAreRefused) {
  auto refused = [](auto&& change) {
    Layouts made = layouts(false, 8, 8, 16);
    change(made);
    EXPECT_THROW(check_layouts(made), Refused);
  };
  refused([](Layouts& l) { l.types[4].members[1].type = 9; });
  refused([](Layouts& l) { l.types[4].members[1].type = 4; });
  refused([](Layouts& l) { l.types[4].members[1].bit_offset = 4; });
  refused([](Layouts& l) { l.types[4].members[3].bit_offset = ~std::uint64_t{7}; });
  refused([](Layouts& l) { l.types[4].members[2].bit_offset = 0; });
  refused([](Layouts& l) { l.types[3].size = 4; });
  refused([](Layouts& l) { l.types[1].size = 17; });
  refused(
      [](Layouts& l) { l.types[1].kind = kTypeArray, l.types[1].element = 0, l.types[1].count = ~std::uint64_t{0}; });
}

TEST(ConvertTest, WholeNumberOfUnknownSign) {
  Layouts from = layouts(false, 8, 8, 16), to = layouts(false, 4, 4, 12);
  from.types[1].kind = to.types[1].kind = kTypeBits;
  Converter converter(from, to);
  unsigned char wide[8] = {7}, narrow[4] = {};
  converter.convert(1, 1, wide, 8, narrow, 4);
  EXPECT_EQ(narrow[0], 7);
  wide[3] = 0x80;
  EXPECT_THROW(converter.convert(1, 1, wide, 8, narrow, 4), Refused);
}

}  // namespace
}  // namespace shadowib::portable
