// Nothing of the program's heap is taken by an exchange that is opened and used while a thread may be parked inside
// malloc, holding its lock.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "shadowib/base/testing/counted_heap.h"
#include "shadowib/exchange/exchange.h"
#include "shadowib/exchange/tests/own_server.h"
#include "shadowib/exchange/tests/redis_server.h"
#include "shadowib/exchange/tests/tls_files.h"

namespace shadowib {
namespace {

void use(const std::string& uri, const std::string& query = "") {
  test::expect_heap_calls_counted();
  if (testing::Test::HasFatalFailure()) return;

  std::vector<std::string> names;
  std::string value, large(3 << 20, 'x');
  bool found = false;
  std::uint64_t token = 0;
  std::unique_ptr<Exchange> exchange, refused;
  test::g_heap_forbidden = true;
  bool well = Exchange::open(uri + query, true, &exchange).ok();
  well = well && exchange->publish("a/b", large).ok() && exchange->get("a/b", &value, &found).ok() && found;
  well = well && exchange->claim("a/b", "").code() == Code::kBusy && exchange->list("", &names).ok();
  well = well && exchange->watch("a", &token, 1, -1).ok();
  well = well && exchange->watch("a", &token, 1, -1).code() == Code::kTimeout;
  well = well && exchange->barrier("c", "0", 2, 2, "a/x").code() == Code::kTimeout && exchange->remove("a/b").ok();
  well = well && !Exchange::open(uri + "-not" + query, false, &refused).ok();
  exchange.reset();
  test::g_heap_forbidden = false;
  EXPECT_TRUE(well);
  EXPECT_EQ(test::g_heap_calls.load(), 0);
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

TEST(ExchangeHeap, TlsLeavesItAlone) {
  if (!RedisServer::available()) GTEST_SKIP() << "there is no redis-server; ci/setup installs it";
  if (!TlsFiles::available()) GTEST_SKIP() << "there is no openssl; ci/setup installs it";
  const TlsFiles files;
  const RedisServer server(files.options("server", true), true);
  use(server.uri(), files.query(true));
}

TEST(ExchangeHeap, AServerOfOursLeavesItAlone) {
  const OwnServer server;
  use(server.uri());
}

}  // namespace
}  // namespace shadowib
