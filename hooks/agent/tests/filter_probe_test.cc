// What a member makes of the command that tries a seccomp filter: it may be refused, held up or absent.
#include "hooks/agent/filter_probe.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "hooks/threads/thread_judge.h"

namespace shadowib {
namespace {

class FilterProbe : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/shadowib-probe-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
    ASSERT_EQ(::setenv("SHADOWIB_COMMAND", (directory_ + "/command").c_str(), 1), 0);
    forget_filter_probe();
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void command_is(const std::string& script) {
    const std::string path = directory_ + "/command";
    std::filesystem::remove(path);
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  std::string directory_;
};

// Allows everything.
bool enter_filter() {
  sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  sock_fprog program{1, &allow};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    return false;
  note_place();
  return true;
}

void expect_passing(const Status& status, const char* why) {
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_EQ(status.error(), EAGAIN);
  EXPECT_NE(std::string(status.text()).find(why), std::string::npos) << status.text();
}

TEST_F(FilterProbe, KeepsNoAnswerButThatAllIsAllowed) {
  ASSERT_TRUE(place_has_filter() || enter_filter()) << errno;
  constexpr int kShort = 200;
  command_is("echo kcmp; exec sleep 5");
  expect_passing(probe_filter(kShort), "does not go on");
  command_is("exit 0");
  expect_passing(probe_filter(), "has ended before it tried a call");
  std::filesystem::remove(directory_ + "/command");
  const Status absent = probe_filter();
  EXPECT_EQ(absent.code(), Code::kRefused);
  EXPECT_EQ(absent.error(), ENOENT);
  EXPECT_NE(std::string(absent.text()).find(directory_), std::string::npos) << absent.text();
  command_is("echo brk; echo kcmp");
  const Status refused = probe_filter();
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_EQ(refused.error(), 0);
  EXPECT_NE(std::string(refused.text()).find("kcmp(2)"), std::string::npos) << refused.text();
  command_is("echo kcmp; echo done");
  EXPECT_TRUE(probe_filter().ok());
  std::filesystem::remove(directory_ + "/command");
  EXPECT_TRUE(probe_filter().ok());  // not asked again
  forget_filter_probe();
  EXPECT_FALSE(probe_filter().ok());
}

}  // namespace
}  // namespace shadowib
