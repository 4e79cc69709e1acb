#include "shadowib/objects/border_log.h"

#include <gtest/gtest.h>

#include <vector>

namespace shadowib {
namespace {

constexpr std::size_t kMuch = std::size_t{1} << 30;

std::vector<std::uint32_t> numbers_of(const BorderLog& log) {
  std::vector<std::uint32_t> numbers;
  for (const BorderLogEntry* entry = log.next(nullptr); entry != nullptr; entry = log.next(entry))
    numbers.push_back(entry->number);
  return numbers;
}

TEST(BorderLog, KeepsRequestsInOrderWithTheirBytes) {
  BorderLog log;
  std::vector<std::uint32_t> numbers;
  const std::uint32_t first = 0xffffff80;  // numbers wrap
  for (std::uint32_t i = 0; i < 300; ++i) {
    BorderLogEntry* entry = log.add(first + i, i * 37, kMuch);
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->header[0], 0);
    for (std::uint32_t b = 0; b < entry->bytes; ++b) entry->data()[b] = static_cast<char>(i);
    numbers.push_back(first + i);
  }
  EXPECT_EQ(numbers_of(log), numbers);
  std::uint32_t i = 0;
  for (const BorderLogEntry* entry = log.next(nullptr); entry != nullptr; entry = log.next(entry), ++i) {
    ASSERT_EQ(entry->bytes, i * 37);
    for (std::uint32_t b = 0; b < entry->bytes; ++b) ASSERT_EQ(entry->data()[b], static_cast<char>(i));
  }
  // Starting anywhere, also behind where the last look was.
  const BorderLogEntry* second = log.next(log.next(nullptr));
  EXPECT_EQ(log.next(second)->number, first + 2);
  EXPECT_EQ(second->number, first + 1);
}

TEST(BorderLog, TrimsAndGivesMemoryBack) {
  const std::size_t before = BorderLog::bytes_in_use();
  BorderLog log;
  for (std::uint32_t i = 0; i < 1000; ++i) ASSERT_NE(log.add(i, 5000, kMuch), nullptr);
  const std::size_t full = BorderLog::bytes_in_use();
  log.trim(0);
  EXPECT_EQ(numbers_of(log).size(), 1000u);
  log.trim(900);
  EXPECT_EQ(numbers_of(log).front(), 900u);
  EXPECT_EQ(numbers_of(log).size(), 100u);
  EXPECT_LT(BorderLog::bytes_in_use(), full / 4);
  log.trim(1000);
  EXPECT_EQ(log.next(nullptr), nullptr);
  EXPECT_EQ(BorderLog::bytes_in_use(), before);
  ASSERT_NE(log.add(1000, 5, kMuch), nullptr);
  log.clear();
  EXPECT_EQ(BorderLog::bytes_in_use(), before);
}

TEST(BorderLog, StaysBelowTheBoundOfAllLogs) {
  const std::size_t limit = BorderLog::bytes_in_use() + (1 << 20);
  BorderLog one, other;
  std::uint32_t i = 0;
  while (one.add(i, 30000, limit) != nullptr) ++i;
  EXPECT_GE(i, 20u);
  EXPECT_LE(BorderLog::bytes_in_use(), limit);
  EXPECT_EQ(other.add(0, 300000, limit), nullptr);
  one.trim(i);
  EXPECT_NE(other.add(0, 300000, limit), nullptr);
  EXPECT_LE(BorderLog::bytes_in_use(), limit);
}

TEST(BorderLog, ReadsItsBound) {
  EXPECT_EQ(parse_log_bytes("65536"), 65536u);
  EXPECT_EQ(parse_log_bytes("0"), 0u);
  EXPECT_EQ(parse_log_bytes("3K"), 3072u);
  EXPECT_EQ(parse_log_bytes("2G"), std::size_t{2} << 30);
  for (const char* text : {static_cast<const char*>(nullptr), "", "-1", "x", "1T", "1KK", "99999999999999G"})
    EXPECT_EQ(parse_log_bytes(text), std::size_t{256} << 20);
}

}  // namespace
}  // namespace shadowib
