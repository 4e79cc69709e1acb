// Everything a supervisor makes, made by an ordinary user who is pid 1 in namespaces of its own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "hooks/imager/descriptors/tests/test_job.h"
#include "hooks/imager/descriptors/tests/test_sockets.h"

namespace shadowib::test {
namespace {

TEST(Unprivileged, RestartsInUserAndPidNamespaces) {
  Job job;
  job.unprivileged = true;
  std::uint16_t port = 0;
  std::string file = scratch_directory() + "/file";
  job.make = [&]() -> std::string {
    int p[2];
    EXPECT_STEP(listen_tcp(AF_INET, 3, &port) == 3);
    EXPECT_STEP(::socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0 && p[1] == 5);
    EXPECT_STEP(::pipe2(p, O_NONBLOCK) == 0 && p[1] == 7);
    return "";
  };
  job.before = [&](int member) -> std::string {
    ::close(4 + member);
    ::close(6 + member);
    if (member == 1) {
      ::close(3);
      EXPECT_STEP(connect_tcp(AF_INET, 10, port) == 10 && say(10, "tcp") && say(4, "unix"));
    } else {
      EXPECT_STEP(put(::accept(3, nullptr, nullptr), 10) == 10 && ::write(7, "pipe", 4) == 4);
    }
    EXPECT_STEP(put(::open(file.c_str(), O_CREAT | O_RDONLY, 0644), 11) == 11);
    EXPECT_STEP(put(::epoll_create1(0), 12) == 12);
    epoll_event e{};
    e.events = EPOLLIN;
    EXPECT_STEP(::epoll_ctl(12, EPOLL_CTL_ADD, 10, &e) == 0);
    meet();
    return "";
  };
  job.restarted = [](int member) -> std::string {
    epoll_event e{};
    if (member == 1) {
      EXPECT_STEP(read_some(6, 4) == "pipe" && (::fcntl(6, F_GETFL) & O_NONBLOCK) != 0);
      EXPECT_STEP(::epoll_wait(12, &e, 1, 0) == 0);
    } else {
      EXPECT_STEP(read_some(5, 4) == "unix" && ::epoll_wait(12, &e, 1, 0) == 1 && read_some(10, 3) == "tcp");
    }
    meet();
    return "";
  };
  std::string words = checkpoint_and_restart(job);
  if (words.find("SKIP") != std::string::npos) GTEST_SKIP() << words;
  EXPECT_EQ(words, "");
}

}  // namespace
}  // namespace shadowib::test
