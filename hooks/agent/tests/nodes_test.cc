// What the exchange and the locks owe members on two hosts that share a directory: each step sees what the other
// host's step before it did, at once, whatever its file system's client has kept. Run by
// ci/vm/tests/shared_directory_test.py on both nodes, which wait for each other over the network, since the directory
// is what is tested.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/protocol.h"
#include "hooks/store/store.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {
namespace {

constexpr std::uint16_t kPort = 18600;

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  if (value != nullptr) return value;
  std::fprintf(stderr, "%s is not set: this runs in ci/vm/run --nodes 2 --shared-directory\n", name);
  std::exit(77);
}

int my_node() {
  static const int node = std::atoi(setting("SHADOWIB_VM_NODE").c_str());
  return node;
}

int connect_nodes() {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(kPort);
  ::inet_pton(AF_INET, setting(my_node() == 0 ? "SHADOWIB_VM_ADDRESS" : "SHADOWIB_VM_PEER").c_str(), &at.sin_addr);
  const auto* address = reinterpret_cast<const sockaddr*>(&at);
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (my_node() == 0) {
    if (::bind(fd, address, sizeof(at)) != 0 || ::listen(fd, 1) != 0) return -1;
    return ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
  }
  for (int i = 0; i < 600; ++i) {
    if (::connect(fd, address, sizeof(at)) == 0) return fd;
    ::close(fd);
    ::usleep(100000);
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  }
  return -1;
}

// Until both nodes have come here. The other's end is ours, too.
void meet() {
  static const int fd = connect_nodes();
  char byte = 0;
  if (::write(fd, &byte, 1) == 1 && ::read(fd, &byte, 1) == 1) return;
  std::fprintf(stderr, "the other node has gone\n");
  std::exit(1);
}

class Nodes : public testing::Test {
 protected:
  void SetUp() override {
    epoch_ = std::string("e-") + testing::UnitTest::GetInstance()->current_test_info()->name();
    meet();
  }

  // A step of one node, while the other waits.
  void on(int node, const std::function<void()>& step) {
    if (my_node() == node) step();
    meet();
  }

  Exchange* exchange() {
    static Exchange* opened = [] {
      std::unique_ptr<Exchange> made;
      Status status = Exchange::open("dir:" + directory() + "/x", true, &made);
      EXPECT_TRUE(status.ok()) << status.text();
      return made.release();
    }();
    return opened;
  }
  static std::string directory() { return setting("SHADOWIB_VM_SHARED") + "/nodes"; }
  std::string key(const std::string& rest) { return epoch_ + "/" + rest; }
  std::string value(const std::string& rest) {
    std::string text;
    bool found = false;
    Status status = exchange()->get(key(rest), &text, &found);
    EXPECT_TRUE(status.ok()) << status.text();
    return found ? text : "none";
  }
  void publish(const std::string& rest, const std::string& text) {
    Status status = exchange()->publish(key(rest), text);
    EXPECT_TRUE(status.ok()) << status.text();
  }
  std::vector<std::string> names(const std::string& prefix) {
    std::vector<std::string> found;
    EXPECT_TRUE(exchange()->list(prefix, &found).ok());
    return found;
  }

  std::string epoch_;
};

using Names = std::vector<std::string>;

// The first, before anybody has made the directory.
TEST_F(Nodes, AnExchangeIsFoundOnceItIsMade) {
  const std::string uri = "dir:" + directory() + "/x";
  std::unique_ptr<Exchange> opened;
  on(1, [&] { EXPECT_EQ(Exchange::open(uri, false, &opened).code(), Code::kNotFound); });
  on(0, [&] { EXPECT_NE(exchange(), nullptr); });
  on(1, [&] {
    Status status = Exchange::open(uri, false, &opened);
    EXPECT_TRUE(status.ok()) << status.text();
  });
}

TEST_F(Nodes, AKeyLookedUpInVainIsFoundOncePublished) {
  on(0, [&] { publish("other", "there"); });
  on(1, [&] {
    EXPECT_EQ(value("other"), "there");
    EXPECT_EQ(value("k"), "none");
    EXPECT_EQ(value("a/b/c/k"), "none");
  });
  on(0, [&] {
    publish("k", "here");
    publish("a/b/c/k", "below");
  });
  on(1, [&] {
    EXPECT_EQ(value("k"), "here");
    EXPECT_EQ(value("a/b/c/k"), "below");
  });
}

TEST_F(Nodes, AValueIsTheLastOne) {
  for (int i = 0; i < 5; ++i) {
    const std::string text(static_cast<std::size_t>(10 + i % 2), static_cast<char>('0' + i));
    on(0, [&] { publish("k", text); });
    on(1, [&] { EXPECT_EQ(value("k"), text); });
  }
  on(0, [&] { EXPECT_TRUE(exchange()->remove(key("k")).ok()); });
  on(1, [&] { EXPECT_EQ(value("k"), "none"); });
  on(0, [&] { publish("k", "again"); });
  on(1, [&] { EXPECT_TRUE(exchange()->remove(key("k")).ok()); });
  on(0, [&] { EXPECT_EQ(value("k"), "none"); });
}

TEST_F(Nodes, AListIsOfNow) {
  on(1, [&] {
    EXPECT_EQ(names(epoch_), Names{});
    EXPECT_EQ(names(key("b")), Names{});
    for (const std::string& name : names("")) EXPECT_NE(name, epoch_);
  });
  on(0, [&] {
    publish("a", "");
    publish("b/c", "");
  });
  on(1, [&] {
    EXPECT_EQ(names(epoch_), (Names{"a", "b"}));
    EXPECT_EQ(names(key("b")), Names{"c"});
    EXPECT_EQ(names("").back(), epoch_);
  });
  on(0, [&] { EXPECT_TRUE(exchange()->remove(key("a")).ok()); });
  on(1, [&] { EXPECT_EQ(names(epoch_), Names{"b"}); });
}

TEST_F(Nodes, AClaimIsOfOne) {
  on(1, [&] { EXPECT_EQ(value("k"), "none"); });
  on(0, [&] { EXPECT_TRUE(exchange()->claim(key("k"), "0").ok()); });
  on(1, [&] { EXPECT_EQ(exchange()->claim(key("k"), "1").code(), Code::kBusy); });
  on(0, [&] { EXPECT_TRUE(exchange()->remove(key("k")).ok()); });
  on(1, [&] { EXPECT_TRUE(exchange()->claim(key("k"), "1").ok()); });
  on(0, [&] { EXPECT_EQ(value("k"), "1"); });
}

// By a time-out far below the half minute for which NFS may take a name for missing.
TEST_F(Nodes, AnAbortEndsABarrier) {
  on(1, [&] { EXPECT_EQ(value("abort"), "none"); });
  if (my_node() == 0) {
    EXPECT_EQ(exchange()->barrier(key("b"), "0", 3, 300, key("abort")).code(), Code::kTimeout);
    EXPECT_TRUE(exchange()->claim(key("abort"), "").ok());
  } else {
    EXPECT_EQ(exchange()->barrier(key("b"), "1", 3, 10000, key("abort")).code(), Code::kAborted);
  }
  meet();
}

TEST_F(Nodes, ABarrierLetsBothThrough) {
  for (int i = 0; i < 10; ++i) {
    Status status = exchange()->barrier(key("b" + std::to_string(i)), std::to_string(my_node()), 2, 10000, "");
    EXPECT_TRUE(status.ok()) << status.text();
  }
  meet();
}

TEST_F(Nodes, AWatchTellsOfTheOthersChange) {
  std::uint64_t token = 0;
  on(1, [&] { EXPECT_TRUE(exchange()->watch(key("w"), &token, 0, -1).ok()); });
  for (int i = 0; i < 3; ++i) {
    Status status;
    if (my_node() == 0)
      publish("w/k", std::to_string(i));
    else
      status = exchange()->watch(key("w"), &token, 10000, -1);
    EXPECT_TRUE(status.ok()) << status.text();
    on(1, [&] { EXPECT_EQ(value("w/k"), std::to_string(i)); });
  }
}

// Which the command has looked at while the other host's member wrote it, to show progress.
TEST_F(Nodes, AnImageIsCommittedAsItsHostHasWrittenIt) {
  const std::string text(100000, 'x');
  std::string staging, path;
  SetManifest manifest{};
  on(0, [&] {
    ASSERT_TRUE(open_directory_store(directory())->stage("job", &staging, &manifest.number).ok());
    publish("staging", staging);
  });
  const std::string image = value("staging") + "/member-1.img";
  meet();
  std::FILE* file = nullptr;
  on(1, [&] { ASSERT_NE(file = std::fopen(image.c_str(), "wx"), nullptr); });
  on(0, [&] {
    struct stat info {};
    ASSERT_EQ(::stat(image.c_str(), &info), 0);
    EXPECT_EQ(info.st_size, 0);
  });
  on(1, [&] {
    EXPECT_EQ(std::fwrite(text.data(), 1, text.size(), file), text.size());
    EXPECT_EQ(std::fclose(file), 0);
  });
  on(0, [&] {
    manifest.set_id = random_hex(16);
    manifest.job = "job";
    manifest.shadowib_version = SHADOWIB_VERSION;
    manifest.backend = "ib2tcp";
    manifest.created = "1.000000000";
    manifest.members.push_back({1, 7, "member-1.img", text.size(), std::string(32, '0'), "app", "node1", 1, 2});
    Status status = commit_set(*open_directory_store(directory()), staging, manifest, &path);
    EXPECT_TRUE(status.ok()) << status.text();
  });
  on(1, [&] {
    std::string there;
    EXPECT_TRUE(read_file(directory() + "/sets/job.0001/member-1.img", &there).ok());
    EXPECT_EQ(there, text);
  });
}

TEST_F(Nodes, WhoHoldsALockIsAlive) {
  const std::string path = directory() + "/alive/" + epoch_;
  for (int holder = 0; holder < 2; ++holder) {
    const int other = 1 - holder;
    const std::string its = path + std::to_string(holder);
    int fd = -1;
    on(other, [&] { EXPECT_FALSE(is_alive(its)); });
    on(holder, [&] { EXPECT_GE(fd = hold_alive_lock(its), 0); });
    on(other, [&] {
      EXPECT_TRUE(is_alive(its));
      EXPECT_LT(hold_alive_lock(its), 0);
      EXPECT_EQ(errno, EAGAIN);
    });
    on(holder, [&] { close_owned_descriptor(fd); });
    on(other, [&] { EXPECT_FALSE(is_alive(its)); });
    on(holder, [&] { ::unlink(its.c_str()); });
    on(other, [&] {
      EXPECT_FALSE(is_alive(its));
      EXPECT_GE(fd = hold_alive_lock(its), 0);
      close_owned_descriptor(fd);
    });
  }
}

}  // namespace
}  // namespace shadowib
