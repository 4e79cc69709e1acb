// What members' tables tell of shared memory, who is to write it, and who else may not have it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/capture/capture.h"
#include "hooks/imager/descriptors/match/match.h"
#include "hooks/imager/descriptors/table.h"
#include "hooks/imager/descriptors/tests/test_job.h"
#include "hooks/imager/shared_memory.h"

namespace shadowib::test {
namespace {

using descriptors::Segment;
using descriptors::SegmentKind;
using descriptors::Table;

constexpr std::size_t kPage = 4096, kBytes = 16 * kPage;

void* map(int fd, std::size_t bytes, std::size_t offset = 0) {
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
}

const Segment* find(const Table& table, SegmentKind kind, const std::string& path = "") {
  for (const Segment& s : table.segments)
    if (s.kind == kind && s.path == path) return &s;
  return nullptr;
}

Table decode(const Capture& capture, std::uint32_t member) {
  Table table;
  EXPECT_TRUE(descriptors::decode_table(capture.tables.at(member), &table).ok());
  return table;
}

// "w INDEX BYTES" among a member's lines.
bool writes(const std::map<std::uint32_t, std::string>& duties, std::uint32_t member, const Table& table,
            const Segment* s, std::uint64_t bytes) {
  const std::string line = "\nw " + std::to_string(s - table.segments.data()) + " " + std::to_string(bytes) + "\n";
  return duties.contains(member) && duties.at(member).find(line) != std::string::npos;
}

TEST(Memory, EachKindIsTold) {
  const std::string name = "/shadowib-memory-test-" + std::to_string(::getpid());
  Job job;
  job.members = 1;
  job.before = [&](int) -> std::string {
    int fd = ::memfd_create("ring", MFD_ALLOW_SEALING);
    EXPECT_STEP(put(fd, 20) == 20 && ::ftruncate(20, kBytes) == 0 && ::lseek(20, 7, SEEK_SET) == 7);
    EXPECT_STEP(::fcntl(20, F_ADD_SEALS, F_SEAL_GROW) == 0);
    fd = ::shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    EXPECT_STEP(::ftruncate(fd, kBytes + 5) == 0 && map(fd, kPage) != MAP_FAILED);
    ::close(fd);
    fd = ::shm_open((name + "x").c_str(), O_RDWR | O_CREAT, 0600);
    EXPECT_STEP(::ftruncate(fd, kBytes) == 0 && map(fd, kBytes) != MAP_FAILED);
    EXPECT_STEP(::shm_unlink((name + "x").c_str()) == 0);
    ::close(fd);
    // Open and not mapped: a file like others, but when it may be mapped next.
    EXPECT_STEP(put(::open(("/dev/shm" + name + "y").c_str(), O_RDWR | O_CREAT, 0600), 21) == 21);
    EXPECT_STEP(::write(21, "data", 4) == 4);
    EXPECT_STEP(put(::open(("/dev/shm" + name + "log").c_str(), O_RDWR | O_CREAT | O_APPEND, 0600), 23) == 23);
    EXPECT_STEP(put(::open(("/dev/shm" + name + "read").c_str(), O_RDONLY | O_CREAT, 0600), 24) == 24);
    EXPECT_STEP(put(::open(("/dev/shm" + name + "next").c_str(), O_RDWR | O_CREAT, 0600), 25) == 25);
    EXPECT_STEP(::ftruncate(25, 300) == 0);
    EXPECT_STEP(put(::open(scratch_directory().c_str(), O_TMPFILE | O_RDWR, 0600), 22) == 22);
    EXPECT_STEP(::ftruncate(22, 100) == 0);
    const int id = ::shmget(0x5d000000 + ::getpid(), kBytes, IPC_CREAT | 0640);
    EXPECT_STEP(::shmat(id, nullptr, 0) != reinterpret_cast<void*>(-1));
    EXPECT_STEP(::shmat(id, nullptr, SHM_RDONLY) != reinterpret_cast<void*>(-1));
    EXPECT_STEP(::shmctl(id, IPC_RMID, nullptr) == 0);
    return "";
  };
  const Capture capture = checkpoint(job);
  ::shm_unlink(name.c_str());
  for (const char* other : {"y", "log", "read", "next"}) ::shm_unlink((name + other).c_str());
  ASSERT_EQ(capture.failure, "");
  ASSERT_TRUE(capture.tables.contains(0)) << capture.refusals.at(0);
  const Table table = decode(capture, 0);
  const Segment* ring = find(table, SegmentKind::kMemfd, "ring");
  ASSERT_NE(ring, nullptr);
  EXPECT_EQ(ring->bytes, kBytes);
  EXPECT_EQ(ring->seals, static_cast<unsigned>(F_SEAL_GROW));
  EXPECT_EQ(ring->low, 0u);
  const Segment* named = find(table, SegmentKind::kNamed, "/dev/shm" + name);
  ASSERT_NE(named, nullptr);
  EXPECT_EQ(named->bytes, kBytes + 5);
  EXPECT_EQ(named->mode & 0777, 0600u);
  EXPECT_NE(find(table, SegmentKind::kUnlinked, "/dev/shm" + name + "x"), nullptr);
  for (const char* other : {"y", "log", "read"})
    EXPECT_EQ(find(table, SegmentKind::kNamed, "/dev/shm" + name + other), nullptr) << other;
  const Segment* next = find(table, SegmentKind::kNamed, "/dev/shm" + name + "next");
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->bytes, 300u);
  EXPECT_NE(find(table, SegmentKind::kAnonymous), nullptr) << "the test rig's own, inherited";
  const Segment* v = nullptr;
  for (const Segment& s : table.segments)
    if (s.kind == SegmentKind::kSystemV) v = &s;
  ASSERT_NE(v, nullptr);
  EXPECT_EQ(v->bytes, kBytes);
  EXPECT_EQ(v->mode, 0640u);
  EXPECT_EQ(v->removed, 1);
  EXPECT_EQ(v->attached_here, 2u);
  EXPECT_EQ(v->attached, 2u);
  for (const auto& d : table.descriptors) {
    const descriptors::Object& o = table.objects[d.object];
    if (d.fd == 20) {
      EXPECT_EQ(o.kind, descriptors::Kind::kMemory);
      EXPECT_EQ(o.offset, 7u);
    }
    if (d.fd == 21) {
      EXPECT_EQ(o.kind, descriptors::Kind::kFile);
    }
    if (d.fd == 22) {
      EXPECT_EQ(o.kind, descriptors::Kind::kMemory);
    }
  }
}

// A file that has been there for longer is one of the program's, however it is open.
TEST(Memory, OnlyWhatWasJustMadeMayBeMappedNext) {
  constexpr std::int64_t kNow = 1'800'000'000;
  for (const int age : {0, 1, 59, -1, -59}) EXPECT_TRUE(descriptors::just_made(kNow - age, kNow)) << age;
  for (const int age : {60, 90, 86400, -60, -86400}) EXPECT_FALSE(descriptors::just_made(kNow - age, kNow)) << age;
}

// Or a program that goes on writing would have one that is always new.
TEST(Memory, IsNoNewerForWhatIsWritten) {
  const std::string path = "/dev/shm/shadowib-memory-test-" + std::to_string(::getpid());
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  ASSERT_GE(fd, 0);
  ::unlink(path.c_str());
  struct statx known {};
  ASSERT_EQ(::statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &known), 0);
  if ((known.stx_mask & STATX_BTIME) == 0) GTEST_SKIP() << "this kernel knows no births of files in /dev/shm";
  const timespec made = descriptors::time_made(fd);
  struct stat before {
  }, after{};
  ASSERT_EQ(::fstat(fd, &before), 0);
  EXPECT_EQ(made.tv_sec, before.st_ctim.tv_sec);
  do {
    ASSERT_EQ(::pwrite(fd, "x", 1, 0), 1);
    ASSERT_EQ(::fstat(fd, &after), 0);
  } while (after.st_ctim.tv_sec == before.st_ctim.tv_sec && after.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
  const timespec written = descriptors::time_made(fd);
  EXPECT_EQ(made.tv_sec, written.tv_sec);
  EXPECT_EQ(made.tv_nsec, written.tv_nsec);
  ::close(fd);
}

// Who has a descriptor sees all; who has a mapping from there on where it begins.
TEST(Memory, WhoSeesMostWritesIt) {
  Job job;
  job.members = 3;
  job.make = []() -> std::string {
    for (const int fd : {20, 21}) EXPECT_STEP(put(::memfd_create(fd == 20 ? "a" : "b", 0), fd) == fd);
    EXPECT_STEP(::ftruncate(20, kBytes) == 0 && ::ftruncate(21, kBytes) == 0);
    return "";
  };
  job.before = [](int member) -> std::string {
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);  // where the streams lead need not be everybody's
    for (const int stream : {0, 1, 2}) EXPECT_STEP(::dup2(null, stream) == stream);
    EXPECT_STEP(::setresuid(65534, 65534, 65534) == 0 || ::geteuid() != 0);  // as who may not look into map_files
    // Of "a" nobody keeps a descriptor: member 1 has its beginning, member 2 its end.
    if (member == 0) EXPECT_STEP(map(20, kPage, 3 * kPage) != MAP_FAILED);
    if (member == 1) EXPECT_STEP(map(20, kPage) != MAP_FAILED);
    if (member == 2) EXPECT_STEP(map(20, kPage, 7 * kPage) != MAP_FAILED);
    ::close(20);
    if (member == 0) ::close(21);
    return "";
  };
  if (::geteuid() == 0) ::chmod(scratch_directory().c_str(), 0777);
  const Capture capture = checkpoint(job);
  ASSERT_EQ(capture.failure, "");
  ASSERT_EQ(capture.tables.size(), 3u) << (capture.refusals.empty() ? "" : capture.refusals.begin()->second);
  std::map<std::uint32_t, std::string> duties;
  const Status status = assign_shared_memory(capture.tables, &duties);
  ASSERT_TRUE(status.ok()) << status.text();
  const Table one = decode(capture, 1), two = decode(capture, 2);
  EXPECT_TRUE(writes(duties, 1, one, find(one, SegmentKind::kMemfd, "a"), 8 * kPage)) << duties[1];
  EXPECT_TRUE(writes(duties, 1, one, find(one, SegmentKind::kMemfd, "b"), kBytes))
      << "the first of those who see all";
  SharedMemorySource source;
  EXPECT_EQ(source.open(capture.tables.at(2), "").code(), Code::kVersion) << "or its content would be in no image";
  EXPECT_FALSE(writes(duties, 2, two, find(two, SegmentKind::kMemfd, "b"), kBytes));
  // On another machine the same numbers are other memory.
  std::map<std::uint32_t, std::string> moved = capture.tables;
  Table other = two;
  other.kernel = "00000000-0000-0000-0000-000000000000";
  descriptors::encode_table(other, &moved[2]);
  ASSERT_TRUE(assign_shared_memory(moved, &duties).ok());
  EXPECT_TRUE(writes(duties, 2, two, find(two, SegmentKind::kMemfd, "b"), kBytes)) << duties[2];
}

// Numbers of pipes and sockets are made different for different kernels; those of files stay what segments have.
TEST(Memory, DescriptorsFindTheirSegmentOnEveryMachine) {
  Job job;
  job.make = []() -> std::string {
    EXPECT_STEP(put(::memfd_create("ring", 0), 20) == 20);
    return "";
  };
  job.before = [](int) -> std::string { return ""; };
  const Capture capture = checkpoint(job);
  ASSERT_EQ(capture.failure, "");
  std::map<std::uint32_t, std::string> encoded = capture.tables;
  Table other = decode(capture, 1);
  other.kernel = "00000000-0000-0000-0000-000000000000";
  descriptors::encode_table(other, &encoded[1]);
  descriptors::Tables tables;
  ASSERT_TRUE(descriptors::decode_tables(encoded, &tables).ok());
  int found = 0;
  for (const auto& [member, table] : tables)
    for (const descriptors::Object& o : table.objects)
      if (o.kind == descriptors::Kind::kMemory) found += table.segment_of_file(o.device, o.inode) >= 0;
  EXPECT_EQ(found, 2);
}

TEST(Memory, WhatNobodyMayReadIsRefused) {
  Table table;
  Segment& s = table.segments.emplace_back();
  s.kind = SegmentKind::kMemfd;
  s.path = "write only";
  std::string bytes;
  descriptors::encode_table(table, &bytes);
  std::map<std::uint32_t, std::string> duties;
  const Status status = assign_shared_memory({{0, bytes}}, &duties);
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_NE(std::string(status.text()).find("memfd write only"), std::string::npos) << status.text();
}

// `make` gives the only member a segment, which a process that is no member keeps.
std::string refusal_beside_an_outsider(const std::function<std::string()>& make) {
  Job job;
  job.members = 1;
  std::string file = scratch_directory() + "/refusal";
  ::unlink(file.c_str());
  job.before = [&](int) -> std::string {
    if (std::string words = make(); !words.empty()) return words;
    const pid_t outsider = ::fork();
    if (outsider == 0) {
      ::alarm(20);
      ::pause();
    }
    std::string table;
    std::map<std::uint32_t, std::string> duties;
    SharedMemorySource source;
    Status status = capture_descriptors(0, &table);
    if (status.ok()) status = assign_shared_memory({{0, table}}, &duties);
    // Not of the rig's barrier, which the rig has too.
    Table decoded;
    EXPECT_STEP(descriptors::decode_table(table, &decoded).ok());
    const Segment* ring = find(decoded, SegmentKind::kMemfd, "ring");
    if (status.ok() && ring != nullptr)
      status = source.open(table, "w " + std::to_string(ring - decoded.segments.data()) + " 4096\n");
    source.close();
    const int out = ::open(file.c_str(), O_CREAT | O_WRONLY, 0600);
    const std::string text = status.code() == Code::kRefused ? status.text() : "it was not refused";
    EXPECT_STEP(::write(out, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    ::close(out);
    ::kill(outsider, SIGKILL);
    return "";
  };
  const Capture capture = checkpoint(job);
  if (!capture.failure.empty()) return capture.failure;
  const int in = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  std::string text = read_some(in, 300);
  ::close(in);
  return text;
}

TEST(Memory, ProcessesOutsideTheJobAreNamed) {
  std::string text = refusal_beside_an_outsider([]() -> std::string {
    const int fd = ::memfd_create("ring", 0);
    EXPECT_STEP(::ftruncate(fd, kPage) == 0 && map(fd, kPage) != MAP_FAILED);
    ::close(fd);
    return "";
  });
  EXPECT_NE(text.find("(memfd ring)"), std::string::npos) << text;
  EXPECT_NE(text.find("is no member of the job"), std::string::npos) << text;
  text = refusal_beside_an_outsider([]() -> std::string {
    const int id = ::shmget(IPC_PRIVATE, kPage, 0600);
    EXPECT_STEP(::shmat(id, nullptr, 0) != reinterpret_cast<void*>(-1));
    EXPECT_STEP(::shmctl(id, IPC_RMID, nullptr) == 0);
    return "";
  });
  EXPECT_NE(text.find("System V segment"), std::string::npos) << text;
  EXPECT_NE(text.find("attached 1 times by processes outside the job"), std::string::npos) << text;
}

}  // namespace
}  // namespace shadowib::test
