#include "libraries/portable/image/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "libraries/portable/tables.h"

namespace shadowib::portable {
namespace {

template <typename T>
Real real_of(T value) {
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof bytes);
  return load_real(bytes, sizeof(T), sizeof(T) == 16 ? kFloatX87 : kFloatIeee, false);
}

template <typename T>
T stored(const Real& real, Stored* how) {
  unsigned char bytes[sizeof(T)] = {};
  *how = store_real(bytes, sizeof(T), sizeof(T) == 16 ? kFloatX87 : kFloatIeee, false, real);
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// The processor's own conversion is the model: value by value, also denormals, ties and numbers that do not fit.
template <typename From, typename To>
void agrees(From value) {
  Stored how;
  const To ours = stored<To>(real_of(value), &how);
  const To its = static_cast<To>(value);
  if (how == Stored::kTooLarge) {
    EXPECT_TRUE(std::isinf(its) && !std::isinf(value));
    return;
  }
  EXPECT_TRUE((std::isnan(ours) && std::isnan(its)) || (ours == its && std::signbit(ours) == std::signbit(its)))
      << to_text(real_of(value)) << " became " << to_text(real_of(ours));
  EXPECT_EQ(how == Stored::kExact, std::isnan(value) || static_cast<From>(its) == value);
}

// What the way by load_real() and store_real() makes is the model. Most bytes are numbers that the short way takes.
void fill(std::mt19937_64& random, unsigned char* bytes) {
  const auto word = [&random] {
    constexpr std::uint64_t kSome[] = {0, 1, ~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{1} << 48};
    return random() % 3 == 0 ? kSome[random() % 5] + random() % 3 - 1 : random();
  };
  const std::uint64_t words[] = {word(), word()};
  std::memcpy(bytes, words, sizeof words);
}

TEST(NumbersTest, LongDoublesInOneStepAsByTheLongWay) {
  std::mt19937_64 random(49);
  std::uint64_t quads = 0, others = 0;
  for (int i = 0; i < 300000; i++) {
    const bool big_endian = random() & 1;
    unsigned char from[16], in_one[16] = {}, model[16] = {};
    fill(random, from);
    std::uint64_t rounded = 0;
    if (quads_to_x87(from, big_endian, in_one, 16, 1, &rounded) == 1) {
      quads++;
      const Stored how = store_real(model, 16, kFloatX87, false, load_real(from, 16, kFloatIeee, big_endian));
      ASSERT_NE(how, Stored::kTooLarge);
      ASSERT_EQ(rounded, how == Stored::kRounded ? 1u : 0u);
      ASSERT_EQ(std::memcmp(in_one, model, 16), 0) << to_text(load_real(from, 16, kFloatIeee, big_endian));
    }
    if (x87_to_quads(from, 16, in_one, big_endian, 1) == 1) {
      others++;
      const Real real = load_real(from, 16, kFloatX87, false);
      ASSERT_EQ(store_real(model, 16, kFloatIeee, big_endian, real), Stored::kExact);
      ASSERT_EQ(std::memcmp(in_one, model, 16), 0) << to_text(real);
    }
  }
  EXPECT_GT(quads, 200000u);
  EXPECT_GT(others, 100000u);
}

TEST(NumbersTest, DoublesBesideZerosInOneStepAsByTheLongWay) {
  std::mt19937_64 random(50);
  unsigned normal = 0;
  for (int i = 0; i < 300000; i++) {
    const bool big_endian = random() & 1;
    // Now and then no normal number; the second one is 0, -0 or another number.
    const std::uint64_t edge = i % 16 == 0 ? (random() & 1 ? 0x7ff0000000000000 : 0) : ~std::uint64_t{0};
    const std::uint64_t words[] = {edge == ~std::uint64_t{0} ? random() : (random() & 1) << 63 | edge,
                                   i % 8 == 0 ? random() >> 20 : (random() & 1) << 63};
    unsigned char from[16], in_one[16] = {}, model[16] = {};
    for (unsigned b = 0; b < 16; b++)
      from[b] = static_cast<unsigned char>(words[b / 8] >> (8 * (big_endian ? 7 - b % 8 : b % 8)));
    const bool taken = doubles_to_x87(from, big_endian, in_one, 16, 1) == 1;
    const unsigned exponent = words[0] >> 52 & 0x7ff;
    ASSERT_EQ(taken, exponent != 0 && exponent != 0x7ff && words[1] << 1 == 0);
    if (!taken) continue;
    normal++;
    ASSERT_EQ(store_real(model, 16, kFloatX87, false, load_real(from, 16, kFloatDoubleDouble, big_endian)),
              Stored::kExact);
    ASSERT_EQ(std::memcmp(in_one, model, 16), 0) << std::hex << words[0] << " " << words[1];
  }
  EXPECT_GT(normal, 200000U);
}

TEST(NumbersTest, FloatsAsTheProcessorConvertsThem) {
  std::mt19937_64 random(31);
  for (int i = 0; i < 300000; i++) {
    std::uint64_t bits = random();
    double value;
    std::memcpy(&value, &bits, 8);
    if (!std::isnan(value)) {
      int power = 0;
      agrees<double, long double>(value), agrees<double, double>(value), agrees<double, float>(value);
      const double near = std::ldexp(std::frexp(value, &power), static_cast<int>(random() % 80) - 160);
      agrees<double, float>(near);
      const long double wide =
          std::ldexp(static_cast<long double>(near) * 3, static_cast<int>(random() % 200) - 1000);
      agrees<long double, double>(wide), agrees<long double, float>(wide), agrees<long double, long double>(wide);
      agrees<long double, double>(std::ldexp(wide, 2000));
    }
  }
  for (double edge :
       {0.0, -0.0, 1.0, 5e-324, 0x1p-149, 0x1p-150, 0x1.8p-150, 0x1.fffffep127, 0x1.ffffffp127, 0x1p1023})
    agrees<double, float>(edge), agrees<double, long double>(edge);
}

// The processor's sum is the model, in a format that holds it where the two doubles are not too far apart.
TEST(NumbersTest, SumsOfTwoDoublesAsTheProcessorAddsThem) {
  std::mt19937_64 random(33);
  unsigned exact = 0;
  for (int i = 0; i < 200000; i++) {
    const double high = std::ldexp(static_cast<double>(random() >> 11) + 1, static_cast<int>(random() % 200) - 100);
    // At most half of the last place of `high`, from touching it to far below.
    double low = std::ldexp(std::nextafter(high, INFINITY) - high, -1 - static_cast<int>(random() % 64));
    low *= static_cast<double>(random() >> 11) / 0x1p53 * (random() & 1 ? 1 : -1);
    const double both[] = {high, low};
    unsigned char bytes[16], wide[16], back[16];
    for (const bool swapped : {false, true}) {
      for (unsigned b = 0; b < 16; b++)
        bytes[b] = reinterpret_cast<const unsigned char*>(both)[swapped ? b / 8 * 8 + 7 - b % 8 : b];
      const Real real = load_real(bytes, 16, kFloatDoubleDouble, swapped);
      const Stored how = store_real(wide, 16, kFloatIeee, false, real);
      const __float128 sum = static_cast<__float128>(high) + low;
      ASSERT_EQ(std::memcmp(wide, &sum, 16), 0) << high << " " << low;
      ASSERT_EQ(how == Stored::kExact, static_cast<double>(sum - high) == low);
      if (how != Stored::kExact) continue;
      exact++;
      ASSERT_EQ(store_real(back, 16, kFloatDoubleDouble, swapped, load_real(wide, 16, kFloatIeee, false)),
                Stored::kExact);
      ASSERT_EQ(std::memcmp(bytes, back, 16), 0) << high << " " << low;
    }
  }
  EXPECT_GT(exact, 40000U);
}

TEST(NumbersTest, EdgesOfSumsOfTwoDoubles) {
  auto comes_back = [](double high, double low) {
    double both[] = {high, low}, found[] = {1, 1};
    const Real real = load_real(reinterpret_cast<unsigned char*>(both), 16, kFloatDoubleDouble, false);
    EXPECT_EQ(store_real(reinterpret_cast<unsigned char*>(found), 16, kFloatDoubleDouble, false, real),
              Stored::kExact);
    EXPECT_EQ(std::memcmp(both, found, 16), 0) << high << " " << low;
  };
  for (double high : {0.0, -0.0, 1.0, -2.5, 5e-324, 0x1p-1022, 0x1.fffffffffffffp1023, static_cast<double>(INFINITY),
                      static_cast<double>(NAN)})
    comes_back(high, 0.0);
  comes_back(1.0, -0x1p-54);
  comes_back(0x1p-1000, 5e-324);
  comes_back(0x1.fffffffffffffp1023, 0x1p968);
  const double far[] = {1.0, -0x1p-500};
  const Real nearly = load_real(reinterpret_cast<const unsigned char*>(far), 16, kFloatDoubleDouble, false);
  Stored how;
  EXPECT_EQ(stored<long double>(nearly, &how), 1.0L);
  EXPECT_EQ(how, Stored::kRounded);
  unsigned char bytes[16];
  EXPECT_EQ(store_real(bytes, 16, kFloatDoubleDouble, true, real_of(0x1.fffffffffffffffep1023L)), Stored::kTooLarge);
}

TEST(NumbersTest, FloatsOfEveryFormatComeBack) {
  std::mt19937_64 random(32);
  for (int i = 0; i < 100000; i++) {
    unsigned char here[16] = {}, wide[16] = {}, back[16] = {};
    const unsigned size = 2U << random() % 3;
    const bool swapped = random() & 1;
    for (unsigned b = 0; b < size; b++) here[b] = static_cast<unsigned char>(random());
    const Real real = load_real(here, size, kFloatIeee, swapped);
    ASSERT_EQ(store_real(wide, 16, random() & 1 ? kFloatIeee : kFloatX87, true, real) == Stored::kTooLarge, false);
    unsigned char quad[16] = {};
    ASSERT_EQ(store_real(quad, 16, kFloatIeee, true, real), Stored::kExact);
    ASSERT_EQ(store_real(back, size, kFloatIeee, swapped, load_real(quad, 16, kFloatIeee, true)), Stored::kExact);
    ASSERT_EQ(std::memcmp(here, back, size), 0) << to_text(real);
  }
}

TEST(NumbersTest, WholeNumbersAndBitFields) {
  unsigned char bytes[16] = {};
  for (bool big : {false, true}) {
    for (std::uint64_t bit = 0; bit < 9; bit++) {
      for (std::uint64_t width = 1; width <= 100; width++) {
        const Whole minus = {~std::uint64_t{0}, ~std::uint64_t{0}, true};
        std::memset(bytes, 0, sizeof bytes);
        store_whole(bytes, bit, width, big, minus);
        EXPECT_EQ(to_text(load_whole(bytes, bit, width, true, big)), "-1");
        EXPECT_TRUE(whole_fits(load_whole(bytes, bit, width, false, big), width, false));
        EXPECT_FALSE(whole_fits(load_whole(bytes, bit, width, false, big), width, true));
      }
    }
  }
}

// As clang-14 lays out { unsigned a : 3; int b : 7; unsigned long c : 17; } = {5, -3, 70000}.
TEST(NumbersTest, BitFieldsOfBothOrders) {
  const unsigned char little[] = {0xed, 0xc3, 0x45, 0x04}, big[] = {0xbf, 0x62, 0x2e, 0x00};
  for (bool order : {false, true}) {
    const unsigned char* at = order ? big : little;
    EXPECT_EQ(to_text(load_whole(at, 0, 3, false, order)), "5");
    EXPECT_EQ(to_text(load_whole(at, 3, 7, true, order)), "-3");
    EXPECT_EQ(to_text(load_whole(at, 10, 17, false, order)), "70000");
  }
}

TEST(NumbersTest, WhatFits) {
  unsigned char bytes[8] = {0, 0, 0, 0x80, 0, 0, 0, 0};
  const Whole value = load_whole(bytes, 0, 64, true, false);
  EXPECT_EQ(to_text(value), "2147483648");
  EXPECT_FALSE(whole_fits(value, 32, true));
  EXPECT_TRUE(whole_fits(value, 32, false));
  EXPECT_FALSE(whole_fits(load_whole(bytes, 0, 32, true, false), 64, false));
  EXPECT_EQ(to_text(load_whole(bytes, 0, 32, true, false)), "-2147483648");
}

}  // namespace
}  // namespace shadowib::portable
