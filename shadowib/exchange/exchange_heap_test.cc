// Nothing of the program's heap is taken by an exchange that is opened and used while a thread may be parked inside
// malloc, holding its lock.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "shadowib/exchange/exchange.h"
#include "shadowib/exchange/tests/redis_server.h"

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

void use(const std::string& uri) {
  void* volatile counted = nullptr;
  g_calls = 0;
  g_forbidden = true;
  counted = std::malloc(10);
  g_forbidden = false;
  std::free(counted);
  ASSERT_EQ(g_calls.exchange(0), 1) << "the count does not work";

  std::vector<std::string> names;
  std::string value, large(3 << 20, 'x');
  bool found = false;
  std::uint64_t token = 0;
  std::unique_ptr<Exchange> exchange, refused;
  g_forbidden = true;
  bool well = Exchange::open(uri, true, &exchange).ok();
  well = well && exchange->publish("a/b", large).ok() && exchange->get("a/b", &value, &found).ok() && found;
  well = well && exchange->claim("a/b", "").code() == Code::kBusy && exchange->list("", &names).ok();
  well = well && exchange->watch("a", &token, 1, -1).ok();
  well = well && exchange->watch("a", &token, 1, -1).code() == Code::kTimeout;
  well = well && exchange->barrier("c", "0", 2, 2, "a/x").code() == Code::kTimeout && exchange->remove("a/b").ok();
  well = well && !Exchange::open(uri + "-not", false, &refused).ok();
  exchange.reset();
  g_forbidden = false;
  EXPECT_TRUE(well);
  EXPECT_EQ(g_calls.load(), 0);
  EXPECT_TRUE(value == large);
}

TEST(ExchangeHeap, ADirectoryLeavesItAlone) {
  char name[] = "/tmp/shadowib-exchange-XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  use(std::string("dir:") + name + "/x");
  std::filesystem::remove_all(name);
}

TEST(ExchangeHeap, ARedisServerLeavesItAlone) {
  if (!RedisServer::available()) GTEST_SKIP() << "there is no redis-server; ci/setup installs it";
  const RedisServer server;
  use(server.uri());
}

}  // namespace
}  // namespace shadowib
