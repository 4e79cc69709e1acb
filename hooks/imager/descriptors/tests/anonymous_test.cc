// eventfd, timerfd, signalfd and epoll sets across checkpoint and restart.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <utility>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/tests/test_job.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib::test {
namespace {

std::uint64_t read_count(int fd) {
  std::uint64_t value = 0;
  return ::read(fd, &value, sizeof(value)) == sizeof(value) ? value : 0;
}

TEST(Anonymous, EventfdCountsModesAndSharing) {
  Job job;
  job.make = []() -> std::string {
    EXPECT_STEP(::eventfd(0, EFD_NONBLOCK) == 3);  // inherited by both
    return "";
  };
  job.before = [](int member) -> std::string {
    if (member == 0) {
      EXPECT_STEP(put(::eventfd(5, EFD_NONBLOCK), 10) == 10);
      EXPECT_STEP(put(::eventfd(3, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC), 11) == 11);
      EXPECT_STEP(put(::eventfd(0, 0), 12) == 12);
    }
    return "";
  };
  job.resumed = job.restarted = [](int member) -> std::string {
    if (member == 0) {
      EXPECT_STEP(read_count(10) == 5 && read_count(10) == 0);
      for (int i = 0; i < 3; ++i) EXPECT_STEP(read_count(11) == 1);
      EXPECT_STEP(read_count(11) == 0);
      EXPECT_STEP((::fcntl(11, F_GETFD) & FD_CLOEXEC) != 0 && (::fcntl(12, F_GETFL) & O_NONBLOCK) == 0);
      std::uint64_t seven = 7;
      EXPECT_STEP(::write(3, &seven, sizeof(seven)) == sizeof(seven));
    }
    meet();
    if (member == 1) EXPECT_STEP(read_count(3) == 7);
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

TEST(Anonymous, TimersAndSignals) {
  Job job;
  job.members = 1;
  job.before = [](int) -> std::string {
    itimerspec soon{{0, 0}, {0, 1000000}}, later{{5, 0}, {100, 0}}, off{};
    EXPECT_STEP(put(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), 10) == 10);
    EXPECT_STEP(::timerfd_settime(10, 0, &soon, nullptr) == 0);
    EXPECT_STEP(put(::timerfd_create(CLOCK_MONOTONIC, 0), 11) == 11);
    EXPECT_STEP(::timerfd_settime(11, 0, &later, nullptr) == 0);
    EXPECT_STEP(put(::timerfd_create(CLOCK_REALTIME, 0), 12) == 12);
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    itimerspec absolute{{0, 0}, {now.tv_sec + 50, 0}};
    EXPECT_STEP(::timerfd_settime(12, TFD_TIMER_ABSTIME, &absolute, nullptr) == 0);
    EXPECT_STEP(put(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), 14) == 14);
    EXPECT_STEP(::timerfd_settime(14, 0, &off, nullptr) == 0);
    pollfd expired{10, POLLIN, 0};
    EXPECT_STEP(::poll(&expired, 1, 5000) == 1);  // left unread
    for (const auto& [fd, period_ns] : {std::pair{15, 20000000}, {16, 1000}}) {
      const itimerspec periodic{{0, period_ns}, {0, period_ns}};
      EXPECT_STEP(put(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), fd) == fd);
      EXPECT_STEP(::timerfd_settime(fd, 0, &periodic, nullptr) == 0);
      expired.fd = fd;
      EXPECT_STEP(::poll(&expired, 1, 5000) == 1);  // left unread
    }
    sigset_t mask;
    ::sigemptyset(&mask);
    ::sigaddset(&mask, SIGUSR1);
    ::sigaddset(&mask, SIGRTMIN + 3);
    ::sigprocmask(SIG_BLOCK, &mask, nullptr);
    EXPECT_STEP(put(::signalfd(-1, &mask, SFD_NONBLOCK), 13) == 13);
    return "";
  };
  job.resumed = job.restarted = [](int) -> std::string {
    EXPECT_STEP(read_count(10) == 1 && read_count(10) == 0);
    EXPECT_STEP(read_count(14) == 0);
    for (const int periodic : {15, 16}) {
      pollfd again{periodic, POLLIN, 0};
      EXPECT_STEP(read_count(periodic) >= 1);
      EXPECT_STEP(::poll(&again, 1, 5000) == 1 && read_count(periodic) >= 1);
    }
    itimerspec left{};
    EXPECT_STEP(::timerfd_gettime(11, &left) == 0 && left.it_interval.tv_sec == 5);
    EXPECT_STEP(left.it_value.tv_sec >= 80 && left.it_value.tv_sec <= 100);
    EXPECT_STEP(::timerfd_gettime(12, &left) == 0 && left.it_value.tv_sec >= 30 && left.it_value.tv_sec <= 50);
    sigset_t mask;
    ::sigemptyset(&mask);
    ::sigaddset(&mask, SIGUSR1);
    ::sigaddset(&mask, SIGRTMIN + 3);
    ::sigprocmask(SIG_BLOCK, &mask, nullptr);
    ::raise(SIGRTMIN + 3);
    signalfd_siginfo info{};
    EXPECT_STEP(::read(13, &info, sizeof(info)) == sizeof(info));
    EXPECT_STEP(static_cast<int>(info.ssi_signo) == SIGRTMIN + 3);
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

std::map<std::uint64_t, std::uint32_t> ready(int epoll) {
  epoll_event events[16];
  int n = ::epoll_wait(epoll, events, 16, 0);
  std::map<std::uint64_t, std::uint32_t> result;
  for (int i = 0; i < n; ++i) result[events[i].data.u64] = events[i].events;
  return result;
}

TEST(Anonymous, EpollSetsNestedAndDupped) {
  Job job;
  job.members = 1;
  job.before = [](int) -> std::string {
    int p[2];
    EXPECT_STEP(::pipe(p) == 0 && ::write(p[1], "x", 1) == 1);  // 3, 4
    EXPECT_STEP(put(::eventfd(1, 0), 10) == 10);
    EXPECT_STEP(put(::epoll_create1(EPOLL_CLOEXEC), 20) == 20);  // outer, made first
    EXPECT_STEP(put(::epoll_create1(0), 21) == 21);
    EXPECT_STEP(::dup2(3, 30) == 30);
    auto add = [](int epoll, int fd, std::uint32_t events, std::uint64_t data) {
      epoll_event e{};
      e.events = events;
      e.data.u64 = data;
      return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) == 0;
    };
    EXPECT_STEP(add(21, 3, EPOLLIN, 0xdeadbeef12345678) && add(21, 30, EPOLLIN | EPOLLET, 30));
    EXPECT_STEP(add(21, 10, EPOLLOUT, 10) && add(20, 21, EPOLLIN, 21));
    return "";
  };
  job.resumed = job.restarted = [](int) -> std::string {
    EXPECT_STEP((::fcntl(20, F_GETFD) & FD_CLOEXEC) != 0);
    auto outer = ready(20), inner = ready(21);
    EXPECT_STEP(outer.size() == 1 && outer.contains(21));
    EXPECT_STEP(inner.size() == 3 && inner[0xdeadbeef12345678] == EPOLLIN && inner[10] == EPOLLOUT);
    EXPECT_STEP(!ready(21).contains(30) && "edge triggered");
    EXPECT_STEP(read_some(3, 1) == "x" && !ready(21).contains(0xdeadbeef12345678));
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

TEST(Anonymous, EpollEntriesOfOwnDescriptorsAreLeftToTheShim) {
  int epoll = ::epoll_create1(0);
  int own = UnownedDescriptors().own(::eventfd(1, 0));
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.u64 = 99;
  ASSERT_EQ(::epoll_ctl(epoll, EPOLL_CTL_ADD, own, &e), 0);
  std::string table, text;
  ASSERT_TRUE(capture_descriptors(0, &table).ok());
  ASSERT_TRUE(print_descriptors(table, false, &text).ok());
  EXPECT_EQ(text.find("watches " + std::to_string(own)), std::string::npos) << text;
  EXPECT_EQ(text.find("\n" + std::to_string(own) + " "), std::string::npos) << "an own descriptor is in the table";
  EXPECT_TRUE(ready(epoll).contains(99));
  close_owned_descriptor(own);
  ::close(epoll);
}

// A forked child's number of that kind is free, or another's.
TEST(Anonymous, EpollEntriesOfAParentsOwnDescriptorsAreLeftToItsShim) {
  const int epoll = ::epoll_create1(0), event = ::eventfd(1, 0), kept = ::dup(event);
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.u64 = kOwnedEntry;
  ASSERT_EQ(::epoll_ctl(epoll, EPOLL_CTL_ADD, event, &e), 0);
  ::close(event);
  std::string table, text;
  const Status captured = capture_descriptors(0, &table);
  ASSERT_TRUE(captured.ok()) << captured.text();
  ASSERT_TRUE(print_descriptors(table, false, &text).ok());
  EXPECT_EQ(text.find("watches " + std::to_string(event)), std::string::npos) << text;
  ::close(kept);
  ::close(epoll);
}

}  // namespace
}  // namespace shadowib::test
