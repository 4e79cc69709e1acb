// Images with each byte changed, and cut.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "hooks/imager/image_reader.h"
#include "hooks/imager/restore/image_file.h"
#include "hooks/imager/tests/imager_fixture.h"
#include "hooks/imager/tests/subject.h"

namespace shadowib {
namespace {

class DamagedPages : public Imager {
 protected:
  std::vector<PageBatch> batches_with(std::uint32_t flags) {
    LoadedImage loaded;
    const int fd = ::open(image().c_str(), O_RDONLY | O_CLOEXEC);
    const Status status = load_image(fd, image(), ReadDepth::kTables, &loaded);
    EXPECT_TRUE(status.ok()) << status.text();
    ::close(fd);
    std::erase_if(loaded.batches, [flags](const PageBatch& b) { return b.flags != flags; });
    return loaded.batches;
  }
  // Flips a bit at `at`, which belongs to a record, and expects a restart to name the record.
  void expect_refused(std::uint64_t at, const PageBatch& record) {
    ChangedImage bytes(image());
    *bytes.at(at) ^= 0x10;
    bytes.write();
    const Outcome outcome = restart();
    EXPECT_EQ(outcome.status, 100 + static_cast<int>(Code::kCorrupt)) << at << outcome.text;
    EXPECT_NE(outcome.text.find("is damaged at byte " + std::to_string(record.record_offset)), std::string::npos)
        << at << outcome.text;
    EXPECT_EQ(outcome.text.find("restored"), std::string::npos) << at << outcome.text;
    *bytes.at(at) ^= 0x10;
    bytes.write();
  }
};

// Each record of pages is checked where it is read, and nobody runs before all are.
TEST_F(DamagedPages, AreRefused) {
  ASSERT_EQ(save("threads").status, kSaved);
  const std::vector<PageBatch> batches = batches_with(0);
  ASSERT_FALSE(batches.empty());
  for (const PageBatch* b : {&batches.front(), &batches.back()})
    for (const std::uint64_t at : {b->record_offset + kPage - 1, b->record_offset + kPage * (1 + b->page_count) - 1})
      expect_refused(at, *b);
  EXPECT_EQ(restart().status, kRight);
}

// A record of guard regions has no content to be read later: a wrong address would hide a page of the program.
TEST_F(DamagedPages, AreRefusedWhereGuardRegionsAre) {
  ASSERT_EQ(save("mapping_states").status, kSaved);
  const std::vector<PageBatch> batches = batches_with(kPagesGuard);
  if (batches.empty()) GTEST_SKIP() << "this kernel has no guard regions, or does not tell of them";
  const std::uint64_t runs = batches[0].record_offset + sizeof(RecordHeader) + sizeof(PagesHeader);
  expect_refused(runs + 1, batches[0]);  // bit 12 of the first address
  expect_refused(batches[0].record_offset + kPage - 1, batches[0]);
  EXPECT_EQ(restart().status, kRight);
}

class Damage : public Imager {
 protected:
  void SetUp() override {
    ASSERT_EQ(save("single").status, kSaved);
    bytes_.resize(fs::file_size(image()));
    std::ifstream(image(), std::ios::binary).read(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
    fd_ = ::open(image().c_str(), O_RDWR | O_CLOEXEC);
    LoadedImage loaded;
    ASSERT_TRUE(load(ReadDepth::kEverything, &loaded).ok());
    for (const PageBatch& b : loaded.batches) first_pages_ = std::min(first_pages_, b.record_offset);
    batches_ = loaded.batches;
  }
  void TearDown() override { ::close(fd_); }

  Status load(ReadDepth depth, LoadedImage* loaded) { return load_image(fd_, image(), depth, loaded); }
  Status load(ReadDepth depth) {
    LoadedImage loaded;
    return load(depth, &loaded);
  }
  void set(std::uint64_t at, char value) { ASSERT_EQ(::pwrite(fd_, &value, 1, static_cast<off_t>(at)), 1); }
  // Flips a bit at `at` and expects it to be seen.
  void expect_seen(std::uint64_t at, ReadDepth depth) {
    set(at, static_cast<char>(bytes_[at] ^ (1 << at % 8)));
    const Status status = load(depth);
    EXPECT_TRUE(status.code() == Code::kCorrupt) << "byte " << at << ": " << status.text();
    set(at, bytes_[at]);
  }

  std::vector<char> bytes_;
  std::vector<PageBatch> batches_;
  std::uint64_t first_pages_ = ~0ull;
  int fd_ = -1;
};

TEST_F(Damage, EveryByteOfTheTablesCounts) {
  for (std::uint64_t at = 0; at < first_pages_ && !HasFailure(); ++at) expect_seen(at, ReadDepth::kTables);
  for (std::uint64_t at = bytes_.size() - kPage; at < bytes_.size() && !HasFailure(); ++at)
    expect_seen(at, ReadDepth::kTables);
  EXPECT_TRUE(load(ReadDepth::kEverything).ok());
}

TEST_F(Damage, EveryByteOfThePagesCounts) {
  // A prime step reaches every kind of byte; all of them would take minutes. Of the larger images that sanitizers
  // make no more bytes are tried: each try reads the whole image.
  const std::uint64_t step = std::max<std::uint64_t>(19997, bytes_.size() / 300 | 1);
  for (std::uint64_t at = first_pages_; at < bytes_.size() && !HasFailure(); at += step)
    expect_seen(at, ReadDepth::kEverything);
  // The header and runs of one record, every byte.
  for (std::uint64_t i = 0; i < 120 && !HasFailure(); ++i)
    expect_seen(batches_[0].record_offset + i, ReadDepth::kEverything);
}

TEST_F(Damage, EveryTruncationCounts) {
  const std::uint64_t step = std::max<std::uint64_t>(1, bytes_.size() / kPage / 1500) * kPage;
  for (std::uint64_t size = bytes_.size() - kPage; !HasFailure(); size -= std::min(size, step)) {
    ASSERT_EQ(::ftruncate(fd_, static_cast<off_t>(size)), 0);
    const Status status = load(ReadDepth::kTables);
    EXPECT_EQ(status.code(), Code::kCorrupt) << size << ": " << status.text();
    if (size == 0) break;
  }
  ASSERT_EQ(::pwrite(fd_, bytes_.data(), bytes_.size(), 0), static_cast<ssize_t>(bytes_.size()));
  for (const std::uint64_t extra : {1ull, 4095ull, 4096ull}) {
    ASSERT_EQ(::ftruncate(fd_, static_cast<off_t>(bytes_.size() + extra)), 0);
    EXPECT_EQ(load(ReadDepth::kTables).code(), Code::kCorrupt);
    ASSERT_EQ(::ftruncate(fd_, static_cast<off_t>(bytes_.size())), 0);
  }
  ASSERT_EQ(::ftruncate(fd_, static_cast<off_t>(bytes_.size() - 1)), 0);
  EXPECT_EQ(load(ReadDepth::kTables).code(), Code::kCorrupt);
}

TEST_F(Damage, AnotherImageIsNoImage) {
  const Status status = load_image(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC), "exe", ReadDepth::kTables,
                                   std::make_unique<LoadedImage>().get());
  EXPECT_EQ(status.code(), Code::kCorrupt);
}

}  // namespace
}  // namespace shadowib
