// The in-process half takes nothing from the program's heap: a thread may be parked inside malloc, holding its lock.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "hooks/imager/descriptors.h"

namespace {
std::atomic<bool> g_forbidden{false};
std::atomic<int> g_calls{0};
void note_call() {
  if (g_forbidden.load()) g_calls.fetch_add(1);
}
}  // namespace

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
__attribute__((visibility("default"))) void* malloc(std::size_t n) {
  note_call();
  return __libc_malloc(n);
}
__attribute__((visibility("default"))) void* calloc(std::size_t n, std::size_t size) {
  note_call();
  return __libc_calloc(n, size);
}
__attribute__((visibility("default"))) void* realloc(void* p, std::size_t n) {
  note_call();
  return __libc_realloc(p, n);
}
}

namespace shadowib {
namespace {

TEST(Heap, CaptureLeavesTheProgramsHeapAlone) {
  void* volatile counted = nullptr;
  g_forbidden = true;
  counted = std::malloc(10);
  g_forbidden = false;
  std::free(counted);
  ASSERT_EQ(g_calls.exchange(0), 1) << "the count does not work";

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
  std::string bytes(1 << 20, 'x');
  (void)!::send(client, bytes.data(), bytes.size(), MSG_DONTWAIT);

  std::string table;
  g_forbidden = true;
  Status prepared = prepare_descriptors();
  Status captured = capture_descriptors(0, &table);
  abandon_descriptors();
  linger_for_kill();
  g_forbidden = false;
  EXPECT_EQ(g_calls.load(), 0);
  EXPECT_TRUE(prepared.ok());
  EXPECT_TRUE(captured.ok()) << captured.text();
  for (int fd : {p[0], p[1], pair[0], pair[1], epoll, event, listener, client, server}) ::close(fd);
}

}  // namespace
}  // namespace shadowib
