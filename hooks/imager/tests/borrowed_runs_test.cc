// Runs of borrowed pages come back as they were put, whatever is put; bytes that no run puts are refused.
#include "hooks/imager/borrowed_runs.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace shadowib {
namespace {

constexpr std::uint64_t kLastPage = ~std::uint64_t{0} / kPage;

std::vector<std::uint8_t> put_all(const std::vector<BorrowedRun>& runs) {
  std::vector<std::uint8_t> bytes;
  BorrowedRunCoder coder;
  for (const BorrowedRun& run : runs) {
    std::uint8_t one[BorrowedRunCoder::kMostBytes];
    const std::uint64_t n = coder.put(run, one);
    EXPECT_LE(n, sizeof(one));
    bytes.insert(bytes.end(), one, one + n);
  }
  return bytes;
}

void expect_back(const std::vector<BorrowedRun>& runs, const std::vector<std::uint8_t>& bytes) {
  BorrowedRunCoder coder;
  std::uint64_t at = 0;
  for (const BorrowedRun& run : runs) {
    BorrowedRun got{};
    for (std::uint64_t n = 0, left = bytes.size() - at; n < left && n < BorrowedRunCoder::kMostBytes; ++n) {
      BorrowedRunCoder other = coder;
      const std::uint64_t taken = other.get(bytes.data() + at, n, &got);
      if (taken == 0) continue;
      EXPECT_EQ(taken, n) << "a part of a run is none";
      break;
    }
    const std::uint64_t taken = coder.get(bytes.data() + at, bytes.size() - at, &got);
    ASSERT_NE(taken, 0u);
    EXPECT_EQ(got.address_and_pack, run.address_and_pack);
    EXPECT_EQ(got.first_page, run.first_page);
    EXPECT_EQ(got.page_count, run.page_count);
    at += taken;
  }
  EXPECT_EQ(at, bytes.size());
}

TEST(BorrowedRuns, AnyComeBack) {
  const std::vector<BorrowedRun> ends = {
      {0, 0, 1},       {kLastPage * kPage | (kMostPacks - 1), ~0u, ~0u}, {0, 0, 2},
      {kPage, ~0u, 1}, {kLastPage / 2 * kPage | 1, 1u << 31, 127},       {3 * kPage | 1, 0, 128},
  };
  expect_back(ends, put_all(ends));
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<BorrowedRun> runs;
    for (int i = 0; i < 200; ++i) {
      const auto small = [&](std::uint64_t most) { return random() >> (random() % 64) & most; };
      runs.push_back({small(kLastPage) * kPage | small(kMostPacks - 1), static_cast<std::uint32_t>(small(~0u)),
                      std::max(1u, static_cast<std::uint32_t>(small(~0u)))});
    }
    expect_back(runs, put_all(runs));
  }
}

// What an image has after many checkpoints in a row: each page in some pack, in the order of addresses there, too.
TEST(BorrowedRuns, ScatteredPagesTakeFewBytes) {
  std::mt19937_64 random(1);
  std::vector<BorrowedRun> runs;
  std::uint32_t next[kMostPacks] = {};
  for (std::uint64_t page = 1 << 20; page < (1 << 20) + 100'000; ++page) {
    const auto pack = static_cast<std::uint32_t>(random() % kMostPacks);
    next[pack] += static_cast<std::uint32_t>(random() % 2);  // some have changed since
    runs.push_back({page * kPage | pack, next[pack]++, 1});
  }
  EXPECT_LT(put_all(runs).size(), runs.size() * 3);
}

TEST(BorrowedRuns, WhatPutDoesNotWriteIsRefused) {
  const auto refused = [](std::vector<std::uint8_t> bytes) {
    BorrowedRunCoder coder;
    BorrowedRun run;
    return coder.get(bytes.data(), bytes.size(), &run) == 0;
  };
  EXPECT_FALSE(refused({64 | 128, 2}));
  EXPECT_TRUE(refused({})) << "nothing";
  EXPECT_TRUE(refused({64 | 128})) << "no address";
  EXPECT_TRUE(refused({128, 2, 0})) << "no pages";
  EXPECT_TRUE(refused({128, 2, 1})) << "one page, which has a bit";
  EXPECT_TRUE(refused({64, 2, 0})) << "it follows, which has a bit";
  EXPECT_TRUE(refused({128, 2, 128, 128, 128, 128, 16})) << "more pages than 32 bits count";
  EXPECT_TRUE(refused({64 | 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 1})) << "a number of 11 bytes";
}

}  // namespace
}  // namespace shadowib
