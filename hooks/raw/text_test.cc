// Reading /proc as text.
#include "hooks/raw/text.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string>

namespace shadowib {
namespace {

class StatusFile : public testing::Test {
 protected:
  void SetUp() override {
    const int fd = ::mkstemp(path_);
    ASSERT_GE(fd, 0);
    ::close(fd);
  }
  void TearDown() override { ::unlink(path_); }

  std::string read(const std::string& content, std::size_t capacity = 4096) {
    std::ofstream(path_) << content;
    std::string text(capacity, 'x');
    const long bytes = read_status_file(path_, text.data(), capacity);
    EXPECT_GE(bytes, 0);
    text.resize(static_cast<std::size_t>(bytes));
    return text;
  }

  char path_[32] = "/tmp/shadowib-text-XXXXXX";
};

TEST_F(StatusFile, HoldsAHashOfManyGroups) {
  std::string groups;
  for (int i = 0; i < 65536; ++i) groups += std::to_string(4'000'000'000u + static_cast<unsigned>(i)) + " ";
  const std::string before = "Name:\tGroups:\nNoGroups:\t1\n", behind = "CapEff:\t00000000000000ff\nSeccomp:\t2\n";
  const std::string text = read(before + "Groups:\t" + groups + "\n" + behind);
  ASSERT_EQ(text.size(), (before + "Groups:" + behind).size() + 17);
  EXPECT_EQ(text.substr(0, before.size()), before);
  EXPECT_EQ(text.substr(text.size() - behind.size()), behind);
  std::uint64_t value = 0;
  EXPECT_TRUE(read_status_field(path_, "CapEff:", &value));
  EXPECT_EQ(value, 255u);
  groups[groups.size() - 2] ^= 1;
  EXPECT_NE(read(before + "Groups:\t" + groups + "\n" + behind), text);
}

TEST_F(StatusFile, IsAsItIsElsewhere) {
  const std::string lines = "Name:\tx\nGroup\nGroups\n\nUid:\t1\n";
  EXPECT_EQ(read(lines), lines);
  EXPECT_EQ(read(lines, 8), lines.substr(0, 7));
  EXPECT_EQ(read(""), "");
  EXPECT_EQ(read("Groups:").size(), 7u + 16);
  char text[8];
  EXPECT_EQ(read_status_file("/nowhere", text, sizeof(text)), -ENOENT);
}

}  // namespace
}  // namespace shadowib
