#include "libraries/portable/image/numbers.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "libraries/portable/image/words.h"
#include "libraries/portable/tables.h"

namespace shadowib::portable {
namespace {

struct Wide {
  std::uint64_t high = 0, low = 0;
};

Wide shift_left(Wide value, unsigned by) {
  if (by >= 128) return {};
  if (by >= 64) return {value.low << (by - 64), 0};
  if (by == 0) return value;
  return {value.high << by | value.low >> (64 - by), value.low << by};
}

Wide shift_right(Wide value, unsigned by) {
  if (by >= 128) return {};
  if (by >= 64) return {0, value.high >> (by - 64)};
  if (by == 0) return value;
  return {value.high >> by, value.low >> by | value.high << (64 - by)};
}

bool any(Wide value) { return (value.high | value.low) != 0; }

unsigned leading_zeros(Wide value) {
  return value.high ? __builtin_clzll(value.high) : 64 + __builtin_clzll(value.low);
}

// Bytes from the highest, whatever the memory's order.
Wide load_bytes(const unsigned char* at, unsigned bytes, bool big_endian) {
  Wide value;
  if (bytes == 8 || bytes == 4) return {0, bytes == 8 ? load_word(at, 8, big_endian) : load_word(at, 4, big_endian)};
  for (unsigned i = 0; i < bytes; i++) {
    value = shift_left(value, 8);
    value.low |= at[big_endian ? i : bytes - 1 - i];
  }
  return value;
}

void store_bytes(unsigned char* at, unsigned bytes, bool big_endian, Wide value) {
  for (unsigned i = 0; i < bytes; i++) {
    at[big_endian ? bytes - 1 - i : i] = static_cast<unsigned char>(value.low);
    value = shift_right(value, 8);
  }
}

struct Format {
  unsigned bytes;          // without padding
  unsigned mantissa_bits;  // stored
  unsigned exponent_bits;
  bool whole_bit;  // the bit before the point is stored
};

Format format_of(std::uint64_t size, std::uint32_t format) {
  if (format == kFloatX87) return {kX87Bytes, 64, 15, true};
  switch (size) {
    case 2:
      return {2, 10, 5, false};
    case 4:
      return {4, 23, 8, false};
    case 8:
      return {8, 52, 11, false};
    default:
      return {16, 112, 15, false};
  }
}

int bias_of(const Format& format) { return (1 << (format.exponent_bits - 1)) - 1; }

// The upper `bits` bits of a mantissa, rounded to nearest, ties to even. May carry into one more bit.
Wide round_to(Wide mantissa, unsigned bits, bool* exact) {
  if (bits >= 128) return mantissa;
  const Wide kept = bits ? shift_right(mantissa, 128 - bits) : Wide{};
  const Wide lost = shift_left(mantissa, bits);
  *exact = !any(lost);
  const bool half = lost.high >> 63, more = any(shift_left(lost, 1));
  Wide result = kept;
  if (half && (more || (kept.low & 1))) {
    result.low++;
    result.high += result.low == 0;
  }
  return result;
}

void assemble(unsigned char* at, const Format& format, bool big_endian, bool negative, std::uint64_t exponent,
              Wide mantissa) {
  Wide bits =
      shift_left({0, exponent | (negative ? std::uint64_t{1} << format.exponent_bits : 0)}, format.mantissa_bits);
  bits.high |= mantissa.high, bits.low |= mantissa.low;
  store_bytes(at, format.bytes, big_endian, bits);
}

Stored store_nan(unsigned char* at, const Format& format, bool big_endian, const Real& value) {
  const unsigned bits = format.mantissa_bits - (format.whole_bit ? 1 : 0);
  Wide payload = shift_right({value.high, value.low}, 128 - bits);
  const bool exact = !any(shift_left({value.high, value.low}, bits));
  if (!any(payload)) payload = shift_left({0, 1}, bits - 1);  // a NaN stays one
  if (format.whole_bit) payload.low |= std::uint64_t{1} << 63;
  assemble(at, format, big_endian, value.negative, (std::uint64_t{1} << format.exponent_bits) - 1, payload);
  return exact ? Stored::kExact : Stored::kRounded;
}

Stored store_normal(unsigned char* at, const Format& format, bool big_endian, const Real& value) {
  const int bias = bias_of(format), highest = bias, lowest = 1 - bias;
  int exponent = value.exponent + 127;  // of the mantissa's highest bit
  unsigned digits = format.mantissa_bits + (format.whole_bit ? 0 : 1);
  if (exponent < lowest) {
    const int lost = lowest - exponent;
    digits = lost >= static_cast<int>(digits) ? 0 : digits - lost;
    if (lost > static_cast<int>(format.mantissa_bits) + 1) {  // less than half of the least
      assemble(at, format, big_endian, value.negative, 0, {});
      return Stored::kRounded;
    }
  }
  bool exact = true;
  Wide mantissa = round_to({value.high, value.low}, digits, &exact);
  if (exponent < lowest) {
    // A denormal; if rounding carried it to the least normal number, its bits are that number's.
    const bool carried = any(shift_right(mantissa, format.mantissa_bits - (format.whole_bit ? 1 : 0)));
    assemble(at, format, big_endian, value.negative, carried ? 1 : 0,
             carried && !format.whole_bit ? Wide{} : mantissa);
    return exact ? Stored::kExact : Stored::kRounded;
  }
  if (any(shift_right(mantissa, digits))) {
    mantissa = shift_right(mantissa, 1);
    exponent++;
  }
  if (exponent > highest) return Stored::kTooLarge;
  if (!format.whole_bit)
    mantissa = shift_right(shift_left(mantissa, 128 - format.mantissa_bits), 128 - format.mantissa_bits);
  assemble(at, format, big_endian, value.negative, static_cast<std::uint64_t>(exponent + bias), mantissa);
  return exact ? Stored::kExact : Stored::kRounded;
}

// PowerPC's long double: the sum of two doubles, the greater one first. Bits that 128 cannot hold are kept as one,
// the lowest, so that rounding goes the right way; other formats have fewer.
Real load_sum(const unsigned char* at, bool big_endian) {
  Real sum = load_real(at, 8, kFloatIeee, big_endian);
  const Real less = load_real(at + 8, 8, kFloatIeee, big_endian);
  if (sum.kind != Real::kNormal || less.kind != Real::kNormal) return sum;
  const auto by = static_cast<unsigned>(sum.exponent - less.exponent);
  const Wide part = shift_right({less.high, less.low}, by), back = shift_left(part, by);
  const bool lost = back.high != less.high || back.low != less.low;
  Wide mantissa = {sum.high, sum.low};
  if (sum.negative == less.negative) {
    mantissa.low += part.low;
    const std::uint64_t high = mantissa.high;
    mantissa.high += part.high + (mantissa.low < part.low);
    if (mantissa.high < high) {  // only where the second is too great, which no processor writes
      mantissa = shift_right(mantissa, 1);
      mantissa.high |= std::uint64_t{1} << 63;
      sum.exponent++;
    }
  } else {
    Wide away = {part.high, part.low + lost};
    away.high += lost && away.low == 0;
    const bool borrow = mantissa.low < away.low;
    mantissa.low -= away.low;
    mantissa.high -= away.high + borrow;
    if (!any(mantissa)) return {};
  }
  const unsigned zeros = leading_zeros(mantissa);
  mantissa = shift_left(mantissa, zeros);
  sum.exponent -= static_cast<int>(zeros);
  sum.high = mantissa.high, sum.low = mantissa.low | lost;
  return sum;
}

// The nearest double, then the one nearest to what is left.
Stored store_sum(unsigned char* at, bool big_endian, const Real& value) {
  unsigned char first[8] = {}, second[8] = {};
  Stored stored = store_real(first, 8, kFloatIeee, big_endian, value);
  if (stored == Stored::kTooLarge) return stored;
  if (value.kind == Real::kNormal && stored == Stored::kRounded) {
    const Real near = load_real(first, 8, kFloatIeee, big_endian);
    Real rest = value;
    if (near.kind == Real::kNormal) {
      // Rounded up, `near` may be the next power of two: its highest bit is then beyond the 128 of `value`.
      const bool beyond = near.exponent > value.exponent;
      const Wide mantissa = beyond ? Wide{} : Wide{near.high, near.low};
      const bool below =
          beyond || value.high < mantissa.high || (value.high == mantissa.high && value.low < mantissa.low);
      Wide left = {value.high - mantissa.high - (value.low < mantissa.low), value.low - mantissa.low};
      if (below) left = {~left.high + (left.low == 0), ~left.low + 1};
      const unsigned zeros = leading_zeros(left);
      left = shift_left(left, zeros);
      rest.negative = value.negative != below;
      rest.exponent = value.exponent - static_cast<int>(zeros);
      rest.high = left.high, rest.low = left.low;
    }
    stored = near.kind == Real::kNormal ? store_real(second, 8, kFloatIeee, big_endian, rest) : stored;
  }
  std::memcpy(at, first, sizeof first);
  std::memcpy(at + sizeof first, second, sizeof second);
  return stored;
}

constexpr bool kHostIsBig = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
constexpr std::uint64_t kWholeBit = std::uint64_t{1} << 63;
constexpr unsigned kExponents = 0x7fff;  // of both long doubles; the highest one and 0 are not for normal numbers
constexpr unsigned kMore = 112 - 63;     // bits that a quad's fraction has more
constexpr unsigned kUpper = 112 - 64;    // bits of it beside sign and exponent

std::uint64_t load_word(const unsigned char* at, bool big_endian) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return big_endian == kHostIsBig ? word : __builtin_bswap64(word);
}

void store_word(unsigned char* at, bool big_endian, std::uint64_t word) {
  if (big_endian != kHostIsBig) word = __builtin_bswap64(word);
  std::memcpy(at, &word, sizeof word);
}

bool is_normal(unsigned exponent) { return exponent - 1 < kExponents - 1; }

bool quad_to_x87(const unsigned char* from, bool from_big_endian, unsigned char* to, bool* rounded) {
  const std::uint64_t upper = load_word(from + (from_big_endian ? 0 : 8), from_big_endian);
  const std::uint64_t lower = load_word(from + (from_big_endian ? 8 : 0), from_big_endian);
  unsigned head = static_cast<unsigned>(upper >> kUpper);  // sign and exponent
  std::uint64_t mantissa = kWholeBit | upper << (64 - kUpper - 1) | lower >> kMore;
  const std::uint64_t lost = lower << (64 - kMore);
  if (lost > kWholeBit || (lost == kWholeBit && (mantissa & 1) != 0)) {
    if (++mantissa == 0) {
      mantissa = kWholeBit;
      if ((++head & kExponents) == kExponents) return false;
    }
  }
  if (!is_normal(static_cast<unsigned>(upper >> kUpper) & kExponents)) return false;
  *rounded = lost != 0;
  store_word(to, false, mantissa);
  to[8] = static_cast<unsigned char>(head), to[9] = static_cast<unsigned char>(head >> 8);
  return true;
}

bool x87_to_quad(const unsigned char* from, unsigned char* to, bool to_big_endian) {
  const std::uint64_t mantissa = load_word(from, false), head = from[8] | std::uint64_t{from[9]} << 8;
  if (!is_normal(head & kExponents) || mantissa < kWholeBit) return false;
  store_word(to + (to_big_endian ? 0 : 8), to_big_endian,
             head << kUpper | (mantissa & ~kWholeBit) >> (64 - kUpper - 1));
  store_word(to + (to_big_endian ? 8 : 0), to_big_endian, mantissa << kMore);
  return true;
}

}  // namespace

std::uint64_t quads_to_x87(const unsigned char* from, bool from_big_endian, unsigned char* to, std::uint64_t size,
                           std::uint64_t count, std::uint64_t* rounded) {
  std::uint64_t done = 0;
  for (bool inexact = false; done < count && quad_to_x87(from, from_big_endian, to, &inexact); done++) {
    *rounded += inexact;
    from += 16, to += size;
  }
  return done;
}

std::uint64_t x87_to_quads(const unsigned char* from, std::uint64_t size, unsigned char* to, bool to_big_endian,
                           std::uint64_t count) {
  std::uint64_t done = 0;
  for (; done < count && x87_to_quad(from, to, to_big_endian); done++) from += size, to += 16;
  return done;
}

std::uint64_t doubles_to_x87(const unsigned char* from, bool from_big_endian, unsigned char* to, std::uint64_t size,
                             std::uint64_t count) {
  constexpr unsigned kMore = 16383 - 1023;  // of the bias
  for (std::uint64_t done = 0; done < count; done++, from += 16, to += size) {
    const std::uint64_t number = load_word(from, 8, from_big_endian), rest = load_word(from + 8, 8, from_big_endian);
    const unsigned exponent = number >> 52 & 0x7ff;
    if (rest << 1 != 0 || exponent == 0 || exponent == 0x7ff) return done;
    store_bytes(to, 8, false, {0, std::uint64_t{1} << 63 | number << 11});
    store_bytes(to + 8, 2, false, {0, (number >> 63) << 15 | (exponent + kMore)});
  }
  return count;
}

Whole load_whole(const unsigned char* at, std::uint64_t bit, std::uint64_t width, bool with_sign, bool big_endian) {
  Wide value;
  if (bit % 8 == 0 && width % 8 == 0) {
    value = load_bytes(at + bit / 8, width / 8, big_endian);
  } else {
    for (std::uint64_t i = 0; i < width; i++) {
      const std::uint64_t from = bit + (big_endian ? i : width - 1 - i);
      value = shift_left(value, 1);
      value.low |= at[from / 8] >> (big_endian ? 7 - from % 8 : from % 8) & 1;
    }
  }
  Whole whole = {value.low, value.high, false};
  const std::uint64_t top = width - 1;
  whole.negative = with_sign && ((top >= 64 ? value.high >> (top - 64) : value.low >> top) & 1);
  if (whole.negative) {
    if (width < 64) whole.low |= ~std::uint64_t{0} << width;
    if (width <= 64) whole.high = ~std::uint64_t{0};
    if (width > 64 && width < 128) whole.high |= ~std::uint64_t{0} << (width - 64);
  }
  return whole;
}

void store_whole(unsigned char* at, std::uint64_t bit, std::uint64_t width, bool big_endian, const Whole& value) {
  Wide left = {value.high, value.low};
  if (bit % 8 == 0 && width % 8 == 0) return store_bytes(at + bit / 8, width / 8, big_endian, left);
  for (std::uint64_t i = 0; i < width; i++) {
    const std::uint64_t to = bit + (big_endian ? width - 1 - i : i);
    const unsigned mask = 1U << (big_endian ? 7 - to % 8 : to % 8);
    at[to / 8] = static_cast<unsigned char>(left.low & 1 ? at[to / 8] | mask : at[to / 8] & ~mask);
    left = shift_right(left, 1);
  }
}

bool whole_fits(const Whole& value, std::uint64_t width, bool with_sign) {
  if (value.negative && !with_sign) return false;
  const std::uint64_t digits = with_sign ? width - 1 : width;  // bits that may differ from the sign
  const std::uint64_t sign = value.negative ? ~std::uint64_t{0} : 0;
  const Wide above = shift_right({value.high ^ sign, value.low ^ sign}, digits);
  return !any(above);
}

Real load_real(const unsigned char* at, std::uint64_t size, std::uint32_t kind, bool big_endian) {
  if (kind == kFloatDoubleDouble) return load_sum(at, big_endian);
  const Format format = format_of(size, kind);
  const Wide bits = load_bytes(at, format.bytes, big_endian);
  const std::uint64_t highest = (std::uint64_t{1} << format.exponent_bits) - 1;
  const std::uint64_t exponent = shift_right(bits, format.mantissa_bits).low & highest;
  Real real;
  real.negative = shift_right(bits, format.mantissa_bits + format.exponent_bits).low & 1;
  Wide mantissa = shift_left(bits, 128 - format.mantissa_bits);
  const Wide fraction = format.whole_bit ? shift_left(mantissa, 1) : mantissa;
  if (exponent == highest) {
    real.kind = any(fraction) ? Real::kNan : Real::kInfinite;
    real.high = fraction.high, real.low = fraction.low;
    return real;
  }
  int power = static_cast<int>(std::max<std::uint64_t>(exponent, 1)) - bias_of(format);  // of the whole bit
  if (format.whole_bit) {
    power -= 127;
  } else if (exponent) {
    mantissa = shift_right(mantissa, 1);
    mantissa.high |= std::uint64_t{1} << 63;
    power -= 127;
  } else {
    power -= 128;
  }
  if (!any(mantissa)) return real;
  const unsigned zeros = leading_zeros(mantissa);
  mantissa = shift_left(mantissa, zeros);
  real.kind = Real::kNormal;
  real.exponent = power - static_cast<int>(zeros);
  real.high = mantissa.high, real.low = mantissa.low;
  return real;
}

Stored store_real(unsigned char* at, std::uint64_t size, std::uint32_t kind, bool big_endian, const Real& value) {
  if (kind == kFloatDoubleDouble) return store_sum(at, big_endian, value);
  const Format format = format_of(size, kind);
  Stored stored = Stored::kExact;
  switch (value.kind) {
    case Real::kZero:
      assemble(at, format, big_endian, value.negative, 0, {});
      break;
    case Real::kInfinite:
      assemble(at, format, big_endian, value.negative, (std::uint64_t{1} << format.exponent_bits) - 1,
               {0, format.whole_bit ? std::uint64_t{1} << 63 : 0});
      break;
    case Real::kNan:
      stored = store_nan(at, format, big_endian, value);
      break;
    case Real::kNormal:
      stored = store_normal(at, format, big_endian, value);
      break;
  }
  if (stored != Stored::kTooLarge && size > format.bytes) std::memset(at + format.bytes, 0, size - format.bytes);
  return stored;
}

std::string to_text(const Whole& value) {
  std::uint64_t low = value.low, high = value.high;
  if (value.negative) {
    low = ~low + 1;
    high = ~high + (low == 0);
  }
  std::string text;
  do {
    // Division by ten of 128 bits, 32 at a time: not every architecture has a wider type.
    std::uint64_t rest = 0;
    std::uint32_t parts[] = {static_cast<std::uint32_t>(high >> 32), static_cast<std::uint32_t>(high),
                             static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(low)};
    for (std::uint32_t& part : parts) {
      const std::uint64_t now = rest << 32 | part;
      part = static_cast<std::uint32_t>(now / 10);
      rest = now % 10;
    }
    high = static_cast<std::uint64_t>(parts[0]) << 32 | parts[1];
    low = static_cast<std::uint64_t>(parts[2]) << 32 | parts[3];
    text += static_cast<char>('0' + rest);
  } while (high | low);
  if (value.negative) text += '-';
  std::reverse(text.begin(), text.end());
  return text;
}

std::string to_text(const Real& value) {
  const std::string sign = value.negative ? "-" : "";
  if (value.kind == Real::kZero) return sign + "0";
  if (value.kind == Real::kInfinite) return sign + "inf";
  char text[64];
  if (value.kind == Real::kNan) {
    std::snprintf(text, sizeof text, "nan:%016llx%016llx", static_cast<unsigned long long>(value.high),
                  static_cast<unsigned long long>(value.low));
    return sign + text;
  }
  const Wide fraction = shift_left({value.high, value.low}, 1);
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(fraction.high),
                static_cast<unsigned long long>(fraction.low));
  std::string digits = text;
  digits.erase(digits.find_last_not_of('0') + 1);
  return sign + "0x1" + (digits.empty() ? "" : "." + digits) + "p" + std::to_string(value.exponent + 127);
}

}  // namespace shadowib::portable
