// Descriptors of ours survive a program that closes everything it can name.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

bool open_number(int fd) { return fcntl(fd, F_GETFD) >= 0; }

class DescriptorGuards : public testing::Test {
 protected:
  void SetUp() override { ours_ = UnownedDescriptors().own(open("/dev/null", O_RDONLY)); }
  void TearDown() override { close_owned_descriptor(ours_); }
  // In a child, since everything else is closed, too.
  void survives(void (*close_all)(int ours)) {
    pid_t pid = fork();
    if (pid == 0) {
      close_all(ours_);
      _exit(open_number(ours_) ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  int ours_ = -1;
};

TEST_F(DescriptorGuards, OneByOne) {
  survives([](int) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    for (int fd = 0; fd < static_cast<int>(limit.rlim_cur); ++fd) close(fd);
  });
  errno = 0;
  EXPECT_EQ(close(ours_), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST_F(DescriptorGuards, CloseRange) {
  survives([](int) { close_range(0, UINT_MAX, 0); });
  survives([](int ours) {
    int below = open("/dev/null", O_RDONLY);
    int above = fcntl(below, F_DUPFD, ours + 1);
    close_range(static_cast<unsigned>(below), static_cast<unsigned>(ours) + 1, 0);
    if (open_number(below) || (above == ours + 1 && open_number(above))) _exit(2);
  });
  EXPECT_EQ(close_range(static_cast<unsigned>(ours_), static_cast<unsigned>(ours_), 0), 0);
  EXPECT_TRUE(open_number(ours_));
}

TEST_F(DescriptorGuards, CloseFrom) {
  survives([](int) { closefrom(0); });
  survives([](int) {
    int fd = open("/dev/null", O_RDONLY);
    closefrom(3);
    if (open_number(fd)) _exit(2);
  });
}

TEST_F(DescriptorGuards, DupOntoOursIsRefusedAsOutOfRange) {
  errno = 0;
  EXPECT_EQ(dup2(0, ours_), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(dup3(0, ours_, O_CLOEXEC), -1);
  EXPECT_TRUE(is_owned_descriptor(ours_));
  int fd = dup2(0, 97);
  EXPECT_EQ(fd, 97);
  EXPECT_EQ(close(97), 0);
}

}  // namespace
}  // namespace shadowib
