// What a rehearsal says of images that were just saved, once as they are and then with one thing at a time changed as
// another machine would have it.
#include "hooks/imager/restore/rehearsal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "hooks/imager/descriptors/table.h"
#include "hooks/imager/restore/shared_memory.h"

namespace shadowib {
namespace {

namespace fs = std::filesystem;

constexpr int kSaved = 10;
constexpr MachineLimits kPlenty{65530, 0, ~0ull, ~0ull, 1 << 20, ~0ull, true};

class Rehearsal : public testing::Test {
 protected:
  Rehearsal() : directory_(fs::temp_directory_path() / ("shadowib-rehearsal-test-" + std::to_string(::getpid()))) {
    fs::remove_all(directory_);
    fs::create_directory(directory_);
  }
  ~Rehearsal() override {
    close_members(&set_);
    fs::remove_all(directory_);
  }

  // Saves the subject and opens its image as a set of one member.
  void save(const char* scenario) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::execl(SUBJECT, SUBJECT, scenario, directory_.c_str(), static_cast<char*>(nullptr));
      ::_exit(98);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kSaved) << status;
    SetManifest manifest{};
    manifest.path = directory_;
    manifest.members.resize(1);
    manifest.members[0].file = "0.img";
    const Status opened = open_members(manifest, {}, &set_);
    ASSERT_TRUE(opened.ok()) << opened.text();
    forget_sanitizer();
  }
  // ThreadSanitizer maps a deleted file of its own, which a rehearsal names rightly. It is none of the subject's.
  void forget_sanitizer() {
    for (std::size_t i = 0; i < image().paths.size(); ++i)
      if (image().paths[i].starts_with("/tmp/tsan.rodata.")) image().mappings[i].kind = MappingKind::kAnonymous;
  }
  LoadedImage& image() { return set_.members[0].image; }

  // The step of that name; all others are ready.
  RehearsedStep only(const std::string& what, const MachineLimits& limits = kPlenty) {
    RehearsedStep found{RehearsedStep::kReady, "", "there is no such step"};
    for (const RehearsedStep& step : rehearse_restart(set_, limits)) {
      if (what == step.what)
        found = step;
      else
        EXPECT_EQ(step.outcome, RehearsedStep::kReady) << step.what << ": " << step.text;
    }
    return found;
  }
  void expect(RehearsedStep::Outcome outcome, const std::string& what, const char* words,
              const MachineLimits& limits = kPlenty) {
    const RehearsedStep step = only(what, limits);
    EXPECT_EQ(step.outcome, outcome) << what << ": " << step.text;
    EXPECT_NE(step.text.find(words), std::string::npos) << what << ": " << step.text;
  }

  fs::path directory_;
  OpenedSet set_;
};

// The command has the descriptors of all members open at once, though each member has few.
TEST_F(Rehearsal, TellsThatDescriptorsOfAllMembersMayBeTooMany) {
  save("session_files");
  descriptors::Table table;
  ASSERT_TRUE(descriptors::decode_table(set_.tables[0], &table).ok());
  MachineLimits limits = kPlenty;
  limits.descriptors = table.descriptors.back().fd + 1u;
  expect(RehearsedStep::kReady, "descriptors", "can be had", kPlenty);
  expect(RehearsedStep::kLimited, "descriptors", "ulimit -Hn", limits);
}

TEST_F(Rehearsal, OfAnImageThatFits) {
  save("threads");
  expect(RehearsedStep::kReady, "pids", "recorded numbers can be had");
  expect(RehearsedStep::kReady, "C library", "glibc ");
  expect(RehearsedStep::kReady, "mapped files", "byte for byte");
}

TEST_F(Rehearsal, TellsAnotherProcessor) {
  save("single");
  const std::uint64_t xcr0 = image().process.xcr0;
  image().process.xcr0 |= 1ull << 62;
  expect(RehearsedStep::kRefused, "processor", "processor state");
  image().process.xcr0 = 1;  // the loader found nothing to save but what every processor has
  expect(RehearsedStep::kRefused, "processor", "its loader");
  image().process.xcr0 = xcr0;
  // All that is enabled here, and elsewhere: the loader of a processor without XSAVEC saves by place.
  ASSERT_NE(image().process.state_offsets[2], 0u) << "a processor without AVX";
  image().process.state_offsets[2] += 64;
  image().process.cpu_features[6] |= 2;
  expect(RehearsedStep::kReady, "processor", "has what");
  image().process.cpu_features[6] &= ~2u;
  expect(RehearsedStep::kRefused, "processor", "in another order");
  image().process.xcr0 = 1;
  image().process.binds_at_start = 1;
  expect(RehearsedStep::kReady, "processor", "has what");
  image().process.xcr0 = 0;
  std::uint32_t &of_intel = image().process.cpu_features[2], &of_amd = image().process.cpu_features[7];
  const std::uint32_t before[] = {of_intel, of_amd};
  of_intel = of_amd = ~0u;  // no processor has both RTM and XOP
  const bool has_all = only("processor").outcome == RehearsedStep::kReady;
  EXPECT_FALSE(has_all);
  image().process.processor_level = 1;
  EXPECT_EQ(only("processor").outcome, RehearsedStep::kReady);
  of_intel = before[0];
  of_amd = before[1];
}

TEST_F(Rehearsal, TheFirstRefusalIsTheRestarts) {
  save("single");
  EXPECT_TRUE(refusal_of_restart(set_, kPlenty).ok());
  image().cwd = directory_ / "gone";
  const Status gone = refusal_of_restart(set_, kPlenty);
  EXPECT_EQ(gone.code(), Code::kRefused) << "the set is there: " << gone.text();
  EXPECT_EQ(std::string(gone.text()).rfind("files: ", 0), 0u) << gone.text();
  image().process.xcr0 |= 1ull << 63;
  const Status lacks = refusal_of_restart(set_, kPlenty);
  EXPECT_EQ(lacks.code(), Code::kRefused);
  EXPECT_EQ(std::string(lacks.text()).rfind("processor: ", 0), 0u) << lacks.text();
}

TEST_F(Rehearsal, TellsAnotherKernel) {
  save("single");
  image().kernel = "2.6.32-other";
  std::fill(image().vdso_content.begin(), image().vdso_content.end(), 0);  // nothing to be led elsewhere
  expect(RehearsedStep::kRefused, "vdso", "2.6.32-other");
}

TEST_F(Rehearsal, TellsAnotherUser) {
  save("single");
  image().process.uid[0] = 12345;
  const pid_t pid = ::fork();
  if (pid == 0) {  // root may become anybody, so it must not be root who asks
    if (::geteuid() == 0 && (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0))
      ::_exit(97);
    for (const RehearsedStep& step : rehearse_restart(set_, kPlenty))
      if (std::string("user") == step.what)
        ::_exit(step.outcome == RehearsedStep::kRefused && step.text.find("12345") != std::string::npos ? 0 : 1);
    ::_exit(2);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(Rehearsal, TellsAnotherLibc) {
  save("single");
  std::string bytes(fs::file_size(directory_ / "0.img"), '\0');
  std::ifstream(directory_ / "0.img", std::ios::binary)
      .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const std::size_t release = bytes.find("release version ", bytes.find("GNU C Library"));
  ASSERT_NE(release, std::string::npos);
  bytes[release + std::strlen("release version ")] = '9';
  std::ofstream(directory_ / "other.img", std::ios::binary) << bytes;
  ::close(set_.members[0].fd);
  set_.members[0].fd = ::open((directory_ / "other.img").c_str(), O_RDONLY | O_CLOEXEC);
  bool refused = false;
  for (const RehearsedStep& step : rehearse_restart(set_, kPlenty))
    if (std::string("C library") == step.what)
      refused = step.outcome == RehearsedStep::kRefused && step.text.find("glibc 9.") != std::string::npos;
  EXPECT_TRUE(refused);
}

TEST_F(Rehearsal, TellsAPidThatCannotBeHad) {
  save("threads");
  image().threads.back().tid = 1 << 23;  // above the highest pid_max
  expect(RehearsedStep::kRefused, "pids", "8388608");
  image().threads.back().tid = image().process.pid;
  image().process.pid = 1;
  EXPECT_NE(only("pids").text.find("pid 1"), std::string::npos);
}

TEST_F(Rehearsal, TellsAProcessGroupThatWouldBeParted) {
  save("shared_files");  // with a table, which says whose numbers are of one namespace
  descriptors::Table own;
  ASSERT_TRUE(descriptors::decode_table(set_.tables[0], &own).ok());
  descriptors::Table table{.member = 1, .pid = 4000, .kernel = own.kernel, .processes = own.processes};
  descriptors::encode_table(table, &set_.tables[1]);
  const pid_t shell = image().process.process_group;
  set_.elsewhere = {{1, 4000, shell}};
  expect(RehearsedStep::kReady, "pids", "can be had");  // the leader is no member
  own.group = own.session = image().process.process_group = image().process.session = image().process.pid;
  descriptors::encode_table(own, &set_.tables[0]);
  set_.elsewhere[0].group = image().process.pid;
  expect(RehearsedStep::kRefused, "pids", "with member 1 (pid 4000): they have to be restarted together");
  table.processes += 1;  // the same number of another machine, or container
  descriptors::encode_table(table, &set_.tables[1]);
  expect(RehearsedStep::kReady, "pids", "can be had");
}

TEST_F(Rehearsal, TellsFilesThatAreGone) {
  save("single");
  const std::string exe = image().exe;
  image().exe = "/nothing/there";
  expect(RehearsedStep::kRefused, "files", "/nothing/there");
  image().exe = exe;
  image().cwd = directory_ / "gone";
  expect(RehearsedStep::kRefused, "files", "gone");
}

TEST_F(Rehearsal, TellsASharedFileOfAnotherSize) {
  save("single");
  std::ofstream(directory_ / "shared") << "four";
  MappingRecord m = image().mappings.front();
  m.kind = MappingKind::kSharedFile;
  m.file_bytes = 4;
  image().mappings.push_back(m);
  image().paths.push_back(directory_ / "shared");
  image().saved_bytes.push_back(0);
  expect(RehearsedStep::kReady, "files", "are there");
  image().mappings.back().file_bytes = 4096;
  expect(RehearsedStep::kRefused, "files", "has 4 bytes now");
}

// The file in /dev/shm that the subject had.
class SharedRehearsal : public Rehearsal {
 protected:
  void SetUp() override {
    save("shared_files");
    ASSERT_TRUE(descriptors::decode_table(set_.tables[0], &table_).ok());
    for (const descriptors::Segment& s : table_.segments)
      if (s.kind == descriptors::SegmentKind::kNamed) name_ = s.path;
    ASSERT_NE(name_, "");
    fs::create_directory(fs::path(name_).parent_path());
  }
  void TearDown() override {
    if (!name_.empty()) fs::remove_all(fs::path(name_).parent_path());
  }
  int make(mode_t mode) {
    fs::remove(name_);
    const int fd = ::open(name_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, mode);
    EXPECT_EQ(::fchmod(fd, mode), 0);
    return fd;
  }
  Status prepare() {
    SharedMemoryPlan plan;
    const Status status = plan.prepare(set_);
    plan.discard();
    return status;
  }

  descriptors::Table table_;
  std::string name_;
};

TEST_F(SharedRehearsal, TellsNamesThatAreTaken) {
  expect(RehearsedStep::kReady, "shared memory", "shared again");
  ::close(make(0640));
  expect(RehearsedStep::kRefused, "shared memory", "something else has that name now");
  ::close(make(0440));  // as it was: the job's own, left behind
  expect(RehearsedStep::kReady, "shared memory", "shared again");
  const int held = make(0440);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    ::close(ready[0]);
    ::close(ready[1]);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte;
  EXPECT_EQ(::read(ready[0], &byte, 1), 0);
  ::close(held);
  expect(RehearsedStep::kRefused, "shared memory", ("process " + std::to_string(holder)).c_str());
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  expect(RehearsedStep::kReady, "shared memory", "shared again");
  fs::remove(name_);
  fs::create_directory(name_);
  expect(RehearsedStep::kRefused, "shared memory", name_.c_str());
}

TEST_F(SharedRehearsal, TellsWhoIsElsewhere) {
  table_.member = 1;
  descriptors::encode_table(table_, &set_.tables[1]);
  expect(RehearsedStep::kRefused, "shared memory", "with member 1: they have to be restarted together");
  EXPECT_EQ(prepare().code(), Code::kRefused);
  // The same numbers of another machine are other memory.
  table_.kernel = "00000000-0000-0000-0000-000000000000";
  descriptors::encode_table(table_, &set_.tables[1]);
  expect(RehearsedStep::kReady, "shared memory", "shared again");
  EXPECT_TRUE(prepare().ok());
}

// Nothing is written where a table does not say that there is something.
TEST_F(SharedRehearsal, TellsAnImageThatLies) {
  EXPECT_TRUE(prepare().ok());
  ASSERT_FALSE(image().shared.empty());
  const std::uint32_t segment = image().shared[0].mapping;
  image().shared[0].mapping = 99;
  EXPECT_EQ(prepare().code(), Code::kCorrupt);
  image().shared[0].mapping = segment;
  for (descriptors::Segment& s : table_.segments) s.bytes = s.low = 0;
  descriptors::encode_table(table_, &set_.tables[0]);
  const Status status = prepare();
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(std::string(status.text()).find("behind the end"), std::string::npos) << status.text();
  EXPECT_FALSE(fs::exists(name_)) << "and nothing has a name yet";
}

TEST_F(Rehearsal, TellsMappedFilesThatChanged) {
  save("single");
  for (std::size_t i = 0; i < image().paths.size(); ++i)
    if (image().paths[i] == image().exe) image().paths[i] = directory_ / "other";
  expect(RehearsedStep::kLimited, "mapped files", "other");
}

TEST_F(Rehearsal, TellsWhatMemoryAndDescriptorsNeed) {
  save("single");
  MachineLimits limits = kPlenty;
  limits.map_count = image().mappings.size();
  expect(RehearsedStep::kRefused, "memory", "vm.max_map_count", limits);
  limits = kPlenty;
  limits.lowest_address = image().mappings.front().start + 1;
  expect(RehearsedStep::kRefused, "memory", "vm.mmap_min_addr", limits);
  limits = kPlenty;
  limits.highest_address = image().mappings.front().start;
  expect(RehearsedStep::kRefused, "memory", "addresses end at", limits);
  limits = kPlenty;
  limits.available_bytes = 4096;
  expect(RehearsedStep::kLimited, "memory", "0 MiB free", limits);
  limits = kPlenty;
  limits.guard_pages = false;
  expect(RehearsedStep::kReady, "memory", "MiB saved", limits);
  image().batches.push_back({0, kPagesGuard, 0, 1, 0});
  expect(RehearsedStep::kRefused, "memory", "guard pages", limits);
  image().batches.pop_back();
  image().mappings.front().advice |= kAdviceLocked;
  limits = kPlenty;
  limits.locked_bytes = 0;
  expect(RehearsedStep::kRefused, "memory", "RLIMIT_MEMLOCK", limits);
  image().mappings.front().advice = kAdviceSealed;
  limits = kPlenty;
  limits.seals = false;
  expect(RehearsedStep::kRefused, "memory", "Linux 6.10", limits);
  image().mappings.front().advice = kAdviceDroppable;
  limits = kPlenty;
  limits.droppable = false;
  expect(RehearsedStep::kRefused, "memory", "Linux 6.11", limits);
  image().mappings.front().advice = 0;
  limits = kPlenty;
  limits.address_bytes = 1 << 20;
  expect(RehearsedStep::kRefused, "memory", "RLIMIT_AS", limits);
  limits = kPlenty;
  limits.data_bytes = 1 << 20;
  expect(RehearsedStep::kRefused, "memory", "RLIMIT_DATA", limits);
  // A reserve that nobody may write to is no data. A sanitizer's terabytes are.
  const MappingRecord first = image().mappings.front();
  limits.data_bytes = std::uint64_t{1} << 46;
  image().mappings.front().protection = PROT_READ;
  image().mappings.front().kind = MappingKind::kAnonymous;
  image().mappings.front().flags = MAP_PRIVATE | MAP_ANONYMOUS;
  image().mappings.front().length = std::uint64_t{1} << 47;
  std::vector<PageBatch> batches;
  batches.swap(image().batches);
  limits.highest_address = ~0ull;
  expect(RehearsedStep::kReady, "memory", "MiB saved", limits);
  image().mappings.front().protection = PROT_READ | PROT_WRITE;
  expect(RehearsedStep::kRefused, "memory", "RLIMIT_DATA", limits);
  // One that is filled may be written to until then, be it the first of its record or not.
  image().mappings.front().protection = PROT_READ;
  std::vector<LoadedRun> runs{{image().mappings[1].start, kPage, 1}, {first.start, kPage, 0}};
  runs.swap(image().runs);
  image().batches.push_back({0, 0, 1, 2, 2});
  expect(RehearsedStep::kRefused, "memory", "RLIMIT_DATA", limits);
  image().runs.swap(runs);
  image().batches.swap(batches);
  image().mappings.front() = first;
  limits = kPlenty;
  limits.locked_bytes = 0;
  image().process.locks_future = 2;
  expect(RehearsedStep::kRefused, "memory", "MCL_FUTURE", limits);
}

TEST_F(Rehearsal, LimitsOfThisMachine) {
  const MachineLimits limits = machine_limits();
  EXPECT_GT(limits.highest_address, reinterpret_cast<std::uintptr_t>(&limits));
  EXPECT_GT(limits.map_count, 100u);
  EXPECT_GT(limits.descriptors, 16u);
  EXPECT_GT(limits.available_bytes, 1u << 20);
}

}  // namespace
}  // namespace shadowib
