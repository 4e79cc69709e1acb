// Levels of the psABI: what they are called, what they leave out, and that the loader keeps to it.
#include "hooks/imager/processor.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace shadowib {
namespace {

TEST(Processor, LevelsHaveNames) {
  EXPECT_EQ(processor_level("x86-64"), 1);
  EXPECT_EQ(processor_level("x86-64-v2"), 2);
  EXPECT_EQ(processor_level("x86-64-v4"), 4);
  for (const char* wrong : {"", "x86", "x86-64-", "x86-64-v1", "x86-64-v5", "x86-64-v3x", "X86-64-V3", "3"})
    EXPECT_EQ(processor_level(wrong), -1) << wrong;
}

TEST(Processor, ALevelAsksForNoMore) {
  ProcessorState all{}, none{};
  for (std::uint32_t& word : all.features) word = ~0u;
  ASSERT_NE(missing_feature(all, kAnyProcessorLevel, none), nullptr);
  EXPECT_EQ(missing_feature(none, kAnyProcessorLevel, none), nullptr);
  EXPECT_EQ(missing_feature(all, kAnyProcessorLevel, all), nullptr);
  EXPECT_EQ(missing_feature(all, 1, none), nullptr);  // what every processor has
  ProcessorState v3 = all;
  v3.features[2] &= ~(1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31);  // AVX-512
  v3.features[6] = 0;                                                         // XSAVEC
  EXPECT_EQ(missing_feature(all, 3, v3), nullptr);
  EXPECT_STREQ(missing_feature(all, 4, v3)->name, "AVX512F");
  v3.features[7] &= ~(1u << 5);
  EXPECT_STREQ(missing_feature(all, 3, v3)->name, "LZCNT");
  EXPECT_EQ(missing_feature(all, 2, v3), nullptr);
}

TEST(Processor, TunablesKeepWhatIsThere) {
  const std::string fresh = with_processor_level("", 3);
  EXPECT_EQ(fresh.rfind("glibc.cpu.hwcaps=-AVX512F,", 0), 0u) << fresh;
  EXPECT_EQ(fresh.find("-AVX2"), std::string::npos) << fresh;
  EXPECT_NE(with_processor_level("", 2).find("-AVX2"), std::string::npos);
  EXPECT_EQ(with_processor_level("glibc.malloc.check=1", 3), "glibc.malloc.check=1:" + fresh);
  EXPECT_EQ(with_processor_level("glibc.cpu.hwcaps=-SSSE3:glibc.malloc.check=1", 3),
            fresh + ",-SSSE3:glibc.malloc.check=1");
  EXPECT_EQ(with_processor_level(fresh, 3), fresh);
}

// What glibc's loader says of itself, told to keep to a level.
std::string loader_under(int level) {
  const std::string command =
      "GLIBC_TUNABLES='" + with_processor_level("", level) + "' /lib64/ld-linux-x86-64.so.2 --help";
  std::string text;
  std::array<char, 4096> buffer;
  FILE* said = ::popen(command.c_str(), "r");
  for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), said)) > 0;) text.append(buffer.data(), n);
  ::pclose(said);
  return text;
}

TEST(Processor, TheLoaderKeepsToALevel) {
  const int here = level_of_this_processor();
  for (int level = 2; level <= here; ++level) {
    const std::string text = loader_under(level);
    for (int other = 2; other <= kMostProcessorLevel; ++other) {
      const std::string found = "x86-64-v" + std::to_string(other) + " (supported";
      EXPECT_EQ(text.find(found) != std::string::npos, other <= level) << "level " << level << ":\n" << text;
    }
  }
}

}  // namespace
}  // namespace shadowib
