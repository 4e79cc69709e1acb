#include "shadowib/base/mappings.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace shadowib {
namespace {

TEST(Mappings, AreThoseOfTheFile) {
  // Enough of them that they are read in many pieces.
  constexpr int kPages = 600;
  auto* memory = static_cast<char*>(mmap(nullptr, kPages * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  for (int i = 0; i < kPages; i += 2) ASSERT_EQ(mprotect(memory + i * 4096, 4096, PROT_NONE), 0);
  std::vector<std::string> seen;
  seen.reserve(4096);
  ASSERT_EQ(for_each_mapping([&](const Mapping& m) {
              std::ostringstream text;
              text << std::hex << m.start << "-" << m.end << " " << m.name;
              seen.push_back(text.str());
              return true;
            }),
            0);
  std::ifstream maps("/proc/self/maps");
  std::vector<std::string> expected;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range, skipped, name;
    words >> range >> skipped >> skipped >> skipped >> skipped >> std::ws;
    std::getline(words, name);
    std::uint64_t start, end;
    ASSERT_EQ(std::sscanf(range.c_str(), "%lx-%lx", &start, &end), 2);
    std::ostringstream text;
    text << std::hex << start << "-" << end << " " << name;
    expected.push_back(text.str());
  }
  munmap(memory, kPages * 4096);
  ASSERT_GT(seen.size(), static_cast<std::size_t>(kPages));
  int differ = 0;  // the heap may have grown in between
  for (const std::string& line : seen) differ += std::find(expected.begin(), expected.end(), line) == expected.end();
  EXPECT_LE(differ, 2);
}

std::vector<std::string> described(MappingsOf kind, const char* maps) {
  std::vector<std::string> seen;
  seen.reserve(4096);
  EXPECT_EQ(for_each_mapping(kind, maps,
                             [&](const Mapping& m) {
                               std::ostringstream text;
                               text << std::hex << m.start << "-" << m.end << " " << m.readable << m.writable
                                    << m.executable << m.shared << " " << m.offset << " " << m.device << " "
                                    << m.inode << " " << m.name;
                               seen.push_back(text.str());
                               return true;
                             }),
            0);
  return seen;
}

// What the kernel filters, and what is filtered out of the text, as older kernels have it.
TEST(Mappings, OfAKindAreTheSameFromTheKernelAndFromTheText) {
  char file[] = "/tmp/shadowib-mappings-XXXXXX", copy[] = "/tmp/shadowib-mappings-XXXXXX";
  const int fd = mkstemp(file), text = mkstemp(copy);
  ASSERT_GE(fd, 0);
  ASSERT_GE(text, 0);
  ASSERT_EQ(ftruncate(fd, 3 * 4096), 0);
  const int kProtections[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_EXEC};
  std::vector<std::pair<void*, std::size_t>> made;
  for (int i = 0; i < 400; ++i)
    for (const int flags : {MAP_SHARED, MAP_PRIVATE, MAP_SHARED | MAP_ANONYMOUS, MAP_PRIVATE | MAP_ANONYMOUS}) {
      void* at = mmap(nullptr, 2 * 4096, kProtections[i % 4], flags, (flags & MAP_ANONYMOUS) != 0 ? -1 : fd, 4096);
      ASSERT_NE(at, MAP_FAILED);
      made.emplace_back(at, 2 * 4096);
    }
  unlink(file);  // "(deleted)"
  std::ifstream maps(kOwnMaps);
  std::ofstream(copy) << maps.rdbuf();
  int shared = 0, executable = 0;
  for (const MappingsOf kind : {MappingsOf::kShared, MappingsOf::kExecutable}) {
    std::vector<std::string> expected = described(kind, copy);
    // Not in the table that the kernel filters.
    std::erase_if(expected, [](const std::string& line) { return line.ends_with("[vsyscall]"); });
    std::vector<std::string> seen = described(kind, kOwnMaps);
    std::erase_if(seen, [](const std::string& line) { return line.ends_with("[vsyscall]"); });
    EXPECT_EQ(seen, expected);
    (kind == MappingsOf::kShared ? shared : executable) = static_cast<int>(seen.size());
  }
  EXPECT_GE(shared, 100);
  EXPECT_GE(executable, 100);
  for (const auto& [at, bytes] : made) munmap(at, bytes);
  close(fd);
  close(text);
  unlink(copy);
}

// While the table is read, other threads change it.
TEST(Mappings, ThatGrowMeanwhileAreToldOnce) {
  constexpr std::uint64_t kPage = 4096;
  char file[] = "/tmp/shadowib-mappings-XXXXXX";
  const int fd = mkstemp(file);
  ASSERT_GE(fd, 0);
  unlink(file);
  ASSERT_EQ(ftruncate(fd, 2 * kPage), 0);
  auto* memory = static_cast<char*>(mmap(nullptr, 2 * kPage, PROT_READ, MAP_PRIVATE, fd, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(memory, kPage, PROT_READ | PROT_EXEC), 0);
  const auto start = reinterpret_cast<std::uint64_t>(memory);
  std::vector<Mapping> seen;
  const auto visit = [&](const Mapping& m) {
    if (m.start < start || m.start >= start + 2 * kPage) return true;
    seen.push_back(m);
    return mprotect(memory, 2 * kPage, PROT_READ | PROT_EXEC) == 0 && seen.size() < 3;
  };
  EXPECT_EQ(for_each_mapping(MappingsOf::kExecutable, kOwnMaps, visit), 0);
  ASSERT_LE(seen.size(), 2u);
  EXPECT_EQ(seen[0].start, start);
  EXPECT_EQ(seen[0].end, start + kPage);
  if (seen.size() == 2) {  // the text may have been read before
    EXPECT_EQ(seen[1].start, start + kPage);
    EXPECT_EQ(seen[1].end, start + 2 * kPage);
    EXPECT_EQ(seen[1].offset, kPage);
  }
  munmap(memory, 2 * kPage);
  close(fd);
}

// A file whose path is longer than a line may be, and one whose name has a line's end.
TEST(Mappings, OfFilesWithStrangeNames) {
  constexpr std::size_t kPage = 4096;
  char top[] = "/tmp/shadowib-mappings-XXXXXX", copy[] = "/tmp/shadowib-mappings-XXXXXX";
  ASSERT_NE(mkdtemp(top), nullptr);
  const int text = mkstemp(copy);
  ASSERT_GE(text, 0);
  const std::string name(200, 'n'), ends = "a\nb\n" + std::string(150, '\n');
  std::vector<int> directories{open(top, O_PATH | O_DIRECTORY)};
  std::vector<void*> made;
  const auto map_file = [&](const std::string& file) {
    const int fd = openat(directories.back(), file.c_str(), O_RDWR | O_CREAT, 0600);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(ftruncate(fd, kPage), 0);
    made.push_back(mmap(nullptr, kPage, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0));
    ASSERT_NE(made.back(), MAP_FAILED);
    unlinkat(directories.back(), file.c_str(), 0);
    close(fd);
  };
  map_file(ends);
  for (int depth = 0; depth < 60; ++depth) {
    ASSERT_EQ(mkdirat(directories.back(), name.c_str(), 0700), 0);
    directories.push_back(openat(directories.back(), name.c_str(), O_PATH | O_DIRECTORY));
    ASSERT_GE(directories.back(), 0);
    if (depth % 6 == 0) map_file(name);
  }
  std::ifstream maps(kOwnMaps);
  std::ofstream(copy) << maps.rdbuf();
  for (const MappingsOf kind : {MappingsOf::kShared, MappingsOf::kExecutable})
    for (const char* from : {const_cast<const char*>(kOwnMaps), const_cast<const char*>(copy)}) {
      std::vector<std::uint64_t> seen;
      seen.reserve(1024);
      bool escaped = false;
      EXPECT_EQ(for_each_mapping(kind, from,
                                 [&](const Mapping& m) {
                                   seen.push_back(m.start);
                                   escaped =
                                       escaped || std::string(m.name).find("/a\\012b\\012") != std::string::npos;
                                   EXPECT_EQ(std::string(m.name).find('\n'), std::string::npos);
                                   return true;
                                 }),
                0);
      EXPECT_TRUE(escaped) << from;
      for (void* at : made)
        EXPECT_EQ(std::count(seen.begin(), seen.end(), reinterpret_cast<std::uint64_t>(at)), 1) << from;
    }
  for (void* at : made) munmap(at, kPage);
  while (directories.size() > 1) {
    close(directories.back());
    directories.pop_back();
    unlinkat(directories.back(), name.c_str(), AT_REMOVEDIR);
  }
  close(directories.back());
  close(text);
  rmdir(top);
  unlink(copy);
}

TEST(Mappings, UntilTheVisitorHasWhatItWants) {
  int calls = 0;
  EXPECT_EQ(for_each_mapping([&](const Mapping&) { return ++calls < 3; }), 0);
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace shadowib
