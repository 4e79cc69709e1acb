#include "shadowib/objects/border_log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <vector>

#include "shadowib/base/arena.h"

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

bool holds_only(const BorderLogEntry* entry, char byte) {
  return entry->bytes == 0 ||
         (entry->data()[0] == byte && std::memcmp(entry->data(), entry->data() + 1, entry->bytes - 1) == 0);
}

long faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// A stream that fills its log again and again: pages are faults the first time only.
TEST(BorderLog, UsesTrimmedMemoryAgain) {
  constexpr std::uint32_t kBytes = 1 << 20, kCount = 30;
  constexpr std::size_t kLimit = 32 << 20;
  BorderLog log;
  std::set<const BorderLogEntry*> places;
  std::size_t mapped = 0;
  std::uint32_t number = 0;
  for (int round = 0; round < 4; ++round) {
    const long before = faults();
    for (std::uint32_t i = 0; i < kCount; ++i) {
      BorderLogEntry* entry = log.add(number++, kBytes, kLimit);
      ASSERT_NE(entry, nullptr);
      std::memset(entry->data(), round, kBytes);
      places.insert(entry);
    }
    if (round == 0) mapped = arena_mapped_bytes();
    EXPECT_EQ(places.size(), kCount);
    EXPECT_EQ(arena_mapped_bytes(), mapped);
    if (round > 0) {
      EXPECT_LT(faults() - before, kBytes / 4096) << "more pages than one message has";
    }
    log.trim(number);
    EXPECT_EQ(log.next(nullptr), nullptr);
    EXPECT_EQ(BorderLog::bytes_in_use(), 0u);
    EXPECT_GE(BorderLog::bytes_kept(), std::size_t{kCount} * kBytes);
  }
}

TEST(BorderLog, KeepsNoMoreThanItsBound) {
  constexpr std::size_t kLimit = 24 << 20;
  std::mt19937 random(20261130);
  BorderLog logs[2];
  struct Request {
    const BorderLogEntry* entry;
    char byte;
  };
  std::deque<Request> requests[2];
  std::uint32_t next[2] = {};
  std::size_t most = 0;
  for (int step = 0; step < 4000; ++step) {
    const auto which = random() % 2;
    const std::uint32_t below = 1u << (4 + random() % 18);
    const auto bytes = static_cast<std::uint32_t>(random() % below);
    BorderLogEntry* entry = logs[which].add(next[which], bytes, kLimit);
    if (entry != nullptr) {
      const auto byte = static_cast<char>(random());
      std::memset(entry->data(), byte, bytes);
      requests[which].push_back({entry, byte});
      ++next[which];
    }
    ASSERT_LE(BorderLog::bytes_in_use() + BorderLog::bytes_kept(), kLimit);
    most = std::max(most, BorderLog::bytes_kept());
    if (entry == nullptr || random() % 64 == 0) {
      auto& trimmed = requests[random() % 2];
      const auto left = trimmed.empty() ? 0 : random() % trimmed.size();
      while (trimmed.size() > left) {
        const auto [there, byte] = trimmed.front();
        ASSERT_TRUE(holds_only(there, byte));
        trimmed.pop_front();
      }
      const auto of = &trimmed - requests;
      logs[of].trim(next[of] - static_cast<std::uint32_t>(trimmed.size()));
    }
  }
  EXPECT_GT(most, kLimit / 4);
  for (BorderLog& log : logs) log.trim(next[&log - logs]);
  EXPECT_NE(logs[0].add(next[0], kLimit / 8 * 7, kLimit), nullptr) << "what is kept has to make room";
  EXPECT_LE(BorderLog::bytes_in_use() + BorderLog::bytes_kept(), kLimit);
}

TEST(BorderLog, GivesBackWhatItKept) {
  const std::size_t mapped = arena_mapped_bytes();
  for (const bool is_for_image : {true, false}) {
    BorderLog log, other;
    ASSERT_NE(other.add(0, 10, kMuch), nullptr);
    for (std::uint32_t i = 0; i < 8; ++i) ASSERT_NE(log.add(i, 1 << 20, kMuch), nullptr);
    log.trim(8);
    EXPECT_GE(BorderLog::bytes_kept(), std::size_t{8} << 20);
    if (is_for_image) {
      BorderLog::release_kept();
    } else {
      ASSERT_NE(log.add(8, 1 << 20, kMuch), nullptr);
      log.clear();
      other.clear();
    }
    EXPECT_EQ(BorderLog::bytes_kept(), 0u);
    EXPECT_LE(arena_mapped_bytes(), mapped + (1 << 20));  // a small entry has had a chunk of the arena's
  }
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
