// What the engine redis: does beyond the contract: where it is let in, and what it says of a server that fails.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "shadowib/base/lock.h"
#include "shadowib/exchange/exchange.h"
#include "shadowib/exchange/redis_connection.h"
#include "shadowib/exchange/redis_place.h"
#include "shadowib/exchange/remove_below.h"
#include "shadowib/exchange/tests/redis_server.h"

namespace shadowib {
namespace {

TEST(RedisPlace, IsWhatItsUriSays) {
  RedisPlace place;
  ASSERT_TRUE(parse_redis_uri("redis://u%20:p%40%3a@[::1]:7000/3/a/b?password-file=/x/y", &place).ok());
  EXPECT_EQ(place.user, "u ");
  EXPECT_EQ(place.password, "p@:");
  EXPECT_EQ(place.host, "::1");
  EXPECT_EQ(place.port, 7000);
  EXPECT_EQ(place.database, 3);
  EXPECT_EQ(place.prefix, "a/b");
  EXPECT_EQ(place.password_file, "/x/y");
  RedisPlace again;
  ASSERT_TRUE(parse_redis_uri(place.uri(), &again).ok());
  EXPECT_EQ(again.uri(), place.uri());
  EXPECT_EQ(place.shown(), "redis://u%20@[::1]:7000/3/a/b");

  ASSERT_TRUE(parse_redis_uri("redis://host", &place).ok());
  EXPECT_EQ(place.uri(), "redis://host:6379/0/shadowib");
  ASSERT_TRUE(parse_redis_uri("redis://:pw@10.0.0.1/jobs", &place).ok());
  EXPECT_EQ(place.user + "," + place.password + "," + place.prefix, ",pw,jobs");
  EXPECT_EQ(Exchange::shown("redis://:secret@h"), "redis://h:6379/0/shadowib");
  EXPECT_EQ(Exchange::shown("redis://:secret@h:x"), "redis://...");
  EXPECT_EQ(Exchange::shown("dir:/a@b"), "dir:/a@b");

  ASSERT_TRUE(
      parse_redis_uri("rediss://h/1/p?ca=/a%26b&cert=/c&key=/k&server-name=n&password-file=/p q", &place).ok());
  EXPECT_TRUE(place.has_tls());
  EXPECT_EQ(place.tls.authorities + "," + place.tls.certificate + "," + place.tls.key + "," + place.tls.server_name +
                "," + place.password_file,
            "/a&b,/c,/k,n,/p q");
  EXPECT_EQ(place.uri(), "rediss://h:6379/1/p?password-file=/p q&ca=/a%26b&cert=/c&key=/k&server-name=n");
  ASSERT_TRUE(parse_redis_uri(place.uri(), &again).ok());
  EXPECT_EQ(again.uri(), place.uri());
  EXPECT_EQ(place.shown(), "rediss://h:6379/1/p");
}

TEST(RedisPlace, AWrongUriIsToldAndNoPasswordWithIt) {
  for (const char* uri : {"redis:host",
                          "redis://",
                          "redis://:secret@",
                          "redis://:secret@h:0",
                          "redis://:secret@h:65536",
                          "redis://:secret@h:12x",
                          "redis://:secret@[::1",
                          "redis://:secret@h/a b",
                          "redis://:secret@h/../x",
                          "redis://:secret%g1@h",
                          "redis://:secret@h?other=1",
                          "redis://:secret@h?password-file=relative",
                          "redis://:secret@h?password-file=/a&password-file=/b",
                          "redis://:secret@h?password-file=",
                          "redis://:secret@h?password-file=/a&",
                          "redis://:secret@h?password-file=/%0g",
                          "redis://:secret@h?ca=/x",
                          "rediss://:secret@h?ca=x",
                          "rediss://:secret@h?cert=/x",
                          "rediss://:secret@h?key=/x",
                          "rediss://:secret@h?server-name=",
                          "rediss://:secret@h?ca=/x%00y"}) {
    RedisPlace place;
    const Status s = parse_redis_uri(uri, &place);
    EXPECT_EQ(s.code(), Code::kUsage) << uri;
    EXPECT_EQ(std::string(s.text()).find("secret"), std::string::npos) << s.text();
  }
  std::unique_ptr<Exchange> exchange;
  const Status name = Exchange::open("redis://some.host", true, &exchange);
  EXPECT_EQ(name.code(), Code::kUsage);
  EXPECT_NE(std::string(name.text()).find("numeric address"), std::string::npos) << name.text();
}

class Redis : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::available()) GTEST_SKIP() << "there is no redis-server; ci/setup installs it";
  }
  static Status open(const std::string& uri, std::unique_ptr<Exchange>* exchange) {
    return Exchange::open(uri, true, exchange);
  }
  static std::unique_ptr<Exchange> opened(const RedisServer& server) {
    std::unique_ptr<Exchange> exchange;
    const Status s = open(server.uri(), &exchange);
    EXPECT_TRUE(s.ok()) << s.text();
    return exchange;
  }
  // Fails with `code`, says `says`, and names no password.
  static void expect_refused(const std::string& uri, Code code, const std::string& says) {
    std::unique_ptr<Exchange> exchange;
    const Status s = open(uri, &exchange);
    EXPECT_EQ(s.code(), code) << s.text();
    EXPECT_NE(std::string(s.text()).find(says), std::string::npos) << s.text();
    EXPECT_EQ(std::string(s.text()).find("secret"), std::string::npos) << s.text();
  }
};

TEST_F(Redis, APasswordIsAskedForAndHonoured) {
  const RedisServer server({"--requirepass", "secret one"});
  expect_refused(server.uri(), Code::kPermission, "SHADOWIB_REDIS_PASSWORD");
  expect_refused(server.uri(":not-secret"), Code::kPermission, "SHADOWIB_REDIS_PASSWORD");
  std::unique_ptr<Exchange> exchange;
  EXPECT_TRUE(open(server.uri(":secret%20one"), &exchange).ok());
  ASSERT_NE(exchange, nullptr);
  EXPECT_TRUE(exchange->publish("a", "1").ok());

  char name[] = "/tmp/shadowib-password-XXXXXX";
  const int fd = ::mkstemp(name);
  ASSERT_EQ(::write(fd, "secret one\n", 11), 11);
  ::close(fd);
  std::unique_ptr<Exchange> by_file;
  const Status s = open(server.uri() + "?password-file=" + name, &by_file);
  ::unlink(name);
  EXPECT_TRUE(s.ok()) << s.text();
  expect_refused(server.uri() + "?password-file=" + name, Code::kPermission, name);
}

TEST_F(Redis, AUserNeedsTheRightsAndNoMore) {
  std::vector<std::string> options{"--user", "job", "on", ">secret", "~test:*"};
  for (const char* command :
       {"get",   "set",     "hmget",  "evalsha", "eval", "xread", "xrevrange", "hset",      "hsetnx", "hdel",
        "hkeys", "hexists", "exists", "sadd",    "srem", "scard", "smembers",  "sismember", "xadd",   "unlink"})
    options.push_back(std::string("+") + command);
  for (const char* word : {"--user", "reader", "on", ">secret", "~test:*", "+@read"}) options.push_back(word);
  options.insert(options.end(), {"--user", "default", "off"});
  const RedisServer server(options);
  std::unique_ptr<Exchange> exchange;
  const Status s = open(server.uri("job:secret"), &exchange);
  ASSERT_TRUE(s.ok()) << s.text();
  std::vector<std::string> names;
  std::uint64_t token = 0;
  EXPECT_TRUE(exchange->publish("a/b", "1").ok());
  EXPECT_TRUE(exchange->claim("a/c", "1").ok());
  EXPECT_TRUE(exchange->list("", &names).ok());
  EXPECT_TRUE(exchange->watch("a", &token, 1, -1).ok());
  EXPECT_EQ(exchange->watch("a", &token, 1, -1).code(), Code::kTimeout);
  EXPECT_TRUE(exchange->barrier("b", "0", 1, 1000, "a/none").ok());
  EXPECT_EQ(exchange->barrier("c", "0", 2, 10, "a/none").code(), Code::kTimeout);
  EXPECT_TRUE(exchange->remove("a/c").ok());
  EXPECT_TRUE(remove_below(server.uri("job:secret"), "a").ok());
  std::unique_ptr<Exchange> reading;
  ASSERT_TRUE(open(server.uri("reader:secret"), &reading).ok());
  const Status denied = reading->publish("a/b", "2");
  EXPECT_EQ(denied.code(), Code::kPermission);
  EXPECT_NE(std::string(denied.text()).find("needs more rights"), std::string::npos) << denied.text();
  expect_refused(server.uri(), Code::kPermission, "SHADOWIB_REDIS_PASSWORD");
}

TEST_F(Redis, APasswordForAServerWithoutOneIsToldSo) {
  const RedisServer server;
  expect_refused(server.uri(":secret"), Code::kPermission, "leave it out");
}

TEST_F(Redis, DatabasesAndPrefixesAreApart) {
  const RedisServer server;
  const std::string at = "redis://localhost:" + std::to_string(server.port());
  for (const char* place : {"", "/1", "/1/x", "/x"}) {
    std::unique_ptr<Exchange> exchange;
    std::string value;
    bool found = true;
    ASSERT_TRUE(open(at + place, &exchange).ok());
    EXPECT_TRUE(exchange->get("k", &value, &found).ok());
    EXPECT_FALSE(found) << place;
    EXPECT_TRUE(exchange->publish("k", place).ok());
  }
  expect_refused(at + "/99", Code::kIo, "DB index is out of range");
}

TEST_F(Redis, NobodyThereAndSomebodyElseThere) {
  RedisServer server;
  server.end();
  expect_refused(server.uri(), Code::kIo, "is the server running");

  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  std::thread web([&] {
    const int fd = ::accept(listener, nullptr, nullptr);
    EXPECT_EQ(::write(fd, "HTTP/1.1 400\r\n\r\n", 16), 16);
    char byte;
    while (::read(fd, &byte, 1) > 0) {
    }
    ::close(fd);
  });
  expect_refused("redis://127.0.0.1:" + std::to_string(ntohs(address.sin_port)), Code::kIo, "no Redis server");
  web.join();
  ::close(listener);
}

TEST_F(Redis, AFullServerSaysSoAndWhatWasThereStays) {
  const RedisServer server({"--maxmemory", "8mb", "--maxmemory-policy", "noeviction"});
  auto exchange = opened(server);
  ASSERT_TRUE(exchange->publish("small", "1").ok());
  Status s;
  for (int i = 0; i < 100 && s.ok(); ++i)
    s = exchange->publish("large/" + std::to_string(i), std::string(1 << 20, 'x'));
  EXPECT_EQ(s.code(), Code::kIo);
  EXPECT_EQ(s.error(), ENOSPC);
  EXPECT_NE(std::string(s.text()).find("maxmemory"), std::string::npos) << s.text();
  std::string value;
  bool found = false;
  EXPECT_TRUE(exchange->get("small", &value, &found).ok() && found);
  EXPECT_TRUE(remove_below(server.uri(), "large").ok());
  EXPECT_TRUE(exchange->publish("small", "2").ok()) << "there is room again";
}

TEST_F(Redis, AServerThatForgetsKeysIsRefused) {
  const RedisServer server({"--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru"});
  expect_refused(server.uri(), Code::kRefused, "maxmemory-policy");
}

TEST_F(Redis, ACopyIsNotWrittenTo) {
  const RedisServer first;
  opened(first);
  const RedisServer copy({"--replicaof", "127.0.0.1 " + std::to_string(first.port())});
  expect_refused(copy.uri(), Code::kIo, "name the server this one is a copy of");
}

TEST_F(Redis, AServerThatDiesFailsWhoeverWaitsAtOnce) {
  RedisServer server;
  auto exchange = opened(server);
  std::uint64_t token = 0;
  ASSERT_TRUE(exchange->watch("w", &token, 1000, -1).ok());
  std::atomic<int> waiting{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::uint64_t own = token;
      ++waiting;
      const Status s = t % 2 == 0 ? exchange->barrier("b", std::to_string(t), 9, 60000, "w/abort")
                                  : exchange->watch("w", &own, -1, -1);
      EXPECT_EQ(s.code(), Code::kIo) << s.text();
    });
  while (waiting.load() < 4) std::this_thread::yield();
  server.end();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(exchange->publish("k", "1").code(), Code::kIo);

  server.begin_again();
  const Status s = exchange->publish("k", "1");
  EXPECT_EQ(s.code(), Code::kIo);
  EXPECT_NE(std::string(s.text()).find("no longer has what was in it"), std::string::npos) << s.text();
  std::string value;
  bool found = false;
  EXPECT_EQ(exchange->get("k", &value, &found).code(), Code::kIo) << "a lost value is not an absent one";
  EXPECT_EQ(exchange->watch("w", &token, 1000, -1).code(), Code::kIo);
  EXPECT_EQ(exchange->barrier("b", "0", 1, 1000, "").code(), Code::kIo);
  opened(server);
  EXPECT_EQ(exchange->publish("k", "1").code(), Code::kIo) << "another exchange at the same place";
}

TEST_F(Redis, AServerThatComesBackWithItsDataGoesOn) {
  RedisServer server({"--appendonly", "yes", "--appendfsync", "no"});
  auto exchange = opened(server);
  ASSERT_TRUE(exchange->publish("a/k", "1").ok());
  server.end();
  server.begin_again();
  std::string value;
  bool found = false;
  ASSERT_TRUE(exchange->get("a/k", &value, &found).ok());
  EXPECT_EQ(value, "1");
  std::uint64_t token = 0;
  EXPECT_TRUE(exchange->watch("a", &token, 1000, -1).ok());
  EXPECT_TRUE(exchange->publish("a/k", "2").ok()) << "it has forgotten the script only";
  EXPECT_TRUE(exchange->watch("a", &token, 10000, -1).ok());
}

TEST_F(Redis, AServerThatStandsStillIsNotWaitedForBeyondTheTimeOut) {
  const RedisServer server;
  auto exchange = opened(server);
  std::uint64_t token = 0;
  ASSERT_TRUE(exchange->watch("w", &token, 1000, -1).ok());
  server.kill(SIGSTOP);
  const std::int64_t start = monotonic_ns();
  EXPECT_EQ(exchange->barrier("b", "0", 2, 100, "").code(), Code::kIo);
  EXPECT_EQ(exchange->watch("w", &token, 100, -1).code(), Code::kIo);
  EXPECT_LT(monotonic_ns() - start, 100'000'000'000);
  const Status s = exchange->publish("k", "1");
  EXPECT_EQ(s.code(), Code::kIo);
  EXPECT_EQ(s.error(), ETIMEDOUT);
  EXPECT_LT(monotonic_ns() - start, 100'000'000'000);
  server.kill(SIGCONT);
  EXPECT_TRUE(exchange->publish("k", "2").ok());
  std::string value;
  bool found = false;
  EXPECT_TRUE(exchange->get("k", &value, &found).ok());
  EXPECT_EQ(value, "2");
}

// What the server says after `name` in a section of INFO, up to the next comma or line.
std::string info(RedisConnection& connection, const char* section, const std::string& name) {
  RedisAnswers answers;
  connection.append({"INFO", section});
  EXPECT_TRUE(connection.exchange(1, 10000, &answers).ok());
  const std::string said = answers.empty() ? "" : answers[0]->text;
  const std::size_t at = said.find("\n" + name);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + 1 + name.size();
  return said.substr(begin, said.find_first_of(",\r", begin) - begin);
}

// How often the server has read from a connection, this time included.
long long reads(RedisConnection& connection) {
  return std::atoll(info(connection, "stats", "total_reads_processed:").c_str());
}

TEST_F(Redis, ARequestReachesAllWhoWaitAndNobodyPolls) {
  constexpr int kWatchers = 64;
  const RedisServer server;
  RedisPlace place;
  std::unique_ptr<RedisConnection> looks;
  ASSERT_TRUE(parse_redis_uri(server.uri(), &place).ok());
  ASSERT_TRUE(RedisConnection::open(place, 10000, &looks).ok());
  std::vector<std::thread> threads;
  std::atomic<int> woken{0};
  for (int t = 0; t < kWatchers; ++t)
    threads.emplace_back([&] {
      auto exchange = opened(server);
      std::uint64_t token = 0;
      EXPECT_TRUE(exchange->watch("control", &token, -1, -1).ok());
      const std::uint64_t before = token;
      EXPECT_TRUE(exchange->watch("control", &token, -1, -1).ok());
      EXPECT_NE(token, before);
      ++woken;
    });
  while (info(*looks, "clients", "blocked_clients:") != std::to_string(kWatchers)) std::this_thread::yield();
  EXPECT_EQ(woken, 0);
  ASSERT_TRUE(opened(server)->publish("control/checkpoint", "1").ok());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(info(*looks, "commandstats", "cmdstat_xread:calls="), std::to_string(kWatchers)) << "one wait each";
}

// A member enters a barrier and waits in one exchange with the server, at the first barrier of a checkpoint, too.
TEST_F(Redis, ABarrierCostsAMemberOneExchange) {
  constexpr int kBarriers = 50, kMembers = 4;
  const RedisServer server;
  RedisPlace place;
  std::unique_ptr<RedisConnection> looks;
  ASSERT_TRUE(parse_redis_uri(server.uri(), &place).ok());
  ASSERT_TRUE(RedisConnection::open(place, 10000, &looks).ok());
  const auto pass = [](Exchange& exchange, int barrier, int member) {
    const std::string name = "b/" + std::to_string(barrier), round = "round/" + std::to_string(barrier / 4);
    EXPECT_TRUE(exchange.barrier(name, std::to_string(member), kMembers, 20000, round + "/abort").ok());
  };
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (int m = 0; m < kMembers; ++m) exchanges.push_back(opened(server));
  const auto pass_all = [&](int begin, int end) {
    std::vector<std::thread> members;
    for (int m = 0; m < kMembers; ++m)
      members.emplace_back([&, m] {
        for (int b = begin; b < end; ++b) pass(*exchanges[static_cast<std::size_t>(m)], b, m);
      });
    for (std::thread& member : members) member.join();
  };
  pass_all(0, 1);
  const long long before = reads(*looks);
  ASSERT_GT(before, 0);
  pass_all(1, 1 + kBarriers);
  EXPECT_LE(reads(*looks) - before, kBarriers * kMembers + 1) << "one of them is this question";
}

TEST_F(Redis, ABarrierThatStaysShutIsAskedForOnce) {
  const RedisServer server;
  RedisPlace place;
  std::unique_ptr<RedisConnection> looks;
  ASSERT_TRUE(parse_redis_uri(server.uri(), &place).ok());
  ASSERT_TRUE(RedisConnection::open(place, 10000, &looks).ok());
  auto exchange = opened(server);
  ASSERT_TRUE(exchange->barrier("b/0", "0", 1, 20000, "abort").ok());  // the server knows the script
  const long long before = reads(*looks);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(exchange->barrier("b/1", "0", 2, 5, "round/abort").code(), Code::kTimeout);
  EXPECT_LE(reads(*looks) - before, 10 + 1) << "one of them is this question";
}

TEST_F(Redis, SeveralValuesAreOneRequest) {
  const RedisServer server;
  RedisPlace place;
  std::unique_ptr<RedisConnection> looks;
  ASSERT_TRUE(parse_redis_uri(server.uri(), &place).ok());
  ASSERT_TRUE(RedisConnection::open(place, 10000, &looks).ok());
  auto exchange = opened(server);
  RedisAnswers answers;
  std::string value;
  bool found = false;
  for (const bool forgotten : {true, false}) {  // the server does not know the script at first
    const long long before = reads(*looks);
    EXPECT_TRUE(exchange->publish_all({{"a/b", "1"}, {"c", forgotten ? "2" : "3"}, {"a/d/e", "4", true}}).ok());
    if (!forgotten) {
      EXPECT_LE(reads(*looks) - before, 1 + 1) << "one of them is this question";
    }
    EXPECT_TRUE(exchange->get("c", &value, &found).ok());
    EXPECT_EQ(value, forgotten ? "2" : "3");
  }
  looks->append({"SET", "test:x", "of another life"});
  ASSERT_TRUE(looks->exchange(1, 10000, &answers).ok());
  EXPECT_EQ(exchange->publish_all({{"a/b", "1"}, {"c", "5"}}).code(), Code::kIo);
}

TEST_F(Redis, AForgottenScriptIsSentAgainAtABarrier) {
  const RedisServer server;
  RedisPlace place;
  std::unique_ptr<RedisConnection> looks;
  ASSERT_TRUE(parse_redis_uri(server.uri(), &place).ok());
  ASSERT_TRUE(RedisConnection::open(place, 10000, &looks).ok());
  auto exchange = opened(server);
  ASSERT_TRUE(exchange->barrier("b/0", "0", 1, 20000, "abort").ok());
  RedisAnswers answers;
  looks->append({"SCRIPT", "FLUSH"});
  ASSERT_TRUE(looks->exchange(1, 10000, &answers).ok());
  EXPECT_TRUE(exchange->barrier("b/1", "0", 1, 20000, "abort").ok());
  looks->append({"SET", "test:x", "of another life"});
  ASSERT_TRUE(looks->exchange(1, 10000, &answers).ok());
  EXPECT_EQ(exchange->barrier("b/2", "0", 1, 20000, "abort").code(), Code::kIo);
}

// Who has published hears at once that it failed, whatever it would have waited for.
TEST_F(Redis, WhatGoesBesideAWaitIsOneExchangeAndItsFailureIsHeard) {
  const RedisServer server;
  RedisPlace place;
  std::unique_ptr<RedisConnection> looks;
  ASSERT_TRUE(parse_redis_uri(server.uri(), &place).ok());
  ASSERT_TRUE(RedisConnection::open(place, 10000, &looks).ok());
  auto exchange = opened(server);
  const auto tell = [&](std::initializer_list<std::string_view> words) {
    RedisAnswers answers;
    looks->append(words);
    ASSERT_TRUE(looks->exchange(1, 10000, &answers).ok());
    EXPECT_FALSE(answers[0]->is_error()) << answers[0]->text;
  };
  Exchange::Look look{.prefix = "r", .keys = {"r/0", "r/1"}};
  const auto meet = [&](const char* barrier, int n) {
    return exchange->barrier_beside({{"r/0", barrier}, {"r/1", "1"}}, barrier, "0", n, 20000, "r/abort", &look);
  };
  const auto watch = [&](const char* value, int timeout_ms) {
    return exchange->watch_and_lookup(look.prefix, &look.token, timeout_ms, look.keys, &look.values, &look.found,
                                      {{"r/0", value}, {"r/1", "2"}});
  };
  for (const bool forgotten : {true, false}) {  // by the server, the script
    if (forgotten) tell({"SCRIPT", "FLUSH"});
    const char* const barrier = forgotten ? "b/0" : "b/1";
    const long long before = reads(*looks);
    ASSERT_TRUE(meet(barrier, 1).ok());
    if (!forgotten) {
      EXPECT_LE(reads(*looks) - before, 1 + 1) << "one of them is this question";
    }
    EXPECT_EQ(look.values, std::vector<std::string>({barrier, "1"}));
    if (forgotten) tell({"SCRIPT", "FLUSH"});
    ASSERT_TRUE(watch("w", 20000).ok());
    EXPECT_EQ(look.values, std::vector<std::string>({"w", "2"}));
  }
  const long long before = reads(*looks);
  look.token = 0;
  ASSERT_TRUE(watch("v", 20000).ok());
  EXPECT_LE(reads(*looks) - before, 1 + 1) << "one of them is this question";
  const std::int64_t began = monotonic_ns();
  tell({"CONFIG", "SET", "maxmemory", "1"});
  EXPECT_EQ(meet("b/2", 2).error(), ENOSPC);
  EXPECT_EQ(watch("u", 20000).error(), ENOSPC);
  tell({"CONFIG", "SET", "maxmemory", "0"});
  ASSERT_TRUE(exchange->lookup(look.keys, &look.values, &look.found).ok());
  EXPECT_EQ(look.values[0], "v") << "nothing was published";
  tell({"SET", "test:x", "of another life"});
  EXPECT_EQ(meet("b/3", 2).code(), Code::kIo);
  EXPECT_EQ(watch("u", 20000).code(), Code::kIo);
  EXPECT_LT(monotonic_ns() - began, 10'000'000'000) << "it waited all the same";
}

TEST_F(Redis, WhatARemovedJobLeftIsNotThereAnyMore) {
  const RedisServer server;
  auto exchange = opened(server);
  for (const char* key : {"g1/a", "g1/b/c/d", "g1/b/e"}) ASSERT_TRUE(exchange->publish(key, "1").ok());
  ASSERT_TRUE(exchange->barrier("g1/b/f", "0", 1, 1000, "g1/x/abort").ok());
  ASSERT_TRUE(remove_below(server.uri(), "g1").ok());
  // What is left: the word, and that something below the root has changed nothing tells.
  std::string command = "redis-cli -p " + std::to_string(server.port()) + " keys '*' | sort | tr '\\n' ' '";
  FILE* left = ::popen(command.c_str(), "r");
  char text[256] = {};
  EXPECT_NE(std::fgets(text, sizeof(text), left), nullptr);
  ::pclose(left);
  EXPECT_STREQ(text, "test:x ");
}

}  // namespace
}  // namespace shadowib
