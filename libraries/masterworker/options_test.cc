#include "libraries/masterworker/options.h"

#include <gtest/gtest.h>

namespace shadowib::masterworker {
namespace {

struct Options : ::testing::Test {
  int workers = 2, verbose = 0;
  char* log = nullptr;
  std::vector<Option> all{{"num-slaves", &workers, nullptr, "workers", -1},
                          {"verbose", &verbose, nullptr, "talks"},
                          {"topc-log", nullptr, &log, "file"}};
};

TEST_F(Options, TakesItsOwnAndLeavesOthers) {
  std::vector<std::string> words{"in.dat", "--TOPC-num-slaves=7", "--other", "--TOPC-verbose", "--TOPC-topc-log=a=b"};
  EXPECT_EQ(take_options(words, all), "");
  EXPECT_EQ(words, (std::vector<std::string>{"in.dat", "--other"}));
  EXPECT_EQ(workers, 7);
  EXPECT_EQ(verbose, 1);
  EXPECT_STREQ(log, "a=b");
}

TEST_F(Options, RefusesByName) {
  std::vector<std::string> wrong{"--TOPC-num-slaves=many"};
  EXPECT_EQ(take_options(wrong, all), "--TOPC-num-slaves=many: a number is needed");
  wrong = {"--TOPC-num-slave=2"};
  EXPECT_NE(take_options(wrong, all).find("no such option"), std::string::npos);
  wrong = {"--TOPC-topc-log"};
  EXPECT_NE(take_options(wrong, all).find("a value is needed"), std::string::npos);
  wrong = {"--TOPC-num-slaves=99999999999"};
  EXPECT_NE(take_options(wrong, all), "");
  wrong = {"--TOPC-num-slaves=-2"};
  EXPECT_EQ(take_options(wrong, all), "--TOPC-num-slaves=-2: -1 is the least");
  EXPECT_EQ(workers, 2);
  wrong = {"--TOPC-num-slaves=-1", "--TOPC-verbose=-7"};
  EXPECT_EQ(take_options(wrong, all), "");
  EXPECT_EQ(workers, -1);
}

TEST_F(Options, ReadsFilesWithComments) {
  EXPECT_EQ(words_of("# mine\n--TOPC-verbose  --TOPC-trace=2 # all\n\n a#b"),
            (std::vector<std::string>{"--TOPC-verbose", "--TOPC-trace=2", "a#b"}));
}

TEST_F(Options, HelpNamesAll) {
  const std::string text = help_text("prog", all);
  EXPECT_NE(text.find("--TOPC-num-slaves[=N]"), std::string::npos);
  EXPECT_NE(text.find("--TOPC-topc-log=TEXT"), std::string::npos);
}

// The commands take up to 100,000. More than 10,000 counted as taken, and were not made.
TEST_F(Options, TakesAllNumbersOfWorkersThatCommandsTake) {
  EXPECT_EQ(workers_of("0"), 0u);
  EXPECT_EQ(workers_of("100000"), 100'000u);
  for (const char* wrong : {"100001", "-1", "", "8 more"}) EXPECT_FALSE(workers_of(wrong)) << wrong;
}

}  // namespace
}  // namespace shadowib::masterworker
