// The connection to a launcher: no reason to refuse, and silent after a restart.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/tests/test_job.h"
#include "hooks/imager/descriptors/tests/test_sockets.h"

namespace shadowib::test {
namespace {

constexpr int kConnection = 9, kEpoll = 10;

// What a library sees that polls it and still has something to send.
std::string expect_silent() {
  epoll_event events[4];
  char byte;
  EXPECT_STEP(::epoll_wait(kEpoll, events, 4, 100) == 0);
  EXPECT_STEP(::send(kConnection, "a message", 9, MSG_NOSIGNAL | MSG_DONTWAIT) == 9);
  EXPECT_STEP(::recv(kConnection, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
  EXPECT_STEP(::epoll_wait(kEpoll, events, 4, 100) == 0);
  epoll_event writable{EPOLLOUT, {}};
  EXPECT_STEP(::epoll_ctl(kEpoll, EPOLL_CTL_MOD, kConnection, &writable) == 0);
  EXPECT_STEP(::epoll_wait(kEpoll, events, 4, 1000) == 1 && events[0].events == EPOLLOUT);
  return "";
}

TEST(Launcher, ConnectionIsSilentAfterARestartAndTheNext) {
  std::uint16_t port = 0;
  const int outside = listen_tcp(AF_INET, 100, &port);  // of this process, which is none of the job's
  Job job;
  job.members = 1;
  job.before = [&](int) -> std::string {
    EXPECT_STEP(connect_tcp(AF_INET, kConnection, port) == kConnection);
    EXPECT_STEP(put(::epoll_create1(0), kEpoll) == kEpoll);
    epoll_event event{EPOLLIN, {}};
    EXPECT_STEP(::epoll_ctl(kEpoll, EPOLL_CTL_ADD, kConnection, &event) == 0);
    EXPECT_STEP(note_launcher_descriptor(kConnection));
    return "";
  };
  job.resumed = [](int) -> std::string {
    EXPECT_STEP(::send(kConnection, "unharmed", 8, MSG_NOSIGNAL) == 8);
    return "";
  };
  std::string again;
  job.restarted = [&](int member) -> std::string {
    note_restored_launcher_descriptors();
    if (const std::string wrong = expect_silent(); !wrong.empty()) return wrong;
    // As the original's memory has it.
    EXPECT_STEP(note_launcher_descriptor(kConnection));
    std::string table;
    const Status status = capture_descriptors(static_cast<std::uint32_t>(member), &table);
    return status.ok() ? "" : status.text();
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
  const int accepted = ::accept(outside, nullptr, nullptr);
  EXPECT_EQ(read_some(accepted, 8), "unharmed");
  ::close(accepted);
  ::close(outside);
}

// What a launcher has left open: its sockets and pipes are none of the job's, and a restart has none of them.
TEST(Launcher, WhatIsLeftOutIsNotThereAfterARestart) {
  constexpr int kPipe = 11, kSocket = 12, kOwn = 13;
  std::uint16_t port = 0;
  const int outside = listen_tcp(AF_INET, 100, &port);
  Job job;
  job.members = 1;
  job.before = [&](int) -> std::string {
    int pipe[2];
    EXPECT_STEP(::pipe(pipe) == 0 && put(pipe[1], kPipe) == kPipe);
    ::close(pipe[0]);
    EXPECT_STEP(connect_tcp(AF_INET, kSocket, port) == kSocket);
    EXPECT_STEP(put(::open("/dev/null", O_RDONLY), kOwn) == kOwn);
    EXPECT_STEP(leave_out_descriptor(kPipe) && leave_out_descriptor(kSocket));
    EXPECT_STEP(!leave_out_descriptor(kOwn));  // only what leads elsewhere can be
    return "";
  };
  job.resumed = [](int) -> std::string {
    EXPECT_STEP(::send(kSocket, "unharmed", 8, MSG_NOSIGNAL) == 8);
    EXPECT_STEP(::fcntl(kPipe, F_GETFD) >= 0);
    return "";
  };
  job.restarted = [](int) -> std::string {
    for (const int fd : {kPipe, kSocket}) EXPECT_STEP(::fcntl(fd, F_GETFD) == -1 && errno == EBADF);
    EXPECT_STEP(::fcntl(kOwn, F_GETFD) >= 0);
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
  const int accepted = ::accept(outside, nullptr, nullptr);
  EXPECT_EQ(read_some(accepted, 8), "unharmed");
  ::close(accepted);
  ::close(outside);
}

// A number that the program has used for something else since is that.
TEST(Launcher, NumberOfAClosedConnectionIsNone) {
  std::uint16_t port = 0;
  const int outside = listen_tcp(AF_INET, 100, &port);
  Job job;
  job.members = 1;
  job.before = [&](int) -> std::string {
    EXPECT_STEP(connect_tcp(AF_INET, kConnection, port) == kConnection);
    EXPECT_STEP(note_launcher_descriptor(kConnection));
    EXPECT_STEP(connect_tcp(AF_INET, kConnection, port) == kConnection);
    return "";
  };
  const Capture capture = checkpoint(job);
  ASSERT_EQ(capture.failure, "");
  const bool refused = capture.refusals.contains(0) || !match_descriptors(capture.tables).ok();
  EXPECT_TRUE(refused);
  ::close(outside);
}

}  // namespace
}  // namespace shadowib::test
