// Attempts to connect that tell nothing of the peer: its queue of connections is full while it does not run, or no
// descriptor is left here. Neither is a peer that is gone.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ib2tcp/handshake.h"
#include "ib2tcp/rendezvous.h"
#include "ib2tcp/testing/endpoint.h"
#include "ib2tcp/wire.h"
#include "shadowib/base/lock.h"

namespace shadowib::ib2tcp::testing {
namespace {

using Record = ::shadowib::ib2tcp::Endpoint;  // as published

constexpr std::int64_t kTimesOfRetriesNs = 1'600'000'000;  // three times as long as an endpoint's retries last

Record record_of(FakeExchange& exchange, const Device& device) {
  std::lock_guard<std::mutex> guard(exchange.mutex);
  Record record;
  std::memcpy(&record, exchange.values.at("ib2tcp/ep/" + std::to_string(device.port.lid)).data(), sizeof(record));
  return record;
}

// A member's record whose process is a Unix socket of this test that nobody accepts from, with its queue full.
class Neighbour {
 public:
  Neighbour(FakeExchange& exchange, const Device& like, std::uint16_t lid) {
    fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address_.sun_family = AF_UNIX;
    length_ = sizeof(sa_family_t);  // autobind
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address_), length_), 0);
    EXPECT_EQ(::listen(fd_, 2), 0);
    length_ = sizeof(address_);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address_), &length_);
    Record record = record_of(exchange, like);
    std::memset(record.uuid, lid & 0xff, sizeof(record.uuid));
    record.lid = lid;
    record.unix_name_bytes = static_cast<std::uint8_t>(length_ - offsetof(sockaddr_un, sun_path) - 1);
    std::memcpy(record.unix_name, address_.sun_path + 1, record.unix_name_bytes);
    std::lock_guard<std::mutex> guard(exchange.mutex);
    exchange.values["ib2tcp/ep/" + std::to_string(lid)] =
        std::string(reinterpret_cast<char*>(&record), sizeof(record));
  }
  ~Neighbour() {
    die();
    for (const int fd : callers_) ::close(fd);
  }
  void fill_queue() {
    for (;;) {
      const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      callers_.push_back(fd);
      if (::connect(fd, reinterpret_cast<sockaddr*>(&address_), length_) == 0) continue;
      ASSERT_EQ(errno, EAGAIN);
      return;
    }
  }
  // Takes calls until one greets as a member does.
  bool is_greeted() const {
    for (;;) {
      const int fd = ::accept(fd_, nullptr, nullptr);
      if (fd < 0) return false;
      timeval patience{1, 0};
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
      Greeting greeting;
      const bool greets = ::recv(fd, &greeting, sizeof(greeting), MSG_WAITALL) == sizeof(greeting);
      ::close(fd);
      if (greets) return true;
    }
  }
  void die() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
  sockaddr_un address_{};
  socklen_t length_;
  std::vector<int> callers_;
};

class FullQueue : public ::testing::Test {
 protected:
  FullQueue() : exchange_(std::make_shared<FakeExchange>()) {
    ProcessOptions options;
    options.transport = "shm";
    first_ = std::make_unique<Process>(exchange_, options);
    second_ = std::make_unique<Process>(exchange_, options);
    a_ = std::make_unique<Device>(*first_);
    b_ = std::make_unique<Device>(*second_);
  }
  // A queue pair with a request for the member of that LID.
  static void begin(Endpoint& x, const Device& like, std::uint16_t lid) {
    Device peer = like;
    peer.port.lid = lid;
    ASSERT_EQ(x.to_init(x.qp), 0);
    ASSERT_EQ(x.to_rtr(x.qp, peer, 1), 0);
    ASSERT_EQ(x.to_rts(x.qp), 0);
    ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  }
  static void expect_to_be_waited_for(Endpoint& x) {
    const std::int64_t end = monotonic_ns() + kTimesOfRetriesNs;
    while (monotonic_ns() < end) ASSERT_EQ(x.poll(), 0);
  }
  std::shared_ptr<FakeExchange> exchange_;
  std::unique_ptr<Process> first_, second_;
  std::unique_ptr<Device> a_, b_;
};

TEST_F(FullQueue, OfANeighbourThatDoesNotRunIsWaitedFor) {
  Neighbour neighbour(*exchange_, *b_, 0x6611);
  ASSERT_NO_FATAL_FAILURE(neighbour.fill_queue());
  Endpoint x(*a_);
  ASSERT_NO_FATAL_FAILURE(begin(x, *b_, 0x6611));
  ASSERT_NO_FATAL_FAILURE(expect_to_be_waited_for(x));
  EXPECT_TRUE(neighbour.is_greeted()) << "it runs again, and is called";
}

TEST_F(FullQueue, OfANeighbourThatThenDiesEndsTheQueuePair) {
  Neighbour neighbour(*exchange_, *b_, 0x6612);
  ASSERT_NO_FATAL_FAILURE(neighbour.fill_queue());
  Endpoint x(*a_);
  ASSERT_NO_FATAL_FAILURE(begin(x, *b_, 0x6612));
  neighbour.die();
  EXPECT_WC(x.wait(), 1, IBV_WC_RETRY_EXC_ERR);
}

// The time runs from the first attempt for those who wait now.
TEST_F(FullQueue, IsWaitedForAgainByALaterQueuePair) {
  Neighbour neighbour(*exchange_, *b_, 0x6613);
  ASSERT_NO_FATAL_FAILURE(neighbour.fill_queue());
  const std::int64_t began = monotonic_ns();
  {
    Endpoint x(*a_);
    ASSERT_NO_FATAL_FAILURE(begin(x, *b_, 0x6613));
    ASSERT_NO_FATAL_FAILURE(expect_to_be_waited_for(x));
  }
  while (monotonic_ns() < began + kHandshakeTimeoutNs) ::usleep(10'000);
  Endpoint y(*a_);
  ASSERT_NO_FATAL_FAILURE(begin(y, *b_, 0x6613));
  ASSERT_NO_FATAL_FAILURE(expect_to_be_waited_for(y));
}

std::vector<int> open_descriptors() {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    found.push_back(std::stoi(entry.path().filename().string()));
  return found;
}

// One is left, and what the shim puts out of the program's way takes another for a moment.
TEST_F(FullQueue, ATryWithoutADescriptorLosesNoneAndIsNoDeadPeer) {
  Endpoint x(*a_), y(*b_);
  const std::vector<int> of_processes = open_descriptors();
  const int last = *std::max_element(of_processes.begin(), of_processes.end());
  std::vector<int> fillers;  // the fake shim's range, up to what becomes the limit
  for (int fd = 0; fd <= last;) fillers.push_back(fd = ::fcntl(0, F_DUPFD_CLOEXEC, 200));
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  rlimit few = usual;
  few.rlim_cur = static_cast<rlim_t>(fillers.back()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const std::size_t before = open_descriptors().size();
  connect(x, y);
  EXPECT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  EXPECT_EQ(x.post_send(2, {x.sge(0, 100)}), 0);
  expect_to_be_waited_for(x);
  EXPECT_EQ(open_descriptors().size(), before);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  for (const int fd : fillers) ::close(fd);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
