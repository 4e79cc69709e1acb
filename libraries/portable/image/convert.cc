#include "libraries/portable/image/convert.h"

#include <algorithm>
#include <cstring>

#include "libraries/portable/image/numbers.h"
#include "libraries/portable/image/pointee.h"
#include "libraries/portable/image/words.h"

namespace shadowib::portable {
namespace {

// What does not fit, and the way to it from the object's begin.
struct Misfit {
  std::string path, text;
};

bool all_zero(const unsigned char* bytes, std::uint64_t count) {
  return std::all_of(bytes, bytes + count, [](unsigned char byte) { return byte == 0; });
}

template <typename Number>
void swap_each(const unsigned char* from, unsigned char* to, std::uint64_t count, Number (*swapped)(Number)) {
  for (std::uint64_t i = 0; i < count; i++) {
    Number value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    value = swapped(value);
    std::memcpy(to + i * sizeof value, &value, sizeof value);
  }
}

void swap_all(const unsigned char* from, unsigned char* to, std::uint64_t count, std::uint64_t bytes) {
  switch (bytes) {
    case 2:
      return swap_each<std::uint16_t>(from, to, count, [](std::uint16_t value) { return __builtin_bswap16(value); });
    case 4:
      return swap_each<std::uint32_t>(from, to, count, [](std::uint32_t value) { return __builtin_bswap32(value); });
    case 8:
      return swap_each<std::uint64_t>(from, to, count, [](std::uint64_t value) { return __builtin_bswap64(value); });
    default:  // 16
      for (std::uint64_t i = 0; i < count; i++, from += 16, to += 16) std::reverse_copy(from, from + 16, to);
  }
}

// Kinds that hold the same values, whatever their widths.
bool alike(std::uint32_t a, std::uint32_t b) {
  auto number = [](std::uint32_t kind) { return kind == kTypeSigned || kind == kTypeUnsigned || kind == kTypeBits; };
  return a == b || (number(a) && number(b));
}

}  // namespace

void Converter::differ(TypeIndex from, TypeIndex to, const std::string& how) const {
  throw Refused{type_name(from_, from) + " of the image is not " + type_name(to_, to) + " of the program: " + how};
}

Converter::Pair& Converter::pair(TypeIndex from, TypeIndex to) {
  std::unique_ptr<Pair>& made = pairs_[{from, to}];
  if (!made) {
    made = std::make_unique<Pair>();
    Pair& fresh = *made;
    fresh.from = from, fresh.to = to;
    fresh.from_size = from_[from].size, fresh.to_size = to_[to].size;
    build(fresh, from_[from], to_[to]);
    if (copies(fresh, from_[from], to_[to])) fresh.what = Pair::kCopy;
    if (swaps(fresh, from_[from], to_[to])) fresh.what = Pair::kSwap;
  }
  return *made;
}

void Converter::build(Pair& made, const LayoutType& from, const LayoutType& to) {
  if (!alike(from.kind, to.kind)) differ(made.from, made.to, "another kind of type");
  if (is_integer(from)) {
    made.what = Pair::kWhole;
    made.from_signed = from.kind == kTypeSigned || (from.kind == kTypeBits && to.kind == kTypeSigned);
    made.to_signed = to.kind == kTypeSigned || (to.kind == kTypeBits && from.kind == kTypeSigned);
    made.unknown_sign = from.kind == kTypeBits && to.kind == kTypeBits;
  } else if (from.kind == kTypeFloat) {
    made.what = Pair::kReal;
    const auto is_quad = [](const LayoutType& type) { return type.format == kFloatIeee && type.size == 16; };
    if (is_quad(from) && to.format == kFloatX87) made.quads = Pair::kFromQuad;
    if (from.format == kFloatX87 && is_quad(to)) made.quads = Pair::kToQuad;
    if (from.format == kFloatDoubleDouble && to.format == kFloatX87) made.quads = Pair::kFromDoubles;
  } else if (from.kind == kTypePointer) {
    made.what = Pair::kPointer;
  } else if (is_list(from)) {
    if (from.count != to.count) differ(made.from, made.to, "another number of elements");
    made.what = Pair::kList;
    made.count = from.count;
    made.element = &pair(from.element, to.element);
  } else if (from.kind == kTypeStruct) {
    made.what = Pair::kStruct;
    build_struct(made, from, to);
  } else if (is_choice(from) || is_choice(to)) {
    if (!is_choice(from) || !is_choice(to)) differ(made.from, made.to, "another kind of union");
    made.what = Pair::kChoice;
    build_struct(made, from, to);
  } else if (from.kind == kTypeUnion && plain_union(from_, from) && plain_union(to_, to)) {
    Pair& first = pair(from.members[0].type, to.members[0].type);
    made.what = Pair::kStruct;
    made.parts.push_back({&first, 0, 0, 0, 0, from.members[0].name});
  }
}

void Converter::build_struct(Pair& made, const LayoutType& from, const LayoutType& to) {
  if (from.members.size() != to.members.size()) differ(made.from, made.to, "another number of members");
  made.new_index.resize(from.members.size());
  for (std::size_t i = 0; i < to.members.size(); i++) {
    const LayoutMember& member = to.members[i];
    std::size_t j = i;  // members without names go by their order
    if (from.members[j].name != member.name) {
      for (j = 0; j < from.members.size() && (member.name.empty() || from.members[j].name != member.name);) j++;
      if (j == from.members.size()) differ(made.from, made.to, "no member " + member.name);
    }
    const LayoutMember& old = from.members[j];
    if (!old.bit_width != !member.bit_width) differ(made.from, made.to, "a bit-field");
    Pair& part = pair(old.type, member.type);
    made.parts.push_back({&part, old.bit_offset, old.bit_width, member.bit_offset, member.bit_width, member.name});
    made.new_index[j] = i;
  }
}

// Equal bytes mean equal values.
bool Converter::copies(const Pair& made, const LayoutType& from, const LayoutType& to) const {
  if (from.size != to.size) return false;
  const bool same_order = from_.big_endian == to_.big_endian;
  switch (made.what) {
    case Pair::kWhole:
      return (same_order || from.size == 1) && (made.from_signed == made.to_signed);
    case Pair::kReal:
      return same_order && from.format == to.format;
    case Pair::kList:
      return made.element->what == Pair::kCopy && from_[from.element].size == to_[to.element].size;
    case Pair::kStruct:
    case Pair::kChoice:
      return same_order && std::all_of(made.parts.begin(), made.parts.end(), [](const Pair::Part& part) {
               return part.pair->what == Pair::kCopy && part.from_bit == part.to_bit &&
                      part.from_width == part.to_width;
             });
    default:
      return from.size == 0;
  }
}

// The bytes in the other order mean equal values.
bool Converter::swaps(const Pair& made, const LayoutType& from, const LayoutType& to) const {
  if (from.size != to.size || from_.big_endian == to_.big_endian) return false;
  if (from.size != 2 && from.size != 4 && from.size != 8 && from.size != 16) return false;
  if (made.what == Pair::kWhole) return made.from_signed == made.to_signed;
  return made.what == Pair::kReal && from.format == kFloatIeee && to.format == kFloatIeee;
}

std::uint64_t Converter::new_size(TypeIndex from, TypeIndex to, std::uint64_t size) {
  const Shape shape = shape_of(from_, from, size);
  const LayoutType& type = to_[to];
  const int open = open_member(to_, type);
  if (shape.tail && open < 0) differ(from, to, "no array at its end");
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(shape.count, type.size, &bytes)) differ(from, to, "too large");
  if (shape.tail) {
    const LayoutMember& last = type.members[open];
    std::uint64_t tail = 0;
    if (__builtin_mul_overflow(shape.tail, to_[to_[last.type].element].size, &tail) ||
        __builtin_add_overflow(tail, last.bit_offset / 8, &tail))
      differ(from, to, "too large");
    bytes = std::max(bytes, tail);
  }
  return bytes;
}

void Converter::convert(TypeIndex from, TypeIndex to, const unsigned char* from_bytes, std::uint64_t from_size,
                        unsigned char* to_bytes, std::uint64_t to_size) {
  try {
    if (new_size(from, to, from_size) > to_size) differ(from, to, "more bytes than there is room for");
    const Shape shape = shape_of(from_, from, from_size);
    list(pair(from, to), shape.count, from_bytes, to_bytes);
    if (shape.tail) {
      const LayoutMember& old = from_[from].members[open_member(from_, from_[from])];
      const LayoutMember& now = to_[to].members[open_member(to_, to_[to])];
      list(pair(from_[old.type].element, to_[now.type].element), shape.tail, from_bytes + old.bit_offset / 8,
           to_bytes + now.bit_offset / 8);
    }
  } catch (const Misfit& misfit) {
    throw Refused{misfit.path + ": " + misfit.text};
  } catch (const Refused& refused) {
    throw Refused{": " + refused.text};
  }
}

void Converter::list(const Pair& element, std::uint64_t count, const unsigned char* from, unsigned char* to) {
  if (element.from_size == 0 || count == 0) return;
  if (element.what == Pair::kCopy) {
    std::memcpy(to, from, count * element.from_size);
    return;
  }
  if (element.what == Pair::kSwap) return swap_all(from, to, count, element.from_size);
  for (std::uint64_t i = 0; i < count; i++) {
    i += quads(element, count - i, from + i * element.from_size, to + i * element.to_size);
    if (i == count) return;
    try {
      run(element, from + i * element.from_size, to + i * element.to_size);
    } catch (Misfit& misfit) {
      if (count > 1) misfit.path = "[" + std::to_string(i) + "]" + misfit.path;
      throw;
    }
  }
}

void Converter::run(const Pair& made, const unsigned char* from, unsigned char* to) {
  switch (made.what) {
    case Pair::kCopy:
      std::memcpy(to, from, made.from_size);
      break;
    case Pair::kSwap:
      swap_all(from, to, 1, made.from_size);
      break;
    case Pair::kWhole:
      whole(made, from, 0, made.from_size * 8, to, 0, made.to_size * 8);
      break;
    case Pair::kReal:
      real(made, from, to);
      break;
    case Pair::kPointer: {
      const std::uint64_t address =
          made.from_size == 8 ? load_word(from, 8, from_.big_endian) : load_word(from, 4, from_.big_endian);
      if (address) pointers.push_back({to, address, from_[made.from].element, object});
      break;
    }
    case Pair::kList:
      list(*made.element, made.count, from, to);
      break;
    case Pair::kStruct:
      for (const Pair::Part& part : made.parts) member(part, from, to);
      break;
    case Pair::kChoice: {
      const std::size_t which = chosen(from_[made.from], from);
      member(made.parts[which], from, to);
      if (which == 1) to[made.to_size - 1] = 0xff;
      break;
    }
    case Pair::kZeros:
      if (!all_zero(from, made.from_size)) throw Misfit{"", bytes_of(from_, made.from)};
      break;
  }
}

void Converter::member(const Pair::Part& part, const unsigned char* from, unsigned char* to) {
  try {
    if (part.from_width) {
      whole(*part.pair, from, part.from_bit, part.from_width, to, part.to_bit, part.to_width);
    } else {
      run(*part.pair, from + part.from_bit / 8, to + part.to_bit / 8);
    }
  } catch (Misfit& misfit) {
    misfit.path = "." + part.name + misfit.path;
    throw;
  }
}

void Converter::whole(const Pair& made, const unsigned char* from, std::uint64_t from_bit, std::uint64_t from_width,
                      unsigned char* to, std::uint64_t to_bit, std::uint64_t to_width) {
  const bool with_sign = made.from_signed || made.unknown_sign;
  const Whole value = load_whole(from, from_bit, from_width, with_sign, from_.big_endian);
  if (made.unknown_sign && from_width != to_width && (value.negative || !whole_fits(value, to_width, true)))
    throw Misfit{"", to_text(value) + " may have a sign or not, and becomes another width"};
  if (!whole_fits(value, to_width, made.to_signed || made.unknown_sign))
    throw Misfit{"", to_text(value) + " does not fit " + type_name(to_, made.to) + " of " + std::to_string(to_width) +
                         " bits"};
  store_whole(to, to_bit, to_width, to_.big_endian, value);
}

// Returns how many of the elements it has converted.
std::uint64_t Converter::quads(const Pair& element, std::uint64_t count, const unsigned char* from,
                               unsigned char* to) {
  switch (element.quads) {
    case Pair::kFromQuad:
      return quads_to_x87(from, from_.big_endian, to, element.to_size, count, &rounded);
    case Pair::kToQuad:
      return x87_to_quads(from, element.from_size, to, to_.big_endian, count);
    case Pair::kFromDoubles:
      return doubles_to_x87(from, from_.big_endian, to, element.to_size, count);
    case Pair::kNone:
      break;
  }
  return 0;
}

void Converter::real(const Pair& made, const unsigned char* from, unsigned char* to) {
  const LayoutType &old = from_[made.from], &now = to_[made.to];
  if (quads(made, 1, from, to) == 1) return;
  if (old.format == kFloatX87 && now.format == kFloatX87) {
    std::memcpy(to, from, kX87Bytes);  // other padding
    return;
  }
  const Real value = load_real(from, old.size, old.format, from_.big_endian);
  const Stored stored = store_real(to, now.size, now.format, to_.big_endian, value);
  if (stored == Stored::kTooLarge) throw Misfit{"", to_text(value) + " does not fit " + type_name(to_, made.to)};
  rounded += stored == Stored::kRounded;
}

std::uint64_t Converter::offset_of(TypeIndex from, TypeIndex to, std::uint64_t from_size, std::uint64_t to_size,
                                   std::uint64_t offset, TypeIndex element) {
  const std::vector<std::uint64_t> steps = way_to(from_, from, shape_of(from_, from, from_size), offset, element);
  std::uint64_t at = 0;
  if (!steps.empty() && __builtin_mul_overflow(steps[0], to_[to].size, &at)) differ(from, to, "too large");
  TypeIndex old = from, now = to;
  for (std::size_t i = 1; i < steps.size(); i++) {
    const LayoutType &type = from_[old], &new_type = to_[now];
    std::uint64_t part = 0;
    if (is_list(type)) {
      if (!is_list(new_type) || __builtin_mul_overflow(steps[i], to_[new_type.element].size, &part))
        differ(old, now, "another kind of type");
      old = type.element, now = new_type.element;
    } else if ((type.kind == kTypeStruct || is_choice(type)) && steps[i] < type.members.size()) {
      const LayoutMember& member = new_type.members.at(pair(old, now).new_index.at(steps[i]));
      part = member.bit_offset / 8;
      old = type.members[steps[i]].type, now = member.type;
    } else {
      part = new_type.size;  // one past it
    }
    if (__builtin_add_overflow(at, part, &at)) differ(from, to, "too large");
  }
  if (at > to_size) throw Refused{"a pointer beyond its object"};
  return at;
}

}  // namespace shadowib::portable
