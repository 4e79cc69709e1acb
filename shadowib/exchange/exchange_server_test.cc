// What is particular to the engine behind "pmix:" and its server; exchange_contract_test.cc has what all engines owe.
#include "shadowib/exchange/exchange_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "shadowib/base/lock.h"
#include "shadowib/exchange/exchange.h"
#include "shadowib/exchange/redis_place.h"
#include "shadowib/exchange/remove_below.h"
#include "shadowib/exchange/tests/own_server.h"

namespace shadowib {
namespace {

Status open(const std::string& uri, std::unique_ptr<Exchange>* exchange) {
  return Exchange::open(uri, true, exchange);
}

TEST(PmixPlace, AUriIsWrittenAsItWasRead) {
  RedisPlace place;
  ASSERT_TRUE(parse_redis_uri("pmix://[fd00::1]:4711/a/b?password-file=/x/y", &place).ok());
  EXPECT_EQ(place.scheme, "pmix");
  EXPECT_EQ(place.prefix, "a/b");
  EXPECT_EQ(place.uri(), "pmix://[fd00::1]:4711/a/b?password-file=/x/y");
  EXPECT_EQ(Exchange::shown("pmix://:secret@h:1/p"), "pmix://h:1/p");
  ASSERT_TRUE(parse_redis_uri("pmix://h:1/7", &place).ok());
  EXPECT_EQ(place.prefix, "7") << "there are no databases";
}

TEST(PmixPlace, WhatOnlyACommandCanFindIsRefusedElsewhere) {
  std::unique_ptr<Exchange> exchange;
  for (const char* uri : {"pmix:", "pmix:prefix"}) {
    const Status s = open(uri, &exchange);
    EXPECT_EQ(s.code(), Code::kUsage);
    EXPECT_NE(std::string(s.text()).find("shadowib run --exchange pmix:"), std::string::npos) << s.text();
  }
}

TEST(ExchangeServer, NobodyIsLetInWithoutThePassword) {
  const OwnServer server;
  const std::string at = "127.0.0.1:" + std::to_string(server.port()) + "/test";
  std::unique_ptr<Exchange> exchange;
  for (const std::string& uri : {"pmix://" + at, "pmix://:wrong@" + at, "pmix://:" + server.password() + "x@" + at,
                                 "pmix://:" + server.password().substr(1) + "@" + at}) {
    const Status s = open(uri, &exchange);
    EXPECT_EQ(s.code(), Code::kPermission) << s.text();
  }
  EXPECT_TRUE(open(server.uri(), &exchange).ok());
}

// The server's side of a connection is closed, and others go on.
void expect_hung_up(const OwnServer& server, const std::string& said) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::send(fd, said.data(), said.size(), MSG_NOSIGNAL), static_cast<ssize_t>(said.size()));
  std::string heard;
  char text[256];
  for (ssize_t got; (got = ::recv(fd, text, sizeof(text), 0)) > 0;) heard.append(text, static_cast<std::size_t>(got));
  EXPECT_EQ(heard.find("+OK"), std::string::npos) << heard;
  ::close(fd);
}

TEST(ExchangeServer, WhoTalksNonsenseIsHungUpOn) {
  const OwnServer server;
  std::unique_ptr<Exchange> exchange;
  ASSERT_TRUE(open(server.uri(), &exchange).ok());
  ASSERT_TRUE(exchange->publish("a", "1").ok());
  for (const std::string& said : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("*1\r\n$4\r\nOPEN\r\n"),
                                  std::string("*0\r\n"), std::string("*2\r\n:1\r\n:2\r\n"),
                                  std::string("*2\r\n$4\r\nAUTH\r\n$100000000\r\n") + std::string(4096, 'x')})
    expect_hung_up(server, said);
  std::string value;
  bool found = false;
  EXPECT_TRUE(exchange->get("a", &value, &found).ok() && found);
}

TEST(ExchangeServer, PrefixesAreApart) {
  const OwnServer server;
  std::unique_ptr<Exchange> one, other;
  ASSERT_TRUE(open(server.uri(), &one).ok());
  ASSERT_TRUE(open(server.uri() + "/below", &other).ok());
  ASSERT_TRUE(one->publish("k", "1").ok());
  std::vector<std::string> names;
  ASSERT_TRUE(other->list("", &names).ok());
  EXPECT_TRUE(names.empty());
}

TEST(ExchangeServer, OneThatEndsFailsWhoeverWaitsAtOnce) {
  OwnServer server;
  std::unique_ptr<Exchange> exchange;
  ASSERT_TRUE(open(server.uri(), &exchange).ok());
  std::uint64_t token = 0;
  ASSERT_TRUE(exchange->watch("w", &token, 1000, -1).ok());
  std::thread barrier([&] { EXPECT_EQ(exchange->barrier("b", "0", 2, 60000, "w/abort").code(), Code::kIo); });
  std::thread watch([&] {
    std::uint64_t own = token;
    EXPECT_EQ(exchange->watch("w", &own, -1, -1).code(), Code::kIo);
  });
  server.end();
  barrier.join();
  watch.join();
  const Status s = exchange->publish("k", "1");
  EXPECT_EQ(s.code(), Code::kIo);
  EXPECT_NE(std::string(s.text()).find("does that still run?"), std::string::npos) << s.text();
  EXPECT_TRUE(remove_below(server.uri(), "k").ok()) << "nothing of it is left";
}

TEST(ExchangeServer, OneThatStandsStillIsNotWaitedForBeyondTheTimeOut) {
  const OwnServer server;
  std::unique_ptr<Exchange> exchange;
  ASSERT_TRUE(open(server.uri(), &exchange).ok());
  std::uint64_t token = 0;
  ASSERT_TRUE(exchange->watch("w", &token, 1000, -1).ok());
  server.kill(SIGSTOP);
  const std::int64_t start = monotonic_ns();
  EXPECT_EQ(exchange->barrier("b", "0", 2, 100, "").code(), Code::kIo);
  EXPECT_EQ(exchange->watch("w", &token, 100, -1).code(), Code::kIo);
  EXPECT_LT(monotonic_ns() - start, 100'000'000'000);
  server.kill(SIGCONT);
  EXPECT_TRUE(exchange->publish("k", "2").ok());
}

TEST(ExchangeServer, ServesWhoIsThereToTheEnd) {
  std::unique_ptr<ExchangeServer> server;
  ASSERT_TRUE(ExchangeServer::open(true, &server).ok());
  const std::string uri = "pmix://:" + server->password() + "@127.0.0.1:" + std::to_string(server->port()) + "/test";
  int end[2];
  ASSERT_EQ(::pipe(end), 0);
  std::thread serving([&] { server->serve(end[0]); });
  std::unique_ptr<Exchange> exchange;
  ASSERT_TRUE(open(uri, &exchange).ok());
  ::close(end[1]);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(exchange->publish("k", std::to_string(i)).ok());
  exchange.reset();
  serving.join();
  ::close(end[0]);
}

}  // namespace
}  // namespace shadowib
