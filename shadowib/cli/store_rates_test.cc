#include "shadowib/cli/store_rates.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "hooks/job/protocol.h"

namespace shadowib::cli {
namespace {

constexpr std::uint64_t kGiB = 1 << 30;

CheckpointReport report_of(const char* store, std::uint64_t bytes, double save_s, double copies_s) {
  CheckpointReport report;
  EXPECT_TRUE(parse_store(store, &report.store).ok());
  for (int member = 0; member < 2; ++member) {
    report.members.emplace_back();
    report.members.back().bytes = bytes / 2;
    report.members.back().save_ns = static_cast<std::int64_t>(save_s * 1e9 / (2 - member));
  }
  report.most_bytes = bytes;
  report.copies_ns = static_cast<std::int64_t>(copies_s * 1e9);
  return report;
}

class StoreRatesTest : public testing::Test {
 protected:
  StoreRatesTest() {
    char name[] = "/tmp/store_rates_test-XXXXXX";
    if (::mkdtemp(name) == nullptr) std::abort();
    directory_ = name;
    std::filesystem::create_directories(job_paths(directory_, "demo").top);
  }
  ~StoreRatesTest() override { std::filesystem::remove_all(directory_); }

  void note(const CheckpointReport& report) {
    const std::string record = encode_rates(moved_by(read_rates(directory_, "demo"), report));
    std::ofstream(rates_path(directory_, "demo")) << record;
  }

  std::string directory_;
};

TEST_F(StoreRatesTest, MoveToWhatCheckpointsTell) {
  for (int i = 0; i < 50; ++i) note(report_of("disk:mirror", kGiB, 4, 8));
  for (int i = 0; i < 50; ++i) note(report_of("central", kGiB, 16, 0));
  const StoreRates rates = read_rates(directory_, "demo");
  EXPECT_NEAR(rates.disk, 4.0 / kGiB, 0.01 / kGiB);
  EXPECT_NEAR(rates.network, 8.0 / kGiB, 0.01 / kGiB);
  EXPECT_NEAR(rates.central, 16.0 / kGiB, 0.01 / kGiB);
}

TEST_F(StoreRatesTest, OneOddCheckpointMovesThemByAPart) {
  const StoreRates before = read_rates(directory_, "demo");
  const StoreRates after = moved_by(before, report_of("central", kGiB, 1000, 0));
  EXPECT_NEAR(after.central, before.central + 0.3 * (1000.0 / kGiB - before.central), 1e-12);
  EXPECT_EQ(after.disk, before.disk);
  EXPECT_EQ(after.network, before.network);
}

// Formula (2): M parities take M (network + coding) a byte.
TEST_F(StoreRatesTest, ParitiesTellOfTheNetworkWithoutTheirCoding) {
  StoreRates rates = read_rates(directory_, "demo");
  const double network = 5e-9, coding = rates.coding, bytes = kGiB;
  for (int i = 0; i < 50; ++i)
    rates = moved_by(rates, report_of("mem:rs:2", kGiB, 1, 2 * (network + coding) * bytes));
  EXPECT_NEAR(rates.network, network, network / 100);
  EXPECT_GT(moved_by(rates, report_of("mem:rs:2", kGiB, 1, 0)).network, 0) << "quicker than coding alone";
}

TEST_F(StoreRatesTest, SmallImagesTellNothing) {
  const StoreRates before = read_rates(directory_, "demo");
  for (const char* store : {"central", "mem:mirror", "disk:xor"}) {
    const StoreRates after = moved_by(before, report_of(store, 1 << 20, 1, 1));
    EXPECT_EQ(after.central, before.central);
    EXPECT_EQ(after.disk, before.disk);
    EXPECT_EQ(after.network, before.network);
  }
}

// The newest set tells, and small images do, too; a member that says nothing may have written a plain image.
TEST_F(StoreRatesTest, CompressedSetsTellTheirParts) {
  CheckpointReport report = report_of("mem:mirror", 1 << 20, 1, 1);
  report.compression = Compression::kLz4;
  for (MemberReport& member : report.members) member.page_bytes = 1 << 20;
  note(report);
  EXPECT_NEAR(read_rates(directory_, "demo").lz4, 0.5, 1e-9);
  EXPECT_EQ(read_rates(directory_, "demo").zstd, 0);
  report.members[0].page_bytes = 0;
  report.members[1].page_bytes = 1 << 30;
  note(report);
  EXPECT_NEAR(read_rates(directory_, "demo").lz4, 0.5, 1e-9);
  report.compression = Compression::kZstd;
  for (MemberReport& member : report.members) member.page_bytes = 2 << 20;
  note(report);
  EXPECT_NEAR(read_rates(directory_, "demo").zstd, 0.25, 1e-9);
  EXPECT_NEAR(read_rates(directory_, "demo").lz4, 0.5, 1e-9);
}

TEST_F(StoreRatesTest, ARecordOfAnotherKindIsNone) {
  std::ofstream(rates_path(directory_, "demo")) << "nonsense";
  EXPECT_EQ(read_rates(directory_, "demo").network, 1e-9);
}

}  // namespace
}  // namespace shadowib::cli
