// What every engine of the exchange owes its callers. Run for each URI of engines(), "dir:" in a directory, "redis:",
// "rediss:" and "pmix:" on a server of its own; SHADOWIB_TEST_EXCHANGES adds further ones, separated by spaces.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <sstream>
#include <thread>

#include "shadowib/base/lock.h"
#include "shadowib/exchange/exchange.h"
#include "shadowib/exchange/remove_below.h"
#include "shadowib/exchange/tests/own_server.h"
#include "shadowib/exchange/tests/redis_server.h"
#include "shadowib/exchange/tests/tls_files.h"

namespace shadowib {
namespace {

std::vector<std::string> engines() {
  std::vector<std::string> uris{"dir:", "redis:", "rediss:", "pmix:"};
  const char* more = std::getenv("SHADOWIB_TEST_EXCHANGES");
  std::istringstream words(more != nullptr ? more : "");
  for (std::string uri; words >> uri;) uris.push_back(uri);
  return uris;
}

// One for all tests, each of which has an epoch of its own.
std::unique_ptr<RedisServer> g_server, g_tls_server;
std::unique_ptr<TlsFiles> g_tls_files;
std::unique_ptr<OwnServer> g_own_server;

class ExchangeContract : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    uri_ = GetParam();
    if (uri_ == "dir:") {
      char name[] = "/tmp/shadowib-exchange-XXXXXX";
      ASSERT_NE(::mkdtemp(name), nullptr);
      directory_ = name;
      uri_ += directory_ + "/x";
    }
    if (uri_ == "redis:") {
      if (!RedisServer::available()) GTEST_SKIP() << "there is no redis-server; ci/setup installs it";
      if (g_server == nullptr) g_server = std::make_unique<RedisServer>();
      uri_ = g_server->uri();
    }
    if (uri_ == "rediss:") {
      if (!RedisServer::available()) GTEST_SKIP() << "there is no redis-server; ci/setup installs it";
      if (!TlsFiles::available()) GTEST_SKIP() << "there is no openssl; ci/setup installs it";
      if (g_tls_server == nullptr) {
        g_tls_files = std::make_unique<TlsFiles>();
        g_tls_server = std::make_unique<RedisServer>(g_tls_files->options("server", true), true);
      }
      uri_ = g_tls_server->uri() + g_tls_files->query(true);
    }
    if (uri_ == "pmix:") {
      if (g_own_server == nullptr) g_own_server = std::make_unique<OwnServer>();
      uri_ = g_own_server->uri();
    }
    exchange_ = open();
    ASSERT_NE(exchange_, nullptr);
    epoch_ = "t" + std::to_string(::getpid()) + "-" + std::to_string(monotonic_ns());
  }
  static void TearDownTestSuite() {
    g_server.reset(), g_tls_server.reset(), g_tls_files.reset(), g_own_server.reset();
  }
  void TearDown() override {
    exchange_.reset();
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  std::unique_ptr<Exchange> open() {
    std::unique_ptr<Exchange> exchange;
    Status s = Exchange::open(uri_, true, &exchange);
    EXPECT_TRUE(s.ok()) << s.text();
    return exchange;
  }
  // Of another, which nobody has made.
  std::string uri_of_none() const {
    const std::size_t options = std::min(uri_.find('?'), uri_.size());
    return uri_.substr(0, options) + "-not" + uri_.substr(options);
  }
  std::string key(const std::string& rest) { return epoch_ + "/" + rest; }

  // Runs body in another process with an exchange of its own; the child's exit code is what body returns.
  pid_t start(const std::function<int(Exchange*)>& body) {
    pid_t pid = ::fork();
    if (pid != 0) return pid;
    std::unique_ptr<Exchange> exchange;
    ::_exit(Exchange::open(uri_, true, &exchange).ok() ? body(exchange.get()) : 99);
  }
  static int finish(pid_t pid) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
  }

  std::string uri_, directory_, epoch_;
  std::unique_ptr<Exchange> exchange_;
};

TEST_P(ExchangeContract, WhatIsBelowAPrefixCanBeRemoved) {
  for (const char* rest : {"old/a", "old/a/b", "old/a/b/c", "old/d", "older/a", "old", "new/a"})
    ASSERT_TRUE(exchange_->publish(key(rest), rest).ok());
  ASSERT_TRUE(exchange_->barrier(key("old/b/all"), "0", 1, 1000, "").ok());
  ASSERT_TRUE(remove_below(uri_, key("old")).ok());
  ASSERT_TRUE(remove_below(uri_, key("old")).ok()) << "nothing is there any more";
  std::vector<std::string> names;
  ASSERT_TRUE(exchange_->list(key("old"), &names).ok());
  EXPECT_EQ(names, std::vector<std::string>{});
  ASSERT_TRUE(exchange_->list(epoch_, &names).ok());
  EXPECT_EQ(names, (std::vector<std::string>{"new", "old", "older"}));
  EXPECT_EQ(exchange_->barrier(key("old/b/all"), "1", 2, 1, "").code(), Code::kTimeout) << "its entries are gone";
  EXPECT_TRUE(exchange_->publish(key("old/a"), "again").ok());
  EXPECT_EQ(remove_below(uri_, "../x").code(), Code::kUsage);
}

TEST_P(ExchangeContract, PublishedValuesAreFoundByOthers) {
  ASSERT_TRUE(exchange_->publish(key("a/b"), std::string("one\0two", 7)).ok());
  ASSERT_TRUE(exchange_->publish(key("empty"), "").ok());
  auto other = open();
  std::vector<std::string> values;
  std::vector<bool> found;
  ASSERT_TRUE(other->lookup({key("a/b"), key("a/c"), key("empty"), key("a")}, &values, &found).ok());
  EXPECT_EQ(values[0], std::string("one\0two", 7));
  EXPECT_EQ(found, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(values[2], "");
}

TEST_P(ExchangeContract, ManyKeysAreLookedUpInTheirOrder) {
  std::vector<std::string> keys, values;
  std::vector<bool> found;
  for (int i = 0; i < 100; ++i) {
    keys.push_back(key("d" + std::to_string(i / 7) + "/" + std::to_string(i)));
    if (i % 3 == 0) continue;
    ASSERT_TRUE(exchange_->publish(keys.back(), std::to_string(i)).ok());
  }
  ASSERT_TRUE(exchange_->lookup(keys, &values, &found).ok());
  ASSERT_EQ(values.size(), keys.size());
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(found[static_cast<std::size_t>(i)], i % 3 != 0);
    EXPECT_EQ(values[static_cast<std::size_t>(i)], i % 3 != 0 ? std::to_string(i) : "");
  }
  ASSERT_TRUE(exchange_->lookup({}, &values, &found).ok());
  EXPECT_TRUE(values.empty() && found.empty());
}

TEST_P(ExchangeContract, PublishReplacesAndRemoveRemoves) {
  std::string value;
  bool found = true;
  ASSERT_TRUE(exchange_->remove(key("k")).ok());
  ASSERT_TRUE(exchange_->publish(key("k"), "a much longer first value").ok());
  ASSERT_TRUE(exchange_->publish(key("k"), "second").ok());
  ASSERT_TRUE(exchange_->get(key("k"), &value, &found).ok());
  EXPECT_TRUE(found);
  EXPECT_EQ(value, "second");
  ASSERT_TRUE(exchange_->remove(key("k")).ok());
  ASSERT_TRUE(exchange_->get(key("k"), &value, &found).ok());
  EXPECT_FALSE(found);
}

TEST_P(ExchangeContract, AKeyMayBeAPrefixOfOthers) {
  ASSERT_TRUE(exchange_->publish(key("p"), "value").ok());
  ASSERT_TRUE(exchange_->publish(key("p/q"), "below").ok());
  ASSERT_TRUE(exchange_->publish(key("r/s"), "below first").ok());
  ASSERT_TRUE(exchange_->publish(key("r"), "value").ok());
  std::vector<std::string> names;
  ASSERT_TRUE(exchange_->list(epoch_, &names).ok());
  EXPECT_EQ(names, (std::vector<std::string>{"p", "r"}));
  std::string value;
  bool found = false;
  ASSERT_TRUE(exchange_->get(key("r"), &value, &found).ok());
  EXPECT_EQ(value, "value");
}

TEST_P(ExchangeContract, ListNamesWhatHoldsAValueInOrder) {
  std::vector<std::string> names{"left over"};
  ASSERT_TRUE(exchange_->list(key("none"), &names).ok());
  EXPECT_TRUE(names.empty());
  for (const char* name : {"m/10", "m/2", "m/1", "deep/er/still"})
    ASSERT_TRUE(exchange_->publish(key(name), "v").ok());
  std::uint64_t token = 0;
  ASSERT_TRUE(exchange_->watch(key("only/watched"), &token, 0, -1).ok());
  ASSERT_TRUE(exchange_->barrier(key("bar"), "me", 1, 1000, "").ok());
  ASSERT_TRUE(exchange_->list(key("m"), &names).ok());
  EXPECT_EQ(names, (std::vector<std::string>{"1", "10", "2"}));
  ASSERT_TRUE(exchange_->list(epoch_, &names).ok());
  EXPECT_EQ(names, (std::vector<std::string>{"deep", "m"}));
  ASSERT_TRUE(exchange_->remove(key("deep/er/still")).ok());
  ASSERT_TRUE(exchange_->list(epoch_, &names).ok());
  EXPECT_EQ(names, (std::vector<std::string>{"m"}));
}

TEST_P(ExchangeContract, BadKeysAreRefused) {
  const std::string long_part(65, 'x');
  for (const std::string& bad :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string("a b"),
        std::string(".."), std::string("a/../b"), std::string("."), long_part, std::string("1/2/3/4/5/6/7/8/9"),
        std::string("a=b"), std::string("a\0b", 3)}) {
    EXPECT_FALSE(Exchange::valid_key(bad)) << bad;
    EXPECT_EQ(exchange_->publish(bad, "v").code(), Code::kUsage) << bad;
    EXPECT_EQ(exchange_->claim(bad, "v").code(), Code::kUsage) << bad;
    EXPECT_EQ(exchange_->remove(bad).code(), Code::kUsage) << bad;
  }
  EXPECT_TRUE(Exchange::valid_key("1/2/3/4/5/6/7/8"));
  EXPECT_TRUE(Exchange::valid_key("..a/b.-_Z"));
  EXPECT_EQ(exchange_->barrier(key("b"), "x/y", 1, 10, "").code(), Code::kUsage);
}

TEST_P(ExchangeContract, ValuesUpTo64MiB) {
  std::string big(64u << 20, 'x');
  for (std::size_t i = 0; i < big.size(); i += 4096) big[i] = static_cast<char>(i >> 12);
  ASSERT_TRUE(exchange_->publish(key("big"), big).ok());
  std::string value;
  bool found = false;
  ASSERT_TRUE(exchange_->get(key("big"), &value, &found).ok());
  EXPECT_TRUE(value == big);
  big.push_back('x');
  EXPECT_EQ(exchange_->publish(key("big"), big).code(), Code::kUsage);
}

TEST_P(ExchangeContract, ExactlyOneProcessClaimsAKeyAndItsValueIsWhole) {
  constexpr int kProcesses = 6, kKeys = 100;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p)
    children.push_back(start([&, p](Exchange* exchange) {
      int won = 0;
      for (int k = 0; k < kKeys; ++k) {
        std::string name = key("claim/" + std::to_string(k)), value;
        Status s = exchange->claim(name, std::string(5000, static_cast<char>('a' + p)));
        if (!s.ok() && s.code() != Code::kBusy) return 98;
        won += s.ok();
        bool found = false;  // whoever won, the value is there in full by now
        if (!exchange->get(name, &value, &found).ok() || !found || value != std::string(5000, value[0])) return 97;
        if (s.ok() && value[0] != 'a' + p) return 96;
      }
      // Exit codes are bytes: tell the count through the exchange.
      return exchange->publish(key("won/" + std::to_string(p)), std::to_string(won)).ok() ? 0 : 95;
    }));
  for (pid_t pid : children) EXPECT_EQ(finish(pid), 0);
  int total = 0;
  for (int p = 0; p < kProcesses; ++p) {
    std::string value;
    bool found = false;
    ASSERT_TRUE(exchange_->get(key("won/" + std::to_string(p)), &value, &found).ok());
    total += std::stoi(value);
  }
  EXPECT_EQ(total, kKeys);
  EXPECT_EQ(exchange_->claim(key("claim/0"), "late").code(), Code::kBusy);
}

TEST_P(ExchangeContract, AReaderSeesTheOldOrTheNewValue) {
  const std::string name = key("torn");
  ASSERT_TRUE(exchange_->publish(name, std::string(1000, 'a')).ok());
  pid_t writer = start([&](Exchange* exchange) {
    for (int i = 0; i < 2000; ++i) {
      char letter = static_cast<char>('a' + i % 26);
      if (!exchange->publish(name, std::string(1000u + static_cast<unsigned>(letter) * 100u, letter)).ok()) return 1;
    }
    return exchange->publish(key("end"), "").ok() ? 0 : 1;
  });
  std::set<char> seen;
  for (bool ended = false; !ended;) {
    std::string value;
    bool found = false;
    ASSERT_TRUE(exchange_->get(name, &value, &found).ok());
    ASSERT_TRUE(found);
    ASSERT_EQ(value, std::string(value.size(), value[0]));
    seen.insert(value[0]);
    ASSERT_TRUE(exchange_->get(key("end"), &value, &ended).ok());
  }
  EXPECT_EQ(finish(writer), 0);
  EXPECT_GT(seen.size(), 1u);
}

TEST_P(ExchangeContract, ABarrierOpensWhenAllHaveEntered) {
  pid_t peer = start([&](Exchange* exchange) {
    for (int i = 0; i < 50; ++i) {
      if (!exchange->publish(key("at/" + std::to_string(i)), "").ok()) return 1;
      if (!exchange->barrier(key("b" + std::to_string(i)), "peer", 2, 20000, "").ok()) return 2;
    }
    return 0;
  });
  for (int i = 0; i < 50; ++i) {
    std::string value;
    bool found = false;
    ASSERT_TRUE(exchange_->barrier(key("b" + std::to_string(i)), "self", 2, 20000, "").ok());
    ASSERT_TRUE(exchange_->get(key("at/" + std::to_string(i)), &value, &found).ok());
    EXPECT_TRUE(found) << "the barrier opened before the peer had come to it";
  }
  EXPECT_EQ(finish(peer), 0);
}

TEST_P(ExchangeContract, ABarrierWaitsForASleeperAndForDistinctMembers) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  pid_t peer = start([&](Exchange* exchange) {
    char go;
    if (::read(pipe_fds[0], &go, 1) != 1) return 3;
    return exchange->barrier(key("late"), "peer", 2, 20000, "").ok() ? 0 : 2;
  });
  // Entering twice as the same member counts once, so this cannot pass before the peer has come.
  EXPECT_EQ(exchange_->barrier(key("late"), "self", 2, 30, "").code(), Code::kTimeout);
  std::thread waker([&] { EXPECT_EQ(::write(pipe_fds[1], "x", 1), 1); });
  EXPECT_TRUE(exchange_->barrier(key("late"), "self", 2, 20000, "").ok());
  waker.join();
  EXPECT_EQ(finish(peer), 0);
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
}

// Each member has a connection. A handshake of TLS takes some 50 ms of a processor, and has 10 s for it.
TEST_P(ExchangeContract, ABarrierOfManyOpensForAll) {
  const int members = GetParam() == std::string("rediss:") ? 24 : 96;
  std::unique_ptr<Exchange> shared[4];
  for (auto& exchange : shared) exchange = open();
  std::atomic<int> entered{0}, early{0}, failed{0};
  std::string why;  // the first
  std::vector<std::thread> threads;
  for (int t = 0; t < members; ++t)
    threads.emplace_back([&, t] {
      ++entered;
      Status s = shared[t % 4]->barrier(key("many"), std::to_string(t), members, 60000, key("abort"));
      if (!s.ok() && failed.fetch_add(1) == 0) why = s.text();
      early += entered.load() < members;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0) << why;
  EXPECT_EQ(early, 0);
}

TEST_P(ExchangeContract, WhoHasEnteredABarrierIsTold) {
  std::vector<std::string> members{"left over"};
  ASSERT_TRUE(exchange_->entered(key("some"), &members).ok());
  EXPECT_TRUE(members.empty()) << "nobody has";
  for (const char* member : {"7", "10", "7"})
    EXPECT_EQ(exchange_->barrier(key("some"), member, 3, 1, "").code(), Code::kTimeout);
  ASSERT_TRUE(open()->entered(key("some"), &members).ok());
  EXPECT_EQ(members, (std::vector<std::string>{"10", "7"}));
  ASSERT_TRUE(exchange_->barrier(key("some"), "8", 3, 1000, "").ok());
  ASSERT_TRUE(exchange_->entered(key("some"), &members).ok());
  EXPECT_EQ(members, (std::vector<std::string>{"10", "7", "8"})) << "also when it is open";
  EXPECT_EQ(exchange_->entered("../x", &members).code(), Code::kUsage);
}

// Entries of one barrier, or of the same name below another prefix, are none of another.
TEST_P(ExchangeContract, ABarrierIsNotOpenedByEntriesOfAnother) {
  for (const char* member : {"0", "1"})
    EXPECT_EQ(exchange_->barrier(key("1/b/x"), member, 3, 1, "").code(), Code::kTimeout);
  ASSERT_TRUE(exchange_->barrier(key("1/b/x"), "2", 3, 1000, "").ok());
  EXPECT_EQ(exchange_->barrier(key("2/b/x"), "2", 3, 20, "").code(), Code::kTimeout);
  EXPECT_EQ(exchange_->barrier(key("1/b/y"), "2", 3, 20, "").code(), Code::kTimeout);
  ASSERT_TRUE(remove_below(uri_, key("1")).ok());
  EXPECT_EQ(exchange_->barrier(key("1/b/x"), "2", 2, 20, "").code(), Code::kTimeout) << "it begins anew";
}

TEST_P(ExchangeContract, EqualValuesOfManyAreEachUnderItsKey) {
  const std::string empty, text(3000, 'x');
  for (const char* name : {"alike/a", "alike/b"}) {
    ASSERT_TRUE(exchange_->publish_alike(key(name), text).ok());
    ASSERT_TRUE(open()->publish_alike(key(std::string("empty/") + name), empty).ok());
  }
  std::uint64_t token = 0;
  ASSERT_TRUE(exchange_->watch(key("alike"), &token, 0, -1).ok());
  ASSERT_TRUE(exchange_->publish_alike(key("alike/b"), "another").ok());
  EXPECT_TRUE(exchange_->watch(key("alike"), &token, 10000, -1).ok());
  ASSERT_TRUE(exchange_->remove(key("empty/alike/a")).ok());
  std::vector<std::string> values, names;
  std::vector<bool> found;
  ASSERT_TRUE(
      exchange_->lookup({key("alike/a"), key("alike/b"), key("empty/alike/a"), key("empty/alike/b")}, &values, &found)
          .ok());
  EXPECT_EQ(values[0], text) << "whatever became of the other";
  EXPECT_EQ(values[1], "another");
  EXPECT_EQ(found, (std::vector<bool>{true, true, false, true}));
  EXPECT_EQ(values[3], "");
  ASSERT_TRUE(exchange_->list(epoch_, &names).ok());
  EXPECT_EQ(names, (std::vector<std::string>{"alike", "empty"}));
  ASSERT_TRUE(exchange_->publish(key("alike/a"), "mine").ok());
  ASSERT_TRUE(exchange_->publish_alike(key("later"), text).ok());
  std::string value;
  bool there = false;
  ASSERT_TRUE(exchange_->get(key("later"), &value, &there).ok());
  EXPECT_EQ(value, text) << "what replaces one value changes no equal one";
}

// Who waits for two is let through by the second, whatever the second waits for.
TEST_P(ExchangeContract, SeveralValuesArePublishedInTheirOrder) {
  auto other = open();
  const std::string large(200000, 'x');
  std::vector<Exchange::Value> values;
  for (int i = 0; i < 40; ++i) {
    const std::string number = std::to_string(i);
    values.push_back({key("all/d" + number + "/a"), i % 20 == 0 ? large : number, i % 3 == 0});
  }
  values.push_back({key("all/d1/a"), "the last of two"});
  ASSERT_TRUE(exchange_->publish_all(values).ok());
  std::string value;
  bool found = false;
  for (int i = 0; i < 40; ++i) {
    const std::string number = std::to_string(i);
    EXPECT_TRUE(other->get(key("all/d" + number + "/a"), &value, &found).ok());
    EXPECT_TRUE(found) << i;
    EXPECT_EQ(value, i == 1 ? "the last of two" : i % 20 == 0 ? large : number) << i;
  }
  EXPECT_TRUE(exchange_->publish_all({}).ok());
  EXPECT_EQ(exchange_->publish_all({{key("all/e"), "1"}, {key("all/../f"), "2"}}).code(), Code::kUsage);
  EXPECT_TRUE(other->get(key("all/e"), &value, &found).ok());
  EXPECT_FALSE(found) << "keys are looked at first";
}

TEST_P(ExchangeContract, MembersOfABarrierMayWaitForDifferentNumbers) {
  std::atomic<bool> begun{false};
  std::thread two([&] {
    begun = true;
    EXPECT_TRUE(exchange_->barrier(key("uneven"), "a", 2, 20000, "").ok());
  });
  while (!begun) std::this_thread::yield();
  EXPECT_EQ(exchange_->barrier(key("uneven"), "b", 3, 100, "").code(), Code::kTimeout);
  two.join();
  EXPECT_TRUE(exchange_->barrier(key("uneven"), "c", 3, 20000, "").ok());
}

TEST_P(ExchangeContract, AnAbortedBarrierThatIsCompletePasses) {
  ASSERT_TRUE(exchange_->publish(key("stop"), "").ok());
  EXPECT_EQ(exchange_->barrier(key("full"), "a", 2, 1000, key("stop")).code(), Code::kAborted);
  EXPECT_TRUE(exchange_->barrier(key("full"), "b", 2, 1000, key("stop")).ok());
  EXPECT_TRUE(exchange_->barrier(key("full"), "a", 2, 1000, key("stop")).ok());
}

TEST_P(ExchangeContract, AWatchAndALookUpAreOneOperation) {
  auto other = open();
  std::uint64_t token = 0;
  std::vector<std::string> values;
  std::vector<bool> found;
  const std::vector<std::string> keys{key("wl/d/a"), key("wl/b"), key("wl/d/c")};
  const auto look = [&](int timeout_ms) {
    return exchange_->watch_and_lookup(key("wl/d"), &token, timeout_ms, keys, &values, &found);
  };
  ASSERT_TRUE(look(20000).ok()) << "the first look does not wait";
  EXPECT_EQ(found, std::vector<bool>({false, false, false}));
  ASSERT_TRUE(other->publish(key("wl/b"), "2").ok());
  EXPECT_EQ(look(10).code(), Code::kTimeout);
  EXPECT_EQ(found, std::vector<bool>({false, true, false})) << "it looks after a time-out, too";
  EXPECT_EQ(values[1], "2");
  std::thread late([&] { EXPECT_TRUE(other->publish(key("wl/d/c"), "3").ok()); });
  while (!found[2]) ASSERT_TRUE(look(20000).ok());
  late.join();
  EXPECT_EQ(values, std::vector<std::string>({"", "2", "3"}));
  std::vector<std::string> many;
  for (int i = 0; i < 100; ++i) many.push_back(key("wl/m/" + std::to_string(i)));
  ASSERT_TRUE(other->publish(key("wl/m/99"), "last").ok());
  token = 0;
  ASSERT_TRUE(exchange_->watch_and_lookup(key("wl/d"), &token, 0, many, &values, &found).ok());
  EXPECT_EQ(values.back(), "last");
  ASSERT_TRUE(exchange_->watch_and_lookup(key("wl/d"), &(token = 0), 0, {}, &values, &found).ok());
  EXPECT_EQ(exchange_->watch_and_lookup(key("wl/d"), &token, 0, {"a/../b"}, &values, &found).code(), Code::kUsage);
}

// Each finds what the other has published beside its entry, whoever comes last.
TEST_P(ExchangeContract, WhatGoesBesideABarrierIsThereWhenItOpens) {
  constexpr int kRounds = 50;
  auto other = open();
  const auto pass_all = [this](Exchange& exchange, const std::string& me, const std::string& peer) {
    for (int round = 0; round < kRounds; ++round) {
      const std::string above = key("beside/" + std::to_string(round)), number = std::to_string(round);
      Exchange::Look look{.prefix = above, .keys = {above + "/" + peer, above + "/n/" + peer}};
      const Status status =
          exchange.barrier_beside({{above + "/" + me, me + number}, {above + "/n/" + me, number, true}}, above + "/b",
                                  me, 2, 20000, above + "/abort", &look);
      ASSERT_TRUE(status.ok()) << status.text();
      EXPECT_EQ(look.values, std::vector<std::string>({peer + number, number})) << round;
      EXPECT_EQ(look.found, std::vector<bool>({true, true})) << round;
    }
  };
  std::thread second([&] { pass_all(*other, "1", "0"); });
  pass_all(*exchange_, "0", "1");
  second.join();
}

TEST_P(ExchangeContract, AWatchGoesOnFromALookBesideABarrier) {
  auto other = open();
  Exchange::Look look{.prefix = key("bl/d"), .keys = {key("bl/d/a")}};
  ASSERT_TRUE(exchange_->barrier_beside({}, key("bl/b"), "0", 1, 20000, "", &look).ok());
  EXPECT_FALSE(look.found[0]);
  const auto watch = [&](int timeout_ms, const std::vector<Exchange::Value>& first) {
    return exchange_->watch_and_lookup(look.prefix, &look.token, timeout_ms, look.keys, &look.values, &look.found,
                                       first);
  };
  EXPECT_EQ(watch(10, {}).code(), Code::kTimeout);
  ASSERT_TRUE(other->publish(key("bl/d/a"), "1").ok());
  ASSERT_TRUE(watch(20000, {}).ok()) << "what came between the two is not missed";
  EXPECT_EQ(look.values[0], "1");
  // Values are published before it waits.
  std::thread answer([&] {
    std::uint64_t token = 0;
    std::vector<std::string> values;
    for (std::vector<bool> asked{false}; !asked[0];)
      ASSERT_TRUE(other->watch_and_lookup(key("bl/q"), &token, 20000, {key("bl/q/a")}, &values, &asked).ok());
    EXPECT_EQ(values[0], "?");
    EXPECT_TRUE(other->publish(key("bl/d/a"), "2").ok());
  });
  do ASSERT_TRUE(watch(20000, {{key("bl/q/a"), "?"}}).ok());
  while (look.values[0] != "2");
  answer.join();
}

TEST_P(ExchangeContract, ABarrierThatDoesNotOpenHasPublishedWhatGoesBesideIt) {
  std::string value;
  bool found = false;
  const auto meet = [&](const char* name, const char* published, int timeout_ms) {
    Exchange::Look look{.prefix = key("shut"), .keys = {key("shut/x")}};
    return exchange_->barrier_beside({{key(published), "1"}}, key(name), "0", 2, timeout_ms, key("shut/abort"),
                                     &look);
  };
  for (const int timeout_ms : {0, 10}) {
    const std::string published = "shut/a" + std::to_string(timeout_ms);
    EXPECT_EQ(meet("shut/b", published.c_str(), timeout_ms).code(), Code::kTimeout);
    ASSERT_TRUE(exchange_->get(key(published), &value, &found).ok());
    EXPECT_TRUE(found) << timeout_ms;
  }
  ASSERT_TRUE(exchange_->publish(key("shut/abort"), "").ok());
  EXPECT_EQ(meet("shut/b", "shut/c", 20000).code(), Code::kAborted);
  ASSERT_TRUE(exchange_->get(key("shut/c"), &value, &found).ok());
  EXPECT_TRUE(found);
  EXPECT_EQ(meet("shut/b", "shut/../d", 20000).code(), Code::kUsage);
  EXPECT_EQ(meet("shut/../b", "shut/d", 20000).code(), Code::kUsage);
  ASSERT_TRUE(exchange_->get(key("shut/d"), &value, &found).ok());
  EXPECT_FALSE(found) << "keys are looked at first";
}

TEST_P(ExchangeContract, OneThatIsNotThereIsNotFound) {
  std::unique_ptr<Exchange> other;
  Status s = Exchange::open(uri_of_none(), false, &other);
  EXPECT_EQ(s.code(), Code::kNotFound) << s.text();
  EXPECT_NE(std::string(s.text()).find("has the job been started?"), std::string::npos) << s.text();
  EXPECT_TRUE(remove_below(uri_of_none(), "a").ok()) << "nothing is there";
}

TEST_P(ExchangeContract, TheAbortKeyEndsABarrier) {
  pid_t peer = start([&](Exchange* exchange) {
    std::int64_t start = monotonic_ns();
    Status s = exchange->barrier(key("given-up"), "peer", 2, 20000, key("abort"));
    if (s.code() != Code::kAborted) return 1;
    return monotonic_ns() - start < 10000000000 ? 0 : 2;
  });
  // Past the time a waiter spins, so that it is the sleeping one that is woken.
  EXPECT_EQ(exchange_->barrier(key("nobody"), "self", 2, 20, "").code(), Code::kTimeout);
  ASSERT_TRUE(exchange_->publish(key("abort"), "disk full").ok());
  EXPECT_EQ(finish(peer), 0);
  EXPECT_EQ(exchange_->barrier(key("later"), "self", 2, 20000, key("abort")).code(), Code::kAborted);
}

// An engine may remember from a barrier when to look for the abort key at the next one.
TEST_P(ExchangeContract, TheAbortKeyEndsALaterBarrier) {
  const std::string abort = key("round/abort");
  for (const char* when : {"before", "meanwhile"}) {
    const std::string name = std::string("b/") + when;
    auto other = open();
    ASSERT_TRUE(exchange_->barrier(key(name + "/1"), "self", 1, 20000, abort).ok());
    std::thread waiter;
    Status status;
    const auto wait = [&] { status = other->barrier(key(name + "/3"), "other", 2, 20000, abort); };
    ASSERT_TRUE(other->barrier(key(name + "/2"), "other", 1, 20000, abort).ok());
    const bool meanwhile = std::string_view(when) == "meanwhile";
    if (meanwhile) {
      waiter = std::thread(wait);
      for (std::vector<std::string> names; names.empty();)
        ASSERT_TRUE(exchange_->entered(key(name + "/3"), &names).ok());
    }
    ASSERT_TRUE(exchange_->publish(abort, "disk full").ok());
    if (meanwhile)
      waiter.join();
    else
      wait();
    EXPECT_EQ(status.code(), Code::kAborted) << when;
    EXPECT_EQ(other->barrier(key(name + "/4"), "other", 2, 20000, abort).code(), Code::kAborted) << "still there";
    ASSERT_TRUE(exchange_->remove(abort).ok());
  }
}

TEST_P(ExchangeContract, AKeyBesideTheAbortKeyEndsNoBarrier) {
  const std::string abort = key("round/abort");
  auto other = open();
  ASSERT_TRUE(other->barrier(key("b/1"), "other", 1, 20000, abort).ok());
  ASSERT_TRUE(exchange_->publish(key("round/go"), "before").ok());
  Status status;
  std::thread waiter([&] { status = other->barrier(key("b/2"), "other", 2, 20000, abort); });
  for (std::vector<std::string> names; names.empty();) ASSERT_TRUE(exchange_->entered(key("b/2"), &names).ok());
  ASSERT_TRUE(exchange_->publish(key("round/go"), "meanwhile").ok());
  EXPECT_TRUE(exchange_->barrier(key("b/2"), "self", 2, 20000, abort).ok());
  waiter.join();
  EXPECT_TRUE(status.ok()) << status.text();
}

// Whoever has entered with another number in mind finds that enough have.
TEST_P(ExchangeContract, AnEntryThatOpensNothingForOthersOpensForItself) {
  ASSERT_TRUE(exchange_->barrier(key("b/0"), "self", 1, 20000, key("abort")).ok());
  EXPECT_EQ(exchange_->barrier(key("b/1"), "self", 3, 1, key("abort")).code(), Code::kTimeout);
  EXPECT_TRUE(exchange_->barrier(key("b/1"), "self", 1, 20000, key("abort")).ok());
}

TEST_P(ExchangeContract, WatchTellsEveryChangeOnce) {
  std::uint64_t token = 0;
  ASSERT_TRUE(exchange_->watch(key("w"), &token, -1, -1).ok()) << "a first call returns at once";
  EXPECT_EQ(exchange_->watch(key("w"), &token, 5, -1).code(), Code::kTimeout);
  auto other = open();
  auto expect_change = [&](const char* what) {
    EXPECT_TRUE(exchange_->watch(key("w"), &token, 10000, -1).ok()) << what;
    EXPECT_EQ(exchange_->watch(key("w"), &token, 1, -1).code(), Code::kTimeout) << what;
  };
  ASSERT_TRUE(other->publish(key("w/a"), "1").ok());
  expect_change("published");
  ASSERT_TRUE(other->claim(key("w/b"), "1").ok());
  expect_change("claimed");
  ASSERT_TRUE(other->remove(key("w/a")).ok());
  expect_change("removed");
  ASSERT_TRUE(other->publish(key("elsewhere"), "1").ok());
  EXPECT_EQ(exchange_->watch(key("w"), &token, 5, -1).code(), Code::kTimeout) << "a key elsewhere is no change";
  for (int i = 0; i < 200; ++i) {  // the same bytes again, as fast as can be: still a change each time
    ASSERT_TRUE(other->publish(key("w/b"), "same").ok());
    ASSERT_TRUE(other->publish(key("w/b"), "same").ok());
    ASSERT_TRUE(exchange_->watch(key("w"), &token, 10000, -1).ok()) << i;
  }
}

TEST_P(ExchangeContract, AWatcherIsWokenFromItsSleep) {
  pid_t peer = start([&](Exchange* exchange) {
    std::uint64_t token = 0;
    for (int seen = 0; seen < 3;) {
      if (!exchange->watch(key("sleep"), &token, 20000, -1).ok()) return 1;
      std::string value;
      bool found = false;
      if (!exchange->get(key("sleep/k"), &value, &found).ok()) return 2;
      if (found && std::stoi(value) == seen) {
        if (!exchange->publish(key("seen/" + std::to_string(seen++)), "").ok()) return 3;
      }
    }
    return 0;
  });
  std::uint64_t token = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(exchange_->publish(key("sleep/k"), std::to_string(i)).ok());
    for (bool found = false; !found;) {
      ASSERT_TRUE(exchange_->watch(key("seen"), &token, 20000, -1).ok());
      std::string value;
      ASSERT_TRUE(exchange_->get(key("seen/" + std::to_string(i)), &value, &found).ok());
    }
  }
  EXPECT_EQ(finish(peer), 0);
}

TEST_P(ExchangeContract, AReadableCancelDescriptorEndsAWatch) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  std::uint64_t token = 0;
  ASSERT_TRUE(exchange_->watch(key("c"), &token, -1, pipe_fds[0]).ok());
  std::thread canceller([&] { EXPECT_EQ(::write(pipe_fds[1], "x", 1), 1); });
  pollfd readable{pipe_fds[0], POLLIN, 0};
  while (::poll(&readable, 1, 0) == 0) EXPECT_TRUE(exchange_->watch(key("c"), &token, -1, pipe_fds[0]).ok());
  canceller.join();
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
}

TEST_P(ExchangeContract, ThreadsShareOneExchange) {
  std::vector<std::thread> threads;
  std::atomic<int> claimed{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        claimed += exchange_->claim(key("t/" + std::to_string(i)), std::to_string(t)).ok();
        EXPECT_TRUE(exchange_->barrier(key("tb" + std::to_string(i)), std::to_string(t), 4, 20000, key("no")).ok());
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(claimed, 50);
}

TEST_P(ExchangeContract, AKilledWriterLeavesNothingBehind) {
  for (int round = 0; round < 20; ++round) {
    pid_t writer = start([&](Exchange* exchange) {
      for (int i = 0;; ++i)
        if (!exchange->publish(key("killed"), std::string(20000, static_cast<char>('a' + i % 26))).ok()) return 1;
    });
    std::string value;
    for (bool found = false; !found;) ASSERT_TRUE(exchange_->get(key("killed"), &value, &found).ok());
    ASSERT_EQ(::kill(writer, SIGKILL), 0);
    EXPECT_EQ(finish(writer), 200 + SIGKILL);
    bool found = false;
    ASSERT_TRUE(exchange_->get(key("killed"), &value, &found).ok());
    ASSERT_TRUE(found);
    ASSERT_EQ(value, std::string(20000, value[0]));
    std::vector<std::string> names;
    ASSERT_TRUE(exchange_->list(epoch_, &names).ok());
    EXPECT_EQ(names, (std::vector<std::string>{"killed"}));
  }
}

TEST(ExchangeOpen, AnUnknownSchemeIsAUsageErrorThatNamesTheKnownOnes) {
  std::unique_ptr<Exchange> exchange;
  for (const char* uri : {"", "radish://localhost", "/tmp/x", "dir"}) {
    Status s = Exchange::open(uri, true, &exchange);
    EXPECT_EQ(s.code(), Code::kUsage) << uri;
    EXPECT_NE(std::string(s.text()).find("dir:PATH"), std::string::npos) << s.text();
    EXPECT_NE(std::string(s.text()).find("redis://HOST"), std::string::npos) << s.text();
  }
}

std::string engine_name(const testing::TestParamInfo<std::string>& info) {
  return info.param.substr(0, info.param.find(':')) + std::to_string(info.index);
}
INSTANTIATE_TEST_SUITE_P(Engines, ExchangeContract, testing::ValuesIn(engines()), engine_name);

}  // namespace
}  // namespace shadowib
