#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "shadowib/base/event_descriptors.h"

namespace shadowib {
namespace {

TEST(SignalIo, IsRefusedWhereNoSignalWouldCome) {
  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  g_event_descriptors.add(fd);
  errno = 0;
  EXPECT_EQ(::fcntl(fd, F_SETFL, O_ASYNC | O_NONBLOCK), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(::fcntl(fd, F_GETFL) & (O_ASYNC | O_NONBLOCK), 0);
  EXPECT_EQ(::fcntl(fd, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(::fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  // The other way to ask: the kernel itself refuses it for an epoll set.
  int on = 1;
  EXPECT_EQ(::ioctl(fd, FIOASYNC, &on), -1);
  EXPECT_EQ(errno, ENOTTY);
  EXPECT_EQ(::fcntl(fd, F_SETOWN, ::getpid()), 0);
  g_event_descriptors.remove(fd);
  ::close(fd);
}

TEST(SignalIo, IsWhatItWasElsewhere) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(::fcntl(ends[0], F_SETFL, O_ASYNC), 0);
  EXPECT_EQ(::fcntl(ends[0], F_GETFL) & O_ASYNC, O_ASYNC);
  const int copy = ::fcntl(ends[0], F_DUPFD_CLOEXEC, 100);
  EXPECT_GE(copy, 100);
  for (int fd : {ends[0], ends[1], copy}) ::close(fd);
}

}  // namespace
}  // namespace shadowib
