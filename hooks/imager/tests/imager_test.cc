// Saves, kills and restarts the test subject, scenario by scenario.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "hooks/imager/image_reader.h"
#include "hooks/imager/restore/image_file.h"
#include "hooks/imager/save/mapping_table.h"
#include "hooks/imager/save/scratch.h"
#include "hooks/imager/saver.h"
#include "hooks/imager/tests/imager_fixture.h"
#include "hooks/imager/tests/subject.h"
#include "hooks/threads/thread_context.h"
#include "shadowib/base/descriptors.h"

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

// Whose scenario lets the saver go on.
class StoppedSaver : public Imager {
 protected:
  void comes_back(const char* scenario) {
    const Outcome saved = save(scenario, with_saver_that_stops);
    ASSERT_EQ(saved.status, kSaved) << saved.text;
    const Outcome restarted = restart();
    EXPECT_EQ(restarted.status, kRight) << restarted.text;
  }
};

TEST_P(Scenarios, RestartsAsASaverHasSavedIt) {
  const Outcome saved = save(GetParam(), with_saver);
  if (saved.text.starts_with("SKIP ")) GTEST_SKIP() << saved.text.substr(5, saved.text.find('\n') - 5);
  ASSERT_EQ(saved.status, kSaved) << saved.text;
  const Outcome restarted = restart();
  EXPECT_EQ(restarted.status, kRight) << restarted.text;
}

// The program writes all its memory again before the saver has written any.
TEST_F(StoppedSaver, SavesMemoryAsItWasWhenTheProgramWentOn) { comes_back("saver_memory"); }

TEST_F(StoppedSaver, CopiesRegisteredMemoryItself) { comes_back("saver_pinned"); }

TEST_F(StoppedSaver, ASaverOfManyAddressesEndsSoon) { comes_back("saver_of_many_addresses"); }

TEST_F(StoppedSaver, ChildrenHaveNothingOfASaver) { comes_back("saver_for_the_program_alone"); }

TEST_F(StoppedSaver, ASaverGivesItsMemoryBackBeforeItEnds) { comes_back("saver_gives_memory_back"); }

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

TEST_F(Imager, ASaverIsNobodysBeforeItGoesOn) {
  const Outcome saved = save("saver_with_a_slow_maker", with_saver_that_stops);
  EXPECT_EQ(saved.status, kSaved) << saved.text;
}

// The table of mappings lies in the rest, and is used for as long as the scratch is there.
TEST(Scratch, NothingIsTakenBehindTheRest) {
  Scratch scratch;
  ASSERT_TRUE(scratch.map(1 << 20));
  ASSERT_NE(scratch.take(100), nullptr);
  std::size_t bytes = 0;
  std::uint8_t* const rest = scratch.take_rest(&bytes);
  EXPECT_EQ(reinterpret_cast<std::uint64_t>(rest) + bytes, scratch.start() + scratch.bytes());
  EXPECT_EQ(scratch.take(1), nullptr);
  scratch.unmap();
}

// Room that is refused on the way is given back, with what was taken of it.
TEST(PinnedCopies, LeaveNothingWhereThereIsNoRoom) {
  static int calls;
  std::vector<char> memory(64 << 20);
  const auto start = (reinterpret_cast<std::uint64_t>(memory.data()) + 4095) & ~std::uint64_t{4095};
  const PinnedRange range{start, start + (60 << 20)};
  for (const int most : {0, 3}) {
    calls = most;
    PinnedCopies copies;
    EXPECT_FALSE(copies.prepare(
        &range, 1, [](void*) { return calls-- > 0; }, nullptr));
    EXPECT_EQ(copies.room(), 0u);
    copies.let_fork();
    EXPECT_TRUE(copies.put_in_place().ok());
    copies.end();
    std::uintptr_t at = 0;
    std::size_t bytes = 0;
    EXPECT_FALSE(find_owned_mapping(0, ~std::uintptr_t{0}, &at, &bytes));
  }
}

// A mapping above the vdso that the inspection has not seen: the table is read anew, where the first reading was.
TEST(MappingTable, IsReadAnewFromTheBeginning) {
  constexpr std::uintptr_t kHighest = 0x7fffffffe000;
  const MappingTable* inspected = nullptr;
  const Status status = inspect_mappings(&inspected);
  ASSERT_TRUE(status.ok()) << status.text();
  const std::uint32_t pieces = inspected->vdso->piece_count;
  void* const high = ::mmap(reinterpret_cast<void*>(kHighest), 4096, PROT_READ,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_EQ(high, reinterpret_cast<void*>(kHighest));
  Scratch scratch;
  ASSERT_TRUE(scratch.map(32 << 20));
  MappingTable table;
  const Status read = read_inspected_mappings(&scratch, SharedList{nullptr, 0}, &table);
  EXPECT_TRUE(read.ok()) << read.text();
  EXPECT_EQ(read.ok() ? table.vdso->piece_count : 0, pieces);
  scratch.unmap();
  ::munmap(high, 4096);
  forget_inspection(true);
}

std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t mapped = 0, pages = 0;
  statm >> mapped >> pages;
  return pages * 4096;
}

bool prepare_many(PinnedCopies* copies) {
  constexpr std::uint64_t kBegin = 1ull << 40, kApart = 3 << 20, kBytes = 64 << 10;
  std::vector<PinnedRange> ranges;
  for (std::uint64_t i = 0; i < 64; ++i) ranges.push_back({kBegin + i * kApart, kBegin + i * kApart + kBytes});
  const auto always = [](void*) { return true; };
  return copies->prepare(ranges.data(), static_cast<std::uint32_t>(ranges.size()), always, nullptr);
}

// Neither huge pages nor the gaps between copies.
TEST(PinnedCopies, TakeNoMoreMemoryThanTheRangesDo) {
  for (const bool locks : {false, true}) {
    SCOPED_TRACE(locks);
    if (locks && ::mlockall(MCL_FUTURE) != 0) GTEST_SKIP() << "memory cannot be locked";
    const std::uint64_t before = resident_bytes();
    PinnedCopies copies;
    const bool prepared = prepare_many(&copies);
    const std::uint64_t taken = resident_bytes() - before;
    copies.end();
    if (locks) ::munlockall();
    EXPECT_TRUE(prepared);
    EXPECT_GE(taken, 64u * (64 << 10));
    EXPECT_LT(taken, 4u * 64 * (64 << 10));
  }
}

// The room would count while the program runs.
TEST(PinnedCopies, AreNotForAProgramWhoseMemoryIsLimited) {
  for (const auto which : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(which, &before), 0);
    const rlimit limited{std::min<rlim_t>(before.rlim_max, 1ull << 46), before.rlim_max};
    ASSERT_EQ(::setrlimit(which, &limited), 0);
    PinnedCopies copies;
    EXPECT_FALSE(prepare_many(&copies));
    EXPECT_EQ(copies.room(), 0u);
    copies.end();
    ASSERT_EQ(::setrlimit(which, &before), 0);
  }
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
  EXPECT_NE(saved.text.find(" ms in the file system, and "), std::string::npos) << saved.text;
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
                                         Refusal{"refuse_path_without_end", "path is longer than"},
                                         Refusal{"refuse_first_process", "has pid 1"},
                                         Refusal{"refuse_userfaultfd", "userfaultfd"},
                                         Refusal{"refuse_secret_memory", "memfd_secret"},
                                         Refusal{"refuse_asynchronous_io", "libaio"},
                                         Refusal{"refuse_instrumented", "valgrind runs this program"},
                                         Refusal{"refuse_protection_key", "protection key"},
                                         Refusal{"refuse_locks_above_the_limit", "RLIMIT_MEMLOCK"}),
                         [](const auto& info) { return std::string(info.param.scenario); });

}  // namespace
}  // namespace shadowib
