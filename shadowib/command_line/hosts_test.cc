#include "shadowib/command_line/hosts.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>

namespace command_line {
namespace {

TEST(Hosts, AreParsedOrRefused) {
  std::vector<Host> hosts;
  EXPECT_EQ(parse_hosts("a:2,b,[::1]:4", &hosts), "");
  ASSERT_EQ(hosts.size(), 3u);
  EXPECT_EQ(hosts[0].slots, 2);
  EXPECT_EQ(hosts[1].name, "b");
  EXPECT_EQ(hosts[1].slots, 1);
  EXPECT_EQ(hosts[2].name, "[::1]");
  EXPECT_EQ(hosts_text(hosts), "a:2,b:1,[::1]:4");
  EXPECT_EQ(parse_hosts("a:2:aarch64,s390x,b:s390x", &hosts), "");
  ASSERT_EQ(hosts.size(), 3u);
  EXPECT_EQ(hosts[0].architecture, "aarch64");
  EXPECT_EQ(hosts[0].slots, 2);
  EXPECT_EQ(hosts[1].name, "s390x") << "a host's name may be an architecture's";
  EXPECT_EQ(hosts_text(hosts), "a:2:aarch64,s390x:1,b:1:s390x");
  for (const char* wrong : {"", "a:0", "a:x", ":2", "a,,b", "-oProxyCommand=x:1", "a:-1", "a:99999", "a:2:mips",
                            "a:x:aarch64", ":aarch64"}) {
    EXPECT_NE(parse_hosts(wrong, &hosts), "") << wrong;
    EXPECT_TRUE(hosts.empty());
  }
}

TEST(Quoted, IsOneWordOfAShell) { EXPECT_EQ(in_quotes("a'b c"), "'a'\\''b c'"); }

// The remote shell here is a command that runs what it is given for its host.
TEST(LineForHost, RunsTheWordsWithSomeVariables) {
  ::setenv("HOSTS_TEST_SEEN", "a b'c", 1);
  ::setenv("HOSTS_TEST_HIDDEN", "1", 1);
  const std::string line =
      line_for_host({"/bin/sh", "-c", "[ \"$HOSTS_TEST_SEEN\" = \"a b'c\" ] && [ \"$1 $2\" = \"x  y $\" ] && exit 7",
                     "sh", "x  y", "$"},
                    [](const std::string& name) { return name == "HOSTS_TEST_SEEN"; });
  EXPECT_EQ(line.find("HOSTS_TEST_HIDDEN"), std::string::npos);
  const std::vector<std::string> words = words_for_host("env -i sh -c 'shift; eval \"$1\"' sh", "a", line);
  std::string all;
  for (const std::string& word : words) all += in_quotes(word) + " ";
  const int status = std::system(all.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 7) << all;
}

}  // namespace
}  // namespace command_line
