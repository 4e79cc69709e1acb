// Numbers of any width, byte order and float format, by way of one canonical form. Exact, or said not to be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace shadowib::portable {

// A whole number of up to 128 bits, sign-extended if it is negative.
struct Whole {
  std::uint64_t low = 0, high = 0;
  bool negative = false;
};

// value = mantissa * 2^exponent, with the mantissa's highest bit set.
struct Real {
  enum Class : std::uint8_t { kZero, kNormal, kInfinite, kNan };
  Class kind = kZero;
  bool negative = false;
  std::int32_t exponent = 0;
  std::uint64_t high = 0, low = 0;  // the mantissa; of a NaN: its payload from the highest bit on
};

// Bits [bit, bit + width) of a memory, counted as the architecture lays out bit-fields; width 1 to 128.
Whole load_whole(const unsigned char* at, std::uint64_t bit, std::uint64_t width, bool with_sign, bool big_endian);
void store_whole(unsigned char* at, std::uint64_t bit, std::uint64_t width, bool big_endian, const Whole& value);
// Whether `value` is one of `width` bits.
bool whole_fits(const Whole& value, std::uint64_t width, bool with_sign);

// `format` is a FloatFormat, `size` bytes with padding.
Real load_real(const unsigned char* at, std::uint64_t size, std::uint32_t format, bool big_endian);
enum class Stored { kExact, kRounded, kTooLarge };
// Rounds to nearest, ties to even. Writes nothing if it is too large.
Stored store_real(unsigned char* at, std::uint64_t size, std::uint32_t format, bool big_endian, const Real& value);

constexpr std::size_t kX87Bytes = 10;  // of kFloatX87, without padding

// Arrays of `count` normal numbers between the long doubles of most architectures: kFloatIeee of 16
// bytes, and kFloatX87 of `size` bytes, whose padding is left as it is. Returns how many it has converted: up to the
// first that is another number, or becomes one.
std::uint64_t quads_to_x87(const unsigned char* from, bool from_big_endian, unsigned char* to, std::uint64_t size,
                           std::uint64_t count, std::uint64_t* rounded);
std::uint64_t x87_to_quads(const unsigned char* from, std::uint64_t size, unsigned char* to, bool to_big_endian,
                           std::uint64_t count);
// Arrays of kFloatDoubleDouble, likewise; up to the first that is not a normal double beside a zero.
std::uint64_t doubles_to_x87(const unsigned char* from, bool from_big_endian, unsigned char* to, std::uint64_t size,
                             std::uint64_t count);

std::string to_text(const Whole& value);
std::string to_text(const Real& value);  // as %a of C, or inf, nan

}  // namespace shadowib::portable
