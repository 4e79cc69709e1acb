// Saves, kills and restarts the test subject, scenario by scenario, and damages images in every way.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "hooks/imager/borrowed_runs.h"
#include "hooks/imager/image_reader.h"
#include "hooks/imager/restore/image_packs.h"
#include "hooks/imager/save/base_index.h"
#include "hooks/imager/saver.h"
#include "hooks/imager/tests/imager_fixture.h"
#include "hooks/imager/tests/subject.h"
#include "hooks/threads/thread_context.h"

namespace shadowib {
namespace {

class Scenarios : public Imager, public testing::WithParamInterface<const char*> {};

TEST_P(Scenarios, RestartsAsItWas) {
  const Outcome saved = save(GetParam());
  if (saved.text.starts_with("SKIP ")) GTEST_SKIP() << saved.text.substr(5, saved.text.find('\n') - 5);
  ASSERT_EQ(saved.status, kSaved) << saved.text;
  ImageInfo info;
  const Status status = read_image(image(), &info);
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_GT(info.pid, 0);
  EXPECT_EQ(info.comm, "imager_subject");
  const Outcome restarted = restart();
  EXPECT_EQ(restarted.status, kRight) << restarted.text;
}

INSTANTIATE_TEST_SUITE_P(All, Scenarios,
                         testing::Values("single", "identity", "heap", "language", "memory", "files", "changed_file",
                                         "deep_stack", "threads", "agent_thread", "vector_registers",
                                         "vector_registers_of_two", "signals", "parked_on_alternate_stack", "timers",
                                         "periodic_timer_that_is_pending", "many_threads", "robust_mutex",
                                         "mapping_states", "locked_memory"),
                         [](const auto& info) { return std::string(info.param); });

void with_saver_that_stops() {
  with_saver();
  ::setenv("IMAGER_TEST_SAVER_STOPS", "1", 1);
}

TEST_P(Scenarios, RestartsAsASaverHasSavedIt) {
  const Outcome saved = save(GetParam(), with_saver);
  if (saved.text.starts_with("SKIP ")) GTEST_SKIP() << saved.text.substr(5, saved.text.find('\n') - 5);
  ASSERT_EQ(saved.status, kSaved) << saved.text;
  const Outcome restarted = restart();
  EXPECT_EQ(restarted.status, kRight) << restarted.text;
}

// The program writes all its memory again before the saver has written any.
TEST_F(Imager, SavesMemoryAsItWasWhenTheProgramWentOn) {
  const Outcome saved = save("saver_memory", with_saver_that_stops);
  ASSERT_EQ(saved.status, kSaved) << saved.text;
  const Outcome restarted = restart();
  EXPECT_EQ(restarted.status, kRight) << restarted.text;
}

TEST_F(Imager, WritesAllByItselfWhereNoSaverCanBeMade) {
  const Outcome saved = save("saver_that_cannot_be", [] {
    if (::geteuid() == 0) become_nobody();  // whom the limit of processes binds
    with_saver();
  });
  ASSERT_EQ(saved.status, kSaved) << saved.text;
  const Outcome restarted = restart();
  EXPECT_EQ(restarted.status, kRight) << restarted.text;
}

TEST_F(Imager, HidesTheSaver) {
  const Outcome saved = save("saver_is_a_stranger", with_saver_that_stops);
  EXPECT_EQ(saved.status, kSaved) << saved.text;
  EXPECT_EQ(save("saver_of_one_that_adopts").status, kRight);
}

TEST(Saver, NeedsAKernelThatCopiesPinnedPages) {
  for (const char* release : {"5.12.0", "5.14.0-503.el9", "6.1.0-28-amd64", "10.0"})
    EXPECT_TRUE(copies_pinned_pages(release)) << release;
  for (const char* release : {"5.11.22", "5.4.0-200-generic", "4.18.0-553.el8"})
    EXPECT_FALSE(copies_pinned_pages(release)) << release;
}

// No complete image: the round fails, and the message tells why.
TEST_F(Imager, TellsHowASaverFailed) {
  ::setenv("IMAGER_TEST_DIRECTORY", directory_.c_str(), 1);
  const std::vector<std::pair<std::string, std::string>> kFailures{{"saver_killed", "was killed"},
                                                                   {"saver_without_directory", "was removed"},
                                                                   {"saver_changed_library", "was changed"},
                                                                   {"saver_cut_library", "was changed"}};
  for (const auto& [scenario, message] : kFailures) {
    const Outcome saved = save(scenario, with_saver_that_stops);
    EXPECT_EQ(saved.status, 20 + static_cast<int>(Code::kAborted)) << scenario << saved.text;
    EXPECT_NE(saved.text.find(message), std::string::npos) << scenario << saved.text;
  }
}

// The restored rows of kernel_state.def that have a scenario of their own.
std::vector<std::string> restored_states() {
  std::vector<std::string> names;
#define STATE(name, scope, handling, read, proof, covers) names.push_back(proof);
#include "hooks/imager/kernel_state.def"
#undef STATE
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::erase_if(names, [](const std::string& name) { return name.rfind("state_", 0) != 0; });
  return names;
}

class Restored : public Imager, public testing::WithParamInterface<std::string> {};

TEST_P(Restored, AfterARestart) {
  const Outcome saved = save(GetParam(), [] { ::setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1); });
  if (saved.text.starts_with("SKIP ")) GTEST_SKIP() << saved.text.substr(5, saved.text.find('\n') - 5);
  ASSERT_EQ(saved.status, kSaved) << saved.text;
  const Outcome restarted = restart();
  EXPECT_EQ(restarted.status, kRight) << restarted.text;
}

INSTANTIATE_TEST_SUITE_P(All, Restored, testing::ValuesIn(restored_states()),
                         [](const auto& info) { return info.param; });

#ifdef SUBJECT_ADDRESS
TEST_F(Imager, RestartsUnderSanitizers) {
  for (const auto& [subject, scenario] : std::vector<std::pair<std::string, std::string>>{
           {SUBJECT_ADDRESS, "heap"}, {SUBJECT_ADDRESS, "threads"}, {SUBJECT_THREAD, "heap"}}) {
    const Outcome saved = run({subject, scenario, directory_});
    ASSERT_EQ(saved.status, kSaved) << subject << saved.text;
    const Outcome restarted = restart();
    EXPECT_EQ(restarted.status, kRight) << subject << restarted.text;
  }
}
#endif

// A program that was rebuilt, or removed, while it ran.
TEST_F(Imager, RestartsAProgramWhoseFileIsAnother) {
  const fs::path program = directory_ / "replaceable";
  for (const auto& [scenario, says] :
       {std::pair{"program_replaced", false}, {"program_replaced_by_data", true}, {"program_removed", true}}) {
    fs::copy_file(SUBJECT, program, fs::copy_options::overwrite_existing);
    fs::permissions(program, fs::perms::owner_all);
    const Outcome saved = run({program, scenario, directory_});
    ASSERT_EQ(saved.status, kSaved) << scenario << saved.text;
    const Outcome restarted = restart();
    EXPECT_EQ(restarted.status, kRight) << scenario << restarted.text;
    EXPECT_EQ(restarted.text.find("was removed before the checkpoint") != std::string::npos, says) << restarted.text;
  }
}

// Two members with sessions and groups whose leaders are not among them, from images that were made one after the
// other.
TEST_F(Imager, RestartsSeveralMembers) {
  ASSERT_EQ(save("identity").status, kSaved);
  fs::rename(image(), directory_ / "a.img");
  const Outcome second = save("member_one");
  ASSERT_EQ(second.status, kSaved) << second.text;
  fs::rename(image(), directory_ / "b.img");
  const Outcome restarted = restart({"a", "b"});
  EXPECT_EQ(restarted.status, kRight) << restarted.text;
  EXPECT_NE(restarted.text.find("restored 2 processes"), std::string::npos) << restarted.text;
}

// One member cannot be restored: none of them runs, and the message names it.
TEST_F(Imager, RestartsAllOrNone) {
  ASSERT_EQ(save("single").status, kSaved);
  fs::rename(image(), directory_ / "a.img");
  ASSERT_EQ(save("member_one_without_directory").status, kSaved);
  fs::rename(image(), directory_ / "b.img");
  const Outcome restarted = restart({"a", "b"});
  EXPECT_EQ(restarted.status, 100 + static_cast<int>(Code::kNotFound)) << restarted.text;
  EXPECT_NE(restarted.text.find("member 1"), std::string::npos) << restarted.text;
  EXPECT_NE(restarted.text.find("working directory"), std::string::npos) << restarted.text;
  EXPECT_EQ(restarted.text.find("restored 2"), std::string::npos) << restarted.text;
}

// Each kind of shared memory of one process, seen as a file (by who may look into map_files) and through the mapping.
TEST_F(Imager, RestartsSharedMemory) {
  for (const auto& [privileged, has_saver] : {std::pair{true, false}, {false, false}, {false, true}}) {
    const bool becomes = ::geteuid() == 0 && !privileged;
    const auto before = [becomes, forks = has_saver] {
      if (becomes) become_nobody();
      if (forks) with_saver();
    };
    for (const char* scenario :
         {"shared_anonymous", "shared_files", "shared_segments", "deleted_files", "session_files"}) {
      fs::remove(image());  // of another user
      const Outcome saved = save(scenario, before);
      ASSERT_EQ(saved.status, kSaved) << scenario << saved.text;
      EXPECT_LT(fs::file_size(image()), 64u << 20) << "holes are saved";
      ImageInfo info;
      ASSERT_TRUE(read_image(image(), &info).ok());
      std::uint64_t shared = 0;
      for (const ImageMapping& m : info.mappings) shared += (m.flags & 1) != 0 ? m.saved_bytes : 0;
      EXPECT_GT(shared, 0u) << scenario;
      const Outcome restarted = restart({"0"}, before);
      EXPECT_EQ(restarted.status, kRight) << scenario << privileged << restarted.text;
    }
  }
}

// Every state comes back from images with hashes of their pages as it does from others.
TEST_P(Scenarios, RestartsFromHashedPages) {
  const Outcome saved = save(GetParam(), incremental);
  if (saved.text.starts_with("SKIP ")) GTEST_SKIP() << saved.text.substr(5, saved.text.find('\n') - 5);
  ASSERT_EQ(saved.status, kSaved) << saved.text;
  const Outcome restarted = run({RESTART_TOOL, directory_ / "0", "0"});
  EXPECT_EQ(restarted.status, kRight) << restarted.text;
}

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

void change_process(const fs::path& path, const std::function<void(ProcessRecord*)>& change) {
  ChangedImage image(path);
  ProcessRecord process;
  std::memcpy(&process, image.at(kPage + sizeof(RecordHeader)), sizeof(process));
  change(&process);
  std::memcpy(image.at(kPage + sizeof(RecordHeader)), &process, sizeof(process));
  image.seal(kPage);
  image.write();
}

// Where the image has the byte of `address`, and in which record.
std::uint64_t find_byte(ChangedImage& bytes, const LoadedImage& image, std::uint64_t address, std::uint64_t* record) {
  for (const PageBatch& b : image.batches) {
    std::uint64_t offset = b.record_offset + kPage;
    for (std::uint32_t i = 0; i < b.run_count; ++i) {
      PageRun run;
      std::memcpy(&run, bytes.at(b.record_offset + sizeof(RecordHeader) + sizeof(PagesHeader) + i * sizeof(run)),
                  sizeof(run));
      *record = b.record_offset;
      if (address - run.address < run.length) return offset + (address - run.address);
      offset += run.length;
    }
  }
  return 0;
}

// As version 3 was: a shorter record of the process, and threads whose contexts end earlier.
void make_version_3(const fs::path& path) {
  LoadedImage image;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_TRUE(load_image(fd, path, ReadDepth::kTables, &image).ok());
  ::close(fd);
  ChangedImage bytes(path);
  ImageHeader header;
  std::memcpy(&header, bytes.at(0), sizeof(header));
  header.version = 3;
  header.xxh3 = XXH3_64bits(&header, offsetof(ImageHeader, xxh3));
  std::memcpy(bytes.at(0), &header, sizeof(header));
  ASSERT_EQ(record_bytes(kProcessRecordBytes4), record_bytes(sizeof(ProcessRecord)));
  std::memset(bytes.at(kPage + sizeof(RecordHeader) + kProcessRecordBytes4), 0,
              sizeof(ProcessRecord) - kProcessRecordBytes4);
  std::memcpy(bytes.at(kPage + offsetof(RecordHeader, length)), &kProcessRecordBytes4, sizeof(kProcessRecordBytes4));
  bytes.seal(kPage);
  std::set<std::uint64_t> changed;  // records
  for (const ThreadRecord& thread : image.threads) {
    std::uint64_t record = 0;
    const std::uint64_t at = find_byte(bytes, image, thread.context + offsetof(ThreadContext, magic), &record);
    ASSERT_NE(at, 0u);
    std::memcpy(bytes.at(at), &kFirstThreadContextMagic, sizeof(kFirstThreadContextMagic));
    changed.insert(record);
    for (std::uint64_t byte = offsetof(ThreadContext, scheduler_runtime_ns); byte < sizeof(ThreadContext); ++byte) {
      const std::uint64_t there = find_byte(bytes, image, thread.context + byte, &record);
      *bytes.at(there) = static_cast<char>(0xff);  // what happened to lie there
      changed.insert(record);
    }
  }
  for (const std::uint64_t record : changed) bytes.seal(record);
  bytes.write();
}

TEST_F(Imager, RestartsAnImageOfVersion3) {
  ASSERT_EQ(save("threads").status, kSaved);
  make_version_3(image());
  const Outcome restarted = restart();
  EXPECT_EQ(restarted.status, kRight) << restarted.text;
}

// The machine of the checkpoint had more components enabled by default, such as protection keys: 3, 4 and 9.
TEST_F(Imager, RestartsWithLessProcessorStateThanWasPermitted) {
  ASSERT_EQ(save("single").status, kSaved);
  change_process(image(), [](ProcessRecord* p) { p->state_permission |= 1u << 3 | 1u << 4 | 1u << 9; });
  const Outcome restarted = restart();
  EXPECT_EQ(restarted.status, kRight) << restarted.text;
}

// A kernel with them gives every real-time thread a limit, and not every kernel has them.
TEST_F(Imager, RestartsWithoutUtilizationLimits) {
  ASSERT_EQ(save("threads").status, kSaved);
  LoadedImage loaded;
  const int fd = ::open(image().c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_TRUE(load_image(fd, image(), ReadDepth::kTables, &loaded).ok());
  ::close(fd);
  ChangedImage bytes(image());
  for (const ThreadRecord& thread : loaded.threads) {
    const std::uint32_t limits[2] = {1024, 1024};
    for (std::size_t byte = 0; byte < sizeof(limits); ++byte) {
      std::uint64_t record = 0;
      const std::uint64_t at =
          find_byte(bytes, loaded, thread.context + offsetof(ThreadContext, utilization_limits) + byte, &record);
      ASSERT_NE(at, 0u);
      *bytes.at(at) = reinterpret_cast<const char*>(limits)[byte];
      bytes.seal(record);
    }
  }
  bytes.write();
  const Outcome restarted = restart();
  EXPECT_EQ(restarted.status, kRight) << restarted.text;
}

// Values, adjustments of SEM_UNDO, messages and a segment that nobody has attached; by an ordinary user, too.
TEST_F(Imager, RestartsSemaphoresAndQueues) {
  for (const bool privileged : {true, false}) {
    const bool becomes = ::geteuid() == 0 && !privileged;
    const std::function<void()> before = becomes ? become_nobody : std::function<void()>();
    fs::remove(image());
    const Outcome saved = save("semaphores_and_queues", before);
    ASSERT_EQ(saved.status, kSaved) << saved.text;
    const Outcome restarted = restart({"0"}, before);
    EXPECT_EQ(restarted.status, kRight) << privileged << restarted.text;
  }
}

// What a restart would write into it, the library in it reads otherwise.
TEST_F(Imager, RefusesAnotherLayoutOfTheMailbox) {
  ASSERT_EQ(save("single").status, kSaved);
  change_process(image(), [](ProcessRecord*) {});
  EXPECT_EQ(restart().status, kRight);
  change_process(image(), [](ProcessRecord* p) { ++p->mailbox_layout; });
  ImageInfo info;
  EXPECT_TRUE(read_image(image(), &info).ok());  // it is whole
  const Outcome outcome = restart();
  EXPECT_EQ(outcome.status, 100 + static_cast<int>(Code::kVersion)) << outcome.text;
  EXPECT_EQ(outcome.text.find("restored"), std::string::npos) << outcome.text;
}

// Such a library restarts, but with the whole job: alone it would take the epoch for a new one.
TEST_F(Imager, RefusesALibraryThatCannotComeBackInItsEpoch) {
  const auto recovers = [] { ::setenv("IMAGER_TEST_RECOVERY", "1", 1); };
  ASSERT_EQ(save("single").status, kSaved);
  EXPECT_EQ(restart({"0"}, recovers).status, kRight);
  change_process(image(), [](ProcessRecord* p) { p->mailbox_layout = 3; });
  EXPECT_EQ(restart().status, kRight);
  const Outcome outcome = restart({"0"}, recovers);
  EXPECT_EQ(outcome.status, 100 + static_cast<int>(Code::kVersion)) << outcome.text;
  EXPECT_EQ(outcome.text.find("restored"), std::string::npos) << outcome.text;
}

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

TEST_F(Imager, RefusesSharedMemoryWithoutATable) {
  const Outcome outcome = save("refuse_memory_without_table");
  EXPECT_EQ(outcome.status, 20 + static_cast<int>(Code::kRefused)) << outcome.text;
  EXPECT_NE(outcome.text.find("memfd:buffer"), std::string::npos) << outcome.text;
  EXPECT_FALSE(fs::exists(image()));
}

class BrokenPages : public Imager {
 protected:
  void expect_refused(const char* scenario, const std::string& skipped) {
    for (const auto& before : std::vector<std::function<void()>>{{}, with_saver}) {
      const Outcome outcome = save(scenario, before);
      if (outcome.text.starts_with("SKIP")) GTEST_SKIP() << skipped;
      EXPECT_EQ(outcome.status, 20 + static_cast<int>(Code::kRefused)) << outcome.text;
      EXPECT_NE(outcome.text.find("cannot be read"), std::string::npos) << outcome.text;
      EXPECT_NE(outcome.text.find("anonymous memory"), std::string::npos) << outcome.text;
      ImageInfo info;
      EXPECT_FALSE(read_image(image(), &info).ok()) << "it is complete";
    }
  }
};

TEST_F(BrokenPages, AreRefused) {
  for (const char* scenario : {"refuse_unreadable_page", "refuse_poisoned_page"})
    expect_refused(scenario, "userfaultfd cannot poison pages here (Linux 6.6)");
}

TEST_F(BrokenPages, OfTheMachineAreRefused) {
  expect_refused("refuse_broken_page", "this kernel or user cannot poison memory (MADV_HWPOISON)");
}

// By an ordinary user too, who has a /dev/pts of his own only in the restart's namespaces.
TEST_F(Imager, RestartsOnATerminalOfItsOwn) {
  for (const bool privileged : {true, false}) {
    const bool becomes = ::geteuid() == 0 && !privileged;
    const std::function<void()> before = becomes ? become_nobody : std::function<void()>();
    fs::remove(image());
    const Outcome saved = save("terminals", before);
    ASSERT_EQ(saved.status, kSaved) << saved.text;
    const Outcome restarted = restart({"0"}, before);
    EXPECT_EQ(restarted.status, kRight) << privileged << restarted.text;
  }
}

TEST_F(Imager, RefusesHugePages) {
  const Outcome outcome = save("refuse_huge_pages");
  if (outcome.text.starts_with("SKIP")) GTEST_SKIP() << "no huge pages here";
  EXPECT_EQ(outcome.status, kRight) << outcome.text;
  EXPECT_NE(outcome.text.find("hugetlb"), std::string::npos) << outcome.text;
}

TEST_F(Imager, RestartsWithoutPrivilege) {
  if (::geteuid() != 0) GTEST_SKIP() << "runs as another user than root anyway";
  for (const char* scenario : {"single", "identity", "threads", "timers", "mapping_states"}) {
    const Outcome saved = save(scenario, become_nobody);
    ASSERT_EQ(saved.status, kSaved) << scenario << saved.text;
    const Outcome restarted = restart({"0"}, become_nobody);
    EXPECT_EQ(restarted.status, kRight) << scenario << restarted.text;
  }
}

TEST_F(Imager, RestartsWhatWasRestarted) {
  ASSERT_EQ(save("again").status, kSaved);
  for (const char* image : {"0", "1"}) {
    const Outcome restarted = restart({image});
    ASSERT_EQ(restarted.status, kSaved) << restarted.text;
  }
  const Outcome last = restart({"2"});
  EXPECT_EQ(last.status, kRight) << last.text;
  // The first image still is what it was.
  EXPECT_EQ(restart({"0"}).status, kSaved);
}

TEST_F(Imager, TellsAFullDisk) {
  const Outcome saved = save("single", [] { ::setenv("IMAGER_TEST_NO_SPACE", "1", 1); });
  EXPECT_EQ(saved.status, 20 + static_cast<int>(Code::kIo));
  EXPECT_NE(saved.text.find("no space"), std::string::npos) << saved.text;
  EXPECT_FALSE(fs::exists(image()));
}

// The command has given up, and the program would stand for nothing.
TEST_F(Imager, WritesNoImageThatNobodyWantsAnyMore) {
  const Outcome saved = save("single", [] { ::setenv("IMAGER_TEST_LATE", "1", 1); });
  EXPECT_EQ(saved.status, 20 + static_cast<int>(Code::kTimeout)) << saved.text;
  EXPECT_FALSE(fs::exists(image()));
}

TEST_F(Imager, TellsAFileThatMayNotGrow) {
  const Outcome saved = save("single", [] {
    const rlimit small{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &small);
    ::signal(SIGXFSZ, SIG_IGN);
  });
  EXPECT_EQ(saved.status, 20 + static_cast<int>(Code::kIo)) << saved.text;
  EXPECT_FALSE(fs::exists(image()));
}

struct Refusal {
  const char* scenario;
  const char* words;
};
class Refusals : public Imager, public testing::WithParamInterface<Refusal> {};

TEST_P(Refusals, NamesTheObject) {
  const Outcome outcome = save(GetParam().scenario);
  if (outcome.text.starts_with("SKIP")) GTEST_SKIP() << "this machine has no such memory";
  EXPECT_EQ(outcome.status, kRight) << outcome.text;
  EXPECT_NE(outcome.text.find(GetParam().words), std::string::npos) << outcome.text;
}

INSTANTIATE_TEST_SUITE_P(All, Refusals,
                         testing::Values(Refusal{"refuse_seccomp", "seccomp"}, Refusal{"refuse_traced", "traced by"},
                                         Refusal{"refuse_dead_main", "main thread"},
                                         Refusal{"refuse_removed_directory", "there (deleted), was removed"},
                                         Refusal{"refuse_first_process", "has pid 1"},
                                         Refusal{"refuse_userfaultfd", "userfaultfd"},
                                         Refusal{"refuse_secret_memory", "memfd_secret"},
                                         Refusal{"refuse_asynchronous_io", "libaio"},
                                         Refusal{"refuse_instrumented", "valgrind runs this program"},
                                         Refusal{"refuse_protection_key", "protection key"},
                                         Refusal{"refuse_locks_above_the_limit", "RLIMIT_MEMLOCK"}),
                         [](const auto& info) { return std::string(info.param.scenario); });

// --- damaged images ---

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
