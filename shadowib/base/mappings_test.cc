#include "shadowib/base/mappings.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
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

TEST(Mappings, UntilTheVisitorHasWhatItWants) {
  int calls = 0;
  EXPECT_EQ(for_each_mapping([&](const Mapping&) { return ++calls < 3; }), 0);
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace shadowib
