// Images that hold what has changed since the one before.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "hooks/imager/borrowed_runs.h"
#include "hooks/imager/image_reader.h"
#include "hooks/imager/restore/image_file.h"
#include "hooks/imager/restore/image_packs.h"
#include "hooks/imager/save/base_index.h"
#include "hooks/imager/saver.h"
#include "hooks/imager/tests/imager_fixture.h"
#include "hooks/imager/tests/subject.h"

namespace shadowib {
namespace {

class Incremental : public Imager {
 protected:
#if defined(__SANITIZE_THREAD__)
  static constexpr bool kMuchChanges = true;  // of the sanitizer's own memory
#else
  static constexpr bool kMuchChanges = false;
#endif
  fs::path set(unsigned number) const { return directory_ / std::to_string(number); }
  fs::path numbered(unsigned number) const { return set(number) / "0.img"; }
  Outcome restart_set(unsigned number) { return run({RESTART_TOOL, set(number), "0"}); }
  void forget_all() {
    fs::remove_all(directory_);
    fs::create_directory(directory_);
  }
  ImageInfo info(unsigned number) {
    ImageInfo info;
    const Status status = read_image(numbered(number), &info);
    EXPECT_TRUE(status.ok()) << number << ": " << status.text();
    return info;
  }
  // Of the image that the process has saved as its n-th.
  static std::string pack_of_save(std::uint8_t n) {
    std::uint8_t set_id[16];
    std::fill(set_id, set_id + 16, n);
    return pack_name(0, set_id);
  }
  void expect_restart(unsigned number) {
    const Outcome restarted = restart_set(number);
    EXPECT_EQ(restarted.status, kRight) << number << restarted.text;
  }
  // As `gc` does.
  void keep_only(unsigned number) {
    for (unsigned i = 0; i < 20; ++i)
      if (i != number) fs::remove_all(set(i));
  }
};

TEST_F(Incremental, EachImageRestarts) {
  for (const auto& before : {incremental, incremental_with_saver}) {
    forget_all();
    const Outcome saved = save("incremental", before);
    ASSERT_EQ(saved.status, kSaved) << saved.text;
    EXPECT_EQ(saved.text.find("whole:"), std::string::npos) << saved.text;
    std::size_t most = 0;
    for (unsigned i = 0; i < 14; ++i) {
      const ImageInfo image = info(i);
      most = std::max(most, image.packs.size());
      if (i > 0 && !kMuchChanges) {
        EXPECT_LT(image.bytes, fs::file_size(numbered(0)) / 2) << i;
      }
      expect_restart(i);
    }
    if (!kMuchChanges) {
      EXPECT_EQ(most, test::kPacksOfSubject);
    }
    EXPECT_LE(info(test::kPacksOfSubject + 1).packs.size(), test::kPacksOfSubject / 2)
        << "half are left behind at once";
    keep_only(13);
    expect_restart(13);
  }
}

TEST_F(Incremental, APackThatIsLittleUsedIsLeftBehind) {
  ASSERT_EQ(save("incremental_halves", incremental).status, kSaved);
  const auto packs_of = [this](unsigned number) {
    std::set<std::string> files;
    for (const ImagePack& pack : info(number).packs) files.insert(pack.file);
    return files;
  };
  const std::string first = pack_of_save(1);
  EXPECT_TRUE(packs_of(0).empty());
  EXPECT_TRUE(packs_of(1).contains(first));
  // The second image uses less than half of the first one: the third has its pages again.
  EXPECT_FALSE(packs_of(2).contains(first));
  EXPECT_TRUE(packs_of(2).contains(pack_of_save(2)));
  for (unsigned i = 1; i < 5; ++i) expect_restart(i);
  keep_only(4);
  expect_restart(4);
}

// A restart opens packs by the command's paths and reads them in the program's root directory.
TEST_F(Incremental, PacksAreReadThroughDescriptorsWhereTheirPathsLeadNowhere) {
  ASSERT_EQ(save("incremental_shared", incremental).status, kSaved);
  const int fd = ::open(numbered(2).c_str(), O_RDONLY | O_CLOEXEC);
  LoadedImage image;
  ASSERT_TRUE(load_image(fd, numbered(2).string(), ReadDepth::kTables, &image).ok());
  std::vector<int> packs;
  for (const LoadedPack& pack : image.packs) packs.push_back(::open(pack.path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_FALSE(packs.empty());
  fs::rename(set(2), set(90));
  std::vector<std::uint8_t> pages;
  unsigned borrowed = 0;
  {
    ImageFiles named(image, fd), given(image, fd, packs);
    for (const PageBatch& batch : image.batches) {
      if (batch.pack == PageBatch::kOwnFile) continue;
      ++borrowed;
      EXPECT_FALSE(named.read(batch, &pages).ok());
      const Status status = given.read(batch, &pages);
      EXPECT_TRUE(status.ok()) << status.text();
    }
  }
  EXPECT_GT(borrowed, 0u);
  for (const int pack : packs) EXPECT_EQ(::close(pack), 0) << "it stays the caller's";
  ::close(fd);
}

TEST_F(Incremental, MemoryMayChangeWhileItIsSaved) {
  const Outcome saved = save("incremental_written", incremental);
  ASSERT_EQ(saved.status, kSaved) << saved.text;
  for (unsigned i = 0; i < 14; ++i) info(i);  // every checksum is right
  expect_restart(13);
}

TEST_F(Incremental, SharedMemoryHasItsOwnAddresses) {
  for (const auto& before : {incremental, incremental_with_saver}) {
    forget_all();
    const Outcome saved = save("incremental_shared", before);
    ASSERT_EQ(saved.status, kSaved) << saved.text;
    for (unsigned i = 0; i < 3; ++i) expect_restart(i);
  }
  EXPECT_FALSE(info(2).packs.empty());
}

// A set that does not restart is told of by whoever reads it.
TEST_F(Incremental, PacksAreChecked) {
  ASSERT_EQ(save("incremental", incremental).status, kSaved);
  const ImageInfo whole = info(3);
  ASSERT_FALSE(whole.packs.empty());
  const fs::path pack = set(3) / whole.packs[0].file, kept = directory_ / "kept";
  const auto expect_damaged = [this](const char* word) {
    ImageInfo info;
    const Status status = read_image(numbered(3), &info);
    EXPECT_EQ(status.code(), Code::kCorrupt) << word;
    EXPECT_NE(std::string(status.text()).find(word), std::string::npos) << status.text();
    EXPECT_EQ(restart_set(3).status, 100 + static_cast<int>(Code::kCorrupt)) << word;
  };
  fs::rename(pack, kept);
  expect_damaged("cannot be opened");
  fs::copy_file(numbered(4), pack);  // another set's
  expect_damaged("is not the file");
  fs::remove(pack);
  fs::copy_file(kept, pack);
  expect_restart(3);
  LoadedImage image;
  const int fd = ::open(numbered(3).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_TRUE(load_image(fd, numbered(3), ReadDepth::kTables, &image).ok());
  ::close(fd);
  const auto borrowed = std::find_if(image.batches.begin(), image.batches.end(), [&](const PageBatch& b) {
    return b.pack != PageBatch::kOwnFile && image.packs[b.pack].path == pack && (b.flags & kPagesClean) == 0;
  });
  ASSERT_NE(borrowed, image.batches.end());
  std::fstream file(pack, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(borrowed->data_offset() + 5));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(borrowed->data_offset() + 5));
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  expect_damaged("damaged");
}

// As version 7 was: runs of borrowed pages that stand each by itself. They need more room, so that all behind them
// moves.
void make_version_7(const fs::path& path) {
  std::stringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string bytes = content.str();
  std::string changed = bytes.substr(0, kPage);
  ImageHeader header;
  std::memcpy(&header, changed.data(), sizeof(header));
  ASSERT_EQ(header.version, kShortRuns);
  header.version = kIncremental;
  header.xxh3 = XXH3_64bits(&header, offsetof(ImageHeader, xxh3));
  std::memcpy(changed.data(), &header, sizeof(header));
  std::string headers = changed;
  RecordHeader h{};
  for (std::uint64_t at = kPage, next = 0; static_cast<RecordType>(h.type) != RecordType::kEnd; at = next) {
    std::memcpy(&h, bytes.data() + at, sizeof(h));
    next = at + record_bytes(h.length);
    std::string payload = bytes.substr(at + sizeof(h), record_bytes(h.length) - sizeof(h));
    if (static_cast<RecordType>(h.type) == RecordType::kBorrowed) {
      std::string runs = payload.substr(0, sizeof(BorrowedHeader));
      BorrowedRunCoder coder;
      for (std::uint64_t i = sizeof(BorrowedHeader); i < h.length;) {
        BorrowedRun run;
        const std::uint64_t taken =
            coder.get(reinterpret_cast<const std::uint8_t*>(payload.data()) + i, h.length - i, &run);
        ASSERT_NE(taken, 0u);
        runs.append(reinterpret_cast<const char*>(&run), sizeof(run));
        i += taken;
      }
      h.length = runs.size();
      payload = runs + std::string(record_bytes(h.length) - sizeof(h) - h.length, '\0');
      h.payload_xxh3 = XXH3_64bits(payload.data(), payload.size());
    } else if (static_cast<RecordType>(h.type) == RecordType::kEnd) {
      EndRecord end;
      std::memcpy(&end, payload.data(), sizeof(end));
      end.file_bytes = changed.size() + record_bytes(h.length);
      XXH128_canonical_t whole;
      XXH128_canonicalFromHash(&whole, XXH3_128bits(headers.data(), headers.size()));
      std::memcpy(end.xxh3, &whole, sizeof(whole));
      std::memcpy(payload.data(), &end, sizeof(end));
      h.payload_xxh3 = XXH3_64bits(payload.data(), payload.size());
    }
    h.header_xxh3 = XXH3_64bits_withSeed(&h, offsetof(RecordHeader, header_xxh3), changed.size());
    headers.append(reinterpret_cast<const char*>(&h), sizeof(h));
    changed.append(reinterpret_cast<const char*>(&h), sizeof(h)).append(payload);
  }
  ASSERT_GT(changed.size(), bytes.size());
  std::ofstream(path, std::ios::binary) << changed;
}

TEST_F(Incremental, RestartsAnImageOfVersion7) {
  ASSERT_EQ(save("incremental", incremental).status, kSaved);
  EXPECT_EQ(info(3).format_version, kShortRuns);
  make_version_7(numbered(3));
  EXPECT_EQ(info(3).format_version, kIncremental);
  expect_restart(3);
}

// An index of the image, as the next one would have it, knows the same pages before and after.
TEST_F(Incremental, AnImageOfVersion7IsGoneByAsOthersAre) {
  ASSERT_EQ(save("incremental", incremental).status, kSaved);
  const auto look = [this](std::vector<std::string>* found) {
    LoadedImage image;
    const int fd = ::open(numbered(3).c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_TRUE(load_image(fd, numbered(3), ReadDepth::kTables, &image).ok());
    const fs::path next = directory_ / "next";
    fs::remove_all(next);
    fs::create_directory(next);
    const int directory = ::open(next.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const std::string base = set(3);
    SaveRequest request{};
    request.base_directory = base.c_str();
    request.base_name = "0.img";
    BaseIndex index;
    const Status status = index.open(request, directory);
    ASSERT_TRUE(status.ok()) << status.text();
    ImageFiles files(image, fd);
    for (const PageBatch& batch : image.batches) {
      if (batch.pack == PageBatch::kOwnFile) continue;
      std::vector<std::uint8_t> pages;
      ASSERT_TRUE(files.read(batch, &pages).ok());
      std::uint64_t n = 0;
      for (std::uint32_t i = 0; i < batch.run_count; ++i) {
        const LoadedRun& run = image.runs[batch.first_run + i];
        for (std::uint64_t at = 0; at < run.length; at += kPage, ++n) {
          const XXH128_hash_t hash = XXH3_128bits(pages.data() + n * kPage, kPage);
          std::uint32_t pack = 0, page = 0;
          EXPECT_TRUE(index.find(0, run.address + at, {hash.low64, hash.high64}, &pack, &page));
          found->push_back(std::to_string(run.address + at) + " in " + std::to_string(pack) + ", " +
                           std::to_string(page));
        }
      }
    }
    ::close(directory);
    ::close(fd);
  };
  std::vector<std::string> before, after;
  look(&before);
  ASSERT_FALSE(before.empty());
  make_version_7(numbered(3));
  look(&after);
  EXPECT_EQ(before, after);
}

// What cannot be gone by is told, and the image has all pages.
TEST_F(Incremental, WritesAllWhereTheImageBeforeIsOfNoUse) {
  const auto expect_whole = [this](const char* treats, unsigned number, const std::string& word) {
    forget_all();
    ::setenv("IMAGER_TEST_BASE", treats, 1);
    const Outcome saved = save("incremental_shared", incremental);
    ::unsetenv("IMAGER_TEST_BASE");
    ASSERT_EQ(saved.status, kSaved) << saved.text;
    EXPECT_NE(saved.text.find("whole: the image before it " + word), std::string::npos) << saved.text;
    EXPECT_TRUE(info(number).packs.empty());
    expect_restart(number);
  };
  expect_whole("spoil", 1, "is damaged");
  expect_whole("remove", 1, "cannot be opened");
  expect_whole("lose pack", 2, "cannot be linked to");
  EXPECT_FALSE(fs::exists(set(2) / pack_of_save(2))) << "a name that is of no use stays";
}

}  // namespace
}  // namespace shadowib
