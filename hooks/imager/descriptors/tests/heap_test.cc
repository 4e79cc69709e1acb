// The in-process half takes nothing from the program's heap: a thread may be parked inside malloc, holding its lock.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pty.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "hooks/imager/descriptors.h"
#include "shadowib/base/testing/counted_heap.h"

namespace shadowib {
namespace {

TEST(Heap, CaptureLeavesTheProgramsHeapAlone) {
  test::expect_heap_calls_counted();
  if (testing::Test::HasFatalFailure()) return;

  int p[2], pair[2], epoll = ::epoll_create1(0), event = ::eventfd(3, 0);
  ASSERT_EQ(::pipe(p), 0);
  ASSERT_EQ(::write(p[1], "pipe", 4), 4);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  ASSERT_EQ(::send(pair[0], "unix", 4, 0), 4);
  epoll_event e{};
  ASSERT_EQ(::epoll_ctl(epoll, EPOLL_CTL_ADD, event, &e), 0);
  int listener = ::socket(AF_INET, SOCK_STREAM, 0), client = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(in);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&in), length), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&in), &length);
  ASSERT_EQ(::connect(client, reinterpret_cast<sockaddr*>(&in), length), 0);
  int server = ::accept(listener, nullptr, nullptr);
  int master = -1, slave = -1;
  ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, nullptr), 0);
  ASSERT_EQ(::write(master, "line\nrest", 9), 9);
  char name[] = "/tmp/shadowib-heap-XXXXXX";
  const int locked = ::mkstemp(name);
  struct flock range {};
  range.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(locked, F_SETLK, &range), 0);
  std::string bytes(1 << 20, 'x');
  (void)!::send(client, bytes.data(), bytes.size(), MSG_DONTWAIT);

  std::string table;
  test::g_heap_forbidden = true;
  Status prepared = prepare_descriptors();
  Status captured = capture_descriptors(0, &table);
  Status held = hold_record_locks();
  abandon_descriptors();
  linger_for_kill();
  test::g_heap_forbidden = false;
  EXPECT_EQ(test::g_heap_calls.load(), 0);
  EXPECT_TRUE(prepared.ok());
  EXPECT_TRUE(captured.ok()) << captured.text();
  EXPECT_TRUE(held.ok()) << held.text();
  ::unlink(name);
  for (int fd : {p[0], p[1], pair[0], pair[1], epoll, event, listener, client, server, master, slave, locked})
    ::close(fd);
}

}  // namespace
}  // namespace shadowib
