// The engine redis: with TLS: whom it believes, who it is, and what it says where that fails.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <fstream>

#include "shadowib/base/arena.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/unowned_descriptors.h"
#include "shadowib/exchange/exchange.h"
#include "shadowib/exchange/redis_connection.h"
#include "shadowib/exchange/tests/babbling_server.h"
#include "shadowib/exchange/tests/redis_server.h"
#include "shadowib/exchange/tests/tls_files.h"

namespace shadowib {
namespace {

std::unique_ptr<TlsFiles> g_files;

class Tls : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::available()) GTEST_SKIP() << "there is no redis-server; ci/setup installs it";
    if (!TlsFiles::available()) GTEST_SKIP() << "there is no openssl; ci/setup installs it";
    if (g_files == nullptr) g_files = std::make_unique<TlsFiles>();
  }
  static void TearDownTestSuite() { g_files.reset(); }

  static std::vector<std::string> server(const std::string& certificate, std::vector<std::string> more = {},
                                         bool asks = false) {
    std::vector<std::string> options = g_files->options(certificate, asks);
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }
  static Status open(const std::string& uri) {
    std::unique_ptr<Exchange> exchange;
    SHADOWIB_TRY(Exchange::open(uri, true, &exchange));
    // Larger than a record, both ways.
    const std::string large(300'000, 'x');
    std::string value;
    bool found = false;
    SHADOWIB_TRY(exchange->publish("a/large", large));
    SHADOWIB_TRY(exchange->get("a/large", &value, &found));
    return found && value == large ? Status() : Status(Code::kIo, 0, "another value came back");
  }
  static void expect_open(const std::string& uri) {
    const Status s = open(uri);
    EXPECT_TRUE(s.ok()) << s.text();
  }
  static void expect_refused(const std::string& uri, Code code, const std::string& says) {
    const Status s = open(uri);
    EXPECT_EQ(s.code(), code) << s.text();
    EXPECT_NE(std::string(s.text()).find(says), std::string::npos) << s.text();
  }
  // As in a restarted process: what is ours of the image, and in no image, is not there.
  static void restart() {
    forget_owned_descriptors(true);
    forget_owned_mappings(true);
    arena_forget_secrets();
  }
  // What becomes of a connection that has so long for each step, and of a question if one is let in.
  static Status ask(const std::string& uri, int patience_ms) {
    RedisPlace place;
    SHADOWIB_TRY(parse_redis_uri(uri, &place));
    std::unique_ptr<RedisConnection> connection;
    SHADOWIB_TRY(RedisConnection::open(place, patience_ms, &connection));
    connection->append({"PING"});
    RedisAnswers answers;
    return connection->exchange(1, patience_ms, &answers);
  }
  static void expect_out_of_time(const std::string& uri, int patience_ms, const std::string& says) {
    const std::int64_t start = monotonic_ns();
    const Status s = ask(uri, patience_ms);
    EXPECT_LT(monotonic_ns() - start, 60'000'000'000);
    EXPECT_EQ(s.code(), Code::kIo);
    EXPECT_EQ(s.error(), ETIMEDOUT);
    EXPECT_NE(std::string(s.text()).find(says), std::string::npos) << s.text();
  }
  static std::string ca() { return g_files->query(false); }
  // The server's by its name.
  static std::string named(const RedisServer& server) {
    std::string uri = server.uri();
    return uri.replace(uri.find("127.0.0.1"), 9, "localhost");
  }
};

TEST_F(Tls, AServerIsBelievedByItsNameAndByItsAddress) {
  const RedisServer plain(server("server"), true);
  expect_open(plain.uri() + ca());
  expect_open(named(plain) + ca());
  expect_open(plain.uri() + ca() + "&server-name=localhost");
  for (const char* name : {"other.example", "127.0.0.2", "::1"})
    expect_refused(plain.uri() + ca() + "&server-name=" + name, Code::kPermission, "it is for another name");
}

TEST_F(Tls, OneOfAnotherNameIsNot) {
  g_files->make("named", "DNS:localhost", 2);
  g_files->make("numbered", "IP:127.0.0.1,IP:::1", 2);
  const RedisServer has_name(server("named"), true), has_number(server("numbered"), true);
  expect_open(named(has_name) + ca());
  expect_refused(has_name.uri() + ca(), Code::kPermission, "it is for another name");
  expect_open(has_number.uri() + ca());
  expect_open(has_number.uri() + ca() + "&server-name=::1");
  expect_refused(named(has_number) + ca(), Code::kPermission, "it is for another name");
}

TEST_F(Tls, NobodyElsesAuthorityIsBelieved) {
  g_files->make_authority("stranger");
  const RedisServer plain(server("server"), true);
  expect_refused(plain.uri() + "?ca=" + g_files->certificate("stranger"), Code::kPermission,
                 "name its authority by ?ca=FILE");
  expect_refused(plain.uri(), Code::kPermission, "name its authority by ?ca=FILE");  // the system's
  // Among others it is found.
  const std::string both = g_files->certificate("both");
  std::ofstream(both) << std::ifstream(g_files->certificate("stranger")).rdbuf()
                      << std::ifstream(g_files->certificate("authority")).rdbuf();
  expect_open(plain.uri() + "?ca=" + both);
}

TEST_F(Tls, OneThatHasExpiredIsNotBelieved) {
  g_files->make("old", "IP:127.0.0.1", -1);
  const RedisServer old(server("old"), true);
  expect_refused(old.uri() + ca(), Code::kPermission, "it has expired");
}

TEST_F(Tls, OneThatIsForClientsIsNotBelieved) {
  g_files->make("for-clients", "IP:127.0.0.1", 2, "", "-addext extendedKeyUsage=clientAuth");
  const RedisServer one(server("for-clients"), true);
  expect_refused(one.uri() + ca(), Code::kPermission, "it is not for servers");
}

TEST_F(Tls, KeysOfRsaAndEveryCipherOfOurs) {
  g_files->make("rsa", "IP:127.0.0.1", 2, "rsa:2048");
  for (const char* certificate : {"rsa", "server"})
    for (const char* cipher : {"AES256-GCM-SHA384", "AES128-GCM-SHA256", "CHACHA20-POLY1305"}) {
      const std::string kind = certificate == std::string("rsa") ? "ECDHE-RSA-" : "ECDHE-ECDSA-";
      const RedisServer one(server(certificate, {"--tls-ciphers", kind + cipher}), true);
      expect_open(one.uri() + ca());
    }
  const RedisServer another(server("rsa", {"--tls-ciphers", "AES128-SHA256"}), true);
  expect_refused(another.uri() + ca(), Code::kPermission, "none of our ciphers");
  const RedisServer newer(server("server", {"--tls-protocols", "TLSv1.3"}), true);
  expect_refused(newer.uri() + ca(), Code::kPermission, "speaks no TLS 1.2");
}

TEST_F(Tls, AServerThatAsksIsShownOurCertificate) {
  const RedisServer asks(server("server", {"--requirepass", "secret"}, true), true);
  const std::string who = asks.uri(":secret");
  expect_open(who + g_files->query(true));
  expect_refused(who + ca(), Code::kPermission, "?cert=FILE&key=FILE");
  expect_refused(asks.uri() + g_files->query(true), Code::kPermission, "SHADOWIB_REDIS_PASSWORD");
  g_files->make_authority("forger");
  expect_refused(who + ca() + "&cert=" + g_files->certificate("forger") + "&key=" + g_files->key("forger"),
                 Code::kPermission, "does not believe our certificate");
}

TEST_F(Tls, FilesThatAreNotWhatTheyShouldBeAreNamed) {
  const RedisServer plain(server("server"), true);
  const std::string absent = g_files->certificate("absent"), client = g_files->certificate("client");
  expect_refused(plain.uri() + "?ca=" + absent, Code::kPermission, absent);
  expect_refused(plain.uri() + "?ca=" + g_files->key("client"), Code::kUsage,
                 "does not hold certificates of authorities");
  expect_refused(plain.uri() + ca() + "&cert=" + client + "&key=" + client, Code::kUsage, "does not hold a key");
  expect_refused(plain.uri() + ca() + "&cert=" + client + "&key=" + g_files->key("server"), Code::kUsage,
                 "is not the key");
  expect_refused(plain.uri() + "?ca=/dev/zero", Code::kPermission, "/dev/zero");
}

TEST_F(Tls, APortOfTheOtherKindIsTold) {
  const RedisServer with(server("server"), true), without;
  std::string uri = with.uri();
  expect_refused(uri.replace(0, 6, "redis"), Code::kIo, "wants TLS");
  RedisPlace place;
  std::unique_ptr<RedisConnection> connection;
  ASSERT_TRUE(parse_redis_uri("rediss" + without.uri().substr(5) + ca(), &place).ok());
  const Status s = RedisConnection::open(place, 300, &connection);
  EXPECT_EQ(s.code(), Code::kIo);
  EXPECT_NE(std::string(s.text()).find("then redis://"), std::string::npos) << s.text();
}

TEST_F(Tls, AServerThatNeverStopsTalkingIsHeardNoLongerThanAllowed) {
  const BabblingServer unknown;
  expect_out_of_time(unknown.uri() + ca(), 300, "no answer to the handshake of TLS for 300 ms");
  const BabblingServer believed(g_files->certificate("server"), g_files->key("server"));
  // The handshake has to come to its end in that time, with a sanitizer, too.
  expect_out_of_time(believed.uri() + ca(), 5000, "the server has not answered for 5000 ms");
}

TEST_F(Tls, WhatAnImageHasOfASessionIsLeftAlone) {
  const RedisServer plain(server("server"), true);
  const std::string ca_file = g_files->certificate("passing");
  std::ofstream(ca_file) << std::ifstream(g_files->certificate("authority")).rdbuf();
  std::unique_ptr<Exchange> exchange;
  ASSERT_TRUE(Exchange::open(plain.uri() + "?ca=" + ca_file, true, &exchange).ok());
  ASSERT_TRUE(exchange->publish("a/before", "1").ok());
  restart();
  Status s = exchange->publish("a/after", "1");
  EXPECT_TRUE(s.ok()) << s.text();
  // The number of the connection's descriptor is somebody else's by now.
  restart();
  const int other = UnownedDescriptors().own(::eventfd(7, EFD_CLOEXEC | EFD_NONBLOCK));
  s = exchange->publish("a/later", "1");
  EXPECT_TRUE(s.ok()) << s.text();
  eventfd_t seven = 0;
  EXPECT_EQ(::eventfd_read(other, &seven), 0);
  EXPECT_EQ(seven, 7u) << "it has been closed";
  close_owned_descriptor(other);
  restart();
  ASSERT_EQ(::unlink(ca_file.c_str()), 0);
  s = exchange->publish("a/last", "1");
  EXPECT_EQ(s.code(), Code::kPermission) << s.text();
  EXPECT_NE(std::string(s.text()).find(ca_file), std::string::npos) << s.text();
}

TEST_F(Tls, AConnectionThatARestartInterruptsIsLost) {
  const RedisServer plain(server("server"), true);
  RedisPlace place;
  std::unique_ptr<RedisConnection> connection;
  ASSERT_TRUE(parse_redis_uri(plain.uri() + ca(), &place).ok());
  ASSERT_TRUE(RedisConnection::open(place, 10000, &connection).ok());
  restart();
  EXPECT_TRUE(connection->stale());
  connection->append({"PING"});
  RedisAnswers answers;
  const Status s = connection->exchange(1, 10000, &answers);
  EXPECT_EQ(s.code(), Code::kIo);
  EXPECT_EQ(s.error(), ECONNRESET) << s.text();
}

TEST_F(Tls, WhatKeepsASessionFromBeginningIsTold) {
  std::unique_ptr<TlsSession> session;
  TlsPlace place{.authorities = g_files->certificate("authority"), .server_name = std::string(256, 'x')};
  Status s = TlsSession::begin(place, "here", -1, &session);
  EXPECT_EQ(s.code(), Code::kUsage) << s.text();
  EXPECT_NE(std::string(s.text()).find("server-name"), std::string::npos) << s.text();
  place.server_name.pop_back();
  EXPECT_TRUE(TlsSession::begin(place, "here", -1, &session).ok());
  session.reset();

  // Memory for all but the buffers of records, and then for nothing.
  std::vector<void*> taken, left;
  for (int i = 0; i < 400; ++i) left.push_back(arena_allocate_secret(std::size_t{40} << i % 8));
  std::uintptr_t mappings = 0;
  while (own_mapping(reinterpret_cast<void*>(mappings), 1)) ++mappings;
  const auto take = [&taken](std::size_t bytes) {
    for (void* p; (p = arena_allocate_secret(bytes)) != nullptr;) taken.push_back(p);
  };
  take(16000);
  take(32000);
  for (void* p : left) arena_free_secret(p);
  for (const bool some : {true, false}) {
    s = TlsSession::begin(place, "here", -1, &session);
    EXPECT_EQ(s.code(), Code::kIo) << some;
    EXPECT_EQ(s.error(), ENOMEM) << some;
    EXPECT_NE(std::string(s.text()).find("no memory"), std::string::npos) << s.text();
    for (std::size_t bytes = 40 << 7; bytes >= 40; bytes /= 2) take(bytes);
  }
  for (void* p : taken) arena_free_secret(p);
  while (mappings-- > 0) disown_mapping(reinterpret_cast<void*>(mappings));
}

}  // namespace
}  // namespace shadowib
