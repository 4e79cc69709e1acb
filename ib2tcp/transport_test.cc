// What every transport owes the code above it (transport.h), asked of each: two ends in one process, no link between.
#include "ib2tcp/transport.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ib2tcp/engine.h"
#include "ib2tcp/host.h"
#include "ib2tcp/rendezvous.h"
#include "ib2tcp/testing/process.h"

namespace shadowib::ib2tcp {
namespace {

const HostServices kHost = [] {
  HostServices host{};
  host.abi_version = kBackendAbiVersion;
  host.map = [](size_t bytes) {
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
  };
  host.unmap = [](void* address, size_t bytes) { ::munmap(address, bytes); };
  host.own_mapping = [](void*, size_t) {};
  host.disown_mapping = [](void*) {};
  host.own_descriptor = [](int fd) { return fd; };
  host.close_descriptor = [](int fd) { ::close(fd); };
  host.unowned_descriptors = [](bool) {};
  host.config = [](const char*) -> const char* { return nullptr; };
  host.log = [](int, const char* text) {
    if (std::getenv("IB2TCP_TEST_LOG") != nullptr) std::fprintf(stderr, "%s\n", text);
  };
  host.open_library = [](const char* name) { return ::dlopen(name, RTLD_NOW | RTLD_LOCAL); };
  return host;
}();

constexpr std::size_t kRing = 64 << 10;
constexpr FabricEnd kFirst{3, 0x1111222233334444}, kSecond{5, 0x5555666677778888};

void tcp_pair(int ends[2]) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::uint16_t port = 0;
  const int listener = testing::listen_on_loopback(&port);
  address.sin_port = htons(port);
  ends[0] = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(ends[0], reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ends[1] = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
  ::close(listener);
}

class Transport : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    g_host = &kHost;
    engine_ = std::make_unique<Engine>();
    g_engine = engine_.get();
    ASSERT_EQ(engine_->open(), 0);
    if (GetParam() == "self") {
      first_.reset(make_self_stream(kRing));
    } else if (GetParam() == "tcp") {
      int ends[2] = {-1, -1};
      tcp_pair(ends);
      first_.reset(make_tcp_stream(ends[0]));
      second_.reset(make_tcp_stream(ends[1]));
    } else if (GetParam() == "shm") {
      int ends[2] = {-1, -1};
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
      ShmDescriptors rings;
      second_.reset(make_shm_stream_local(ends[1], kRing, &rings));
      ShmDescriptors copy{::dup(rings.memory), ::dup(rings.connecting_bell), ::dup(rings.accepting_bell)};
      ::close(rings.memory);
      first_.reset(make_shm_stream_remote(ends[0], kRing, copy));
    } else {
      make_ofi(ofi_provider(GetParam().c_str()));
    }
    ASSERT_NE(first_, nullptr);
  }

  void make_ofi(const char* provider) {
    ASSERT_EQ(load_ofi(provider), 0);
    for (auto& fabric : fabrics_) {
      fabric = open_ofi_fabric(engine_driver());
      ASSERT_NE(fabric, nullptr);
    }
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    second_.reset(
        fabrics_[1]->make_stream({fabrics_[0]->name(), fabrics_[0]->name_bytes(), kSecond, kFirst, false, ends[1]}));
    first_.reset(
        fabrics_[0]->make_stream({fabrics_[1]->name(), fabrics_[1]->name_bytes(), kFirst, kSecond, true, ends[0]}));
    ASSERT_NE(second_, nullptr);
    await([this] { return ofi(first_)->open() && ofi(second_)->open(); }, "the connection");
  }

  void TearDown() override {
    first_.reset();
    second_.reset();
    for (auto& fabric : fabrics_) fabric.reset();
  }

  static FabricStream* ofi(const std::unique_ptr<Stream>& stream) { return static_cast<FabricStream*>(stream.get()); }
  bool is_ofi() const { return fabrics_[0] != nullptr; }
  Stream& one() { return *first_; }
  Stream& other() { return second_ != nullptr ? *second_ : *first_; }

  void turn() {
    for (auto& fabric : fabrics_)
      if (fabric != nullptr) fabric->poll();
    engine_->progress(0);
  }
  void await(const std::function<bool()>& condition, const char* what) {
    const std::int64_t end = monotonic_ns() + 20'000'000'000;
    while (!condition()) {
      ASSERT_LT(monotonic_ns(), end) << what;
      turn();
    }
  }
  // The peer's end as its process's death shows it.
  void notice_end(Stream& stream) {
    if (stream.end_fd() >= 0) stream.on_end_ready();
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Fabric> fabrics_[2];
  std::unique_ptr<Stream> first_, second_;
};

// A stream of bytes that can be told from each other, whatever the parts they go in.
// One thread's own memory: ThreadSanitizer, which takes a microsecond for each byte, has nothing to look for in it.
__attribute__((no_sanitize("thread"))) inline char byte_at(std::size_t position) {
  return static_cast<char>((position * 2654435761u) >> 13);
}
__attribute__((no_sanitize("thread"))) void fill(char* to, std::size_t bytes, std::size_t position) {
  for (std::size_t i = 0; i < bytes; ++i) to[i] = byte_at(position + i);
}
// How many of them are right, from the first.
__attribute__((no_sanitize("thread"))) std::size_t count_right(const char* from, std::size_t bytes,
                                                               std::size_t position) {
  std::size_t i = 0;
  while (i < bytes && from[i] == byte_at(position + i)) ++i;
  return i;
}

struct Flow {
  Stream& from;
  Stream& to;
  std::mt19937& random;
  std::size_t bytes;
  std::size_t sent = 0, received = 0;

  void write() {
    if (sent == bytes) return;
    std::vector<char> memory(1 + random() % 200'000);
    if (memory.size() > bytes - sent) memory.resize(bytes - sent);
    fill(memory.data(), memory.size(), sent);
    std::vector<iovec> parts;
    for (std::size_t at = 0; at < memory.size() && parts.size() < 5;) {
      std::size_t n =
          std::min<std::size_t>(memory.size() - at, random() % 3 == 0 ? random() % 30 : random() % 70'000);
      parts.push_back({memory.data() + at, n});
      at += n;
    }
    if (from.traits().in_place && random() % 2 == 0) {
      const std::size_t n = std::min<std::size_t>(memory.size(), 1 + random() % 30'000);
      char* room = from.reserve(n);
      if (room == nullptr) return;
      std::memcpy(room, memory.data(), n);
      from.commit(n);
      sent += n;
      return;
    }
    const ssize_t n = from.writev(parts.data(), static_cast<int>(parts.size()));
    ASSERT_GE(n, 0) << std::strerror(errno);
    std::memset(memory.data(), 0x5a, memory.size());  // what was taken is the caller's again
    sent += static_cast<std::size_t>(n);
  }
  void read() {
    if (to.traits().in_place && random() % 2 == 0) {
      std::size_t there;
      const char* begin = to.peek(&there);
      there = std::min<std::size_t>(there, 1 + random() % 100'000);
      const std::size_t right = count_right(begin, there, received);
      ASSERT_EQ(right, there) << "wrong at " << received + right;
      to.consume(there);
      received += there;
      return;
    }
    std::vector<char> memory(1 + random() % 100'000);
    const std::size_t cut = random() % memory.size();
    const iovec parts[2] = {{memory.data(), cut}, {memory.data() + cut, memory.size() - cut}};
    const bool readable = to.readable();
    const ssize_t n = to.readv(parts, 2);
    ASSERT_GE(n, 0) << std::strerror(errno);
    ASSERT_TRUE(readable || n == 0) << "readable() said there was nothing";
    const std::size_t right = count_right(memory.data(), static_cast<std::size_t>(n), received);
    ASSERT_EQ(right, static_cast<std::size_t>(n)) << "wrong at " << received + right;
    received += static_cast<std::size_t>(n);
  }
};

TEST_P(Transport, CarriesEveryByteOnceAndInOrder) {
  std::mt19937 random(7);
  std::vector<Flow> flows{{one(), other(), random, 8 << 20}};
  if (second_ != nullptr) flows.push_back({other(), one(), random, 8 << 20});
  await(
      [&] {
        bool done = true;
        for (Flow& flow : flows) {
          for (unsigned i = random() % 4; i > 0; --i) flow.write();
          for (unsigned i = random() % 4; i > 0; --i) flow.read();
          done &= flow.received == flow.bytes || HasFatalFailure();
        }
        return done;
      },
      "all bytes");
}

TEST_P(Transport, TakesWhatFitsAndNeverBlocks) {
  std::mt19937 random(11);
  Flow flow{one(), other(), random, SIZE_MAX};
  // Nobody reads: sooner or later it takes nothing, however often it is given turns.
  std::size_t before = 1;
  int refused = 0;
  await(
      [&] {
        before = flow.sent;
        flow.write();
        refused = flow.sent == before ? refused + 1 : 0;
        return refused > 200 || HasFatalFailure();
      },
      "that it is full");
  flow.bytes = flow.sent;
  EXPECT_LT(flow.sent, std::size_t{64} << 20);
  await(
      [&] {
        flow.read();
        return flow.received == flow.bytes || HasFatalFailure();
      },
      "what it had taken");
  flow.bytes = SIZE_MAX;
  before = flow.sent;
  await(
      [&] {
        flow.write();
        return flow.sent > before || HasFatalFailure();
      },
      "room again");
}

TEST_P(Transport, TellsAnEndAfterTheLastByte) {
  if (second_ == nullptr) return;  // a process does not outlive itself
  std::mt19937 random(13);
  Flow flow{*first_, *second_, random, 50'000};  // fits without a reader
  await(
      [&] {
        flow.write();
        return flow.sent == flow.bytes || HasFatalFailure();
      },
      "the last byte");
  // Its process has made it leave, and ends: data first, then the end, whichever way they take.
  for (int i = 0; i < 100; ++i) turn();
  first_->close();
  ssize_t n = 0;
  await(
      [&] {
        notice_end(*second_);
        char byte;
        const iovec part{&byte, 1};
        if (flow.received < flow.bytes) {
          flow.read();
          return HasFatalFailure();
        }
        n = second_->readv(&part, 1);
        return n != 0;
      },
      "the end");
  EXPECT_EQ(n, -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(flow.received, flow.bytes);
  char byte = 0;
  const iovec part{&byte, 1};
  await(
      [&] {
        n = second_->writev(&part, 1);
        return n < 0;
      },
      "that it takes nothing any more");
  EXPECT_EQ(errno, EPIPE);
}

TEST_P(Transport, WithNothingToDoItLetsASleeperSleep) {
  auto sleeps = [&] {
    for (auto& fabric : fabrics_)
      if (fabric != nullptr && !fabric->prepare_sleep()) return false;
    return other().prepare_sleep(false);
  };
  await(sleeps, "sleep");
  other().wake_up();
  char byte = 1;
  iovec part{&byte, 1};
  await([&] { return one().writev(&part, 1) == 1; }, "a byte");
  if (!other().traits().memory_readable) return;  // a level-triggered descriptor does the rest
  await([&] { return other().readable(); }, "its arrival");
  EXPECT_FALSE(other().prepare_sleep(false));
  ASSERT_EQ(other().readv(&part, 1), 1);
  await(sleeps, "sleep once more");
}

TEST_P(Transport, StrangersDoNotGetIntoAStream) {
  if (!is_ofi()) return;                           // on the others there is no way but the stream's own descriptor
  const bool connected = GetParam() == "ofi:tcp";  // by an endpoint of each stream's own
  struct Attempt {
    FabricEnd end;
    const char* what;
  };
  for (const Attempt& attempt :
       {Attempt{{kSecond.slot, kSecond.secret + 1}, "a wrong secret"},
        Attempt{{kSecond.slot + 1, kSecond.secret}, "no such slot"}, Attempt{{0xffffffff, 0}, "a slot far off"}}) {
    SCOPED_TRACE(attempt.what);
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    std::unique_ptr<FabricStream> liar(fabrics_[0]->make_stream(
        {fabrics_[1]->name(), fabrics_[1]->name_bytes(), {9, 9}, attempt.end, true, ends[0]}));
    ASSERT_NE(liar, nullptr);
    const std::uint64_t before =
        engine_->statistics.frames_refused.load() + engine_->statistics.handshakes_refused.load();
    char text[] = "let me in";
    iovec part{text, sizeof(text)};
    await(
        [&] {
          if (!connected && liar->open() && liar->writev(&part, 1) > 0) part.iov_len = 0;
          return engine_->statistics.frames_refused.load() + engine_->statistics.handshakes_refused.load() > before;
        },
        "that it is refused");
    if (connected) {
      await([&] { return liar->writev(&part, 1) < 0; }, "that it is told");
    }
    liar.reset();
    ::close(ends[1]);
  }
  std::mt19937 random(17);
  Flow flow{one(), other(), random, 300'000};
  await(
      [&] {
        flow.write();
        flow.read();
        return flow.received == flow.bytes || HasFatalFailure();
      },
      "what the stream itself carries");
}

INSTANTIATE_TEST_SUITE_P(All, Transport, ::testing::Values("self", "shm", "tcp", "ofi:tcp", "ofi:tcp;ofi_rxm"),
                         [](const auto& info) { return testing::name_in_test(info.param); });

}  // namespace
}  // namespace shadowib::ib2tcp
