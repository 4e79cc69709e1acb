// The helper's last turn before it sleeps: what that turn sets going is not left behind.
//
// The engine alone, with a link over a stream of the test's that counts its turns: the only way to have a timer fire
// in one certain turn.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ib2tcp/engine.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/rendezvous.h"

namespace shadowib::ib2tcp {
namespace {

const HostServices kHost = [] {
  HostServices host{};
  host.abi_version = kBackendAbiVersion;
  host.own_descriptor = [](int fd) { return fd; };
  host.close_descriptor = [](int fd) { ::close(fd); };
  host.unowned_descriptors = [](bool) {};
  host.config = [](const char*) -> const char* { return nullptr; };
  host.log = [](int, const char*) {};
  return host;
}();

// Takes everything, delivers nothing, and asks the engine to stop when it is to sleep.
class CountingStream final : public Stream {
 public:
  explicit CountingStream(Link& link) : link_(link) {}
  const StreamTraits& traits() const override { return kTraits; }
  ssize_t writev(const iovec* parts, int count) override {
    ssize_t bytes = 0;
    for (int i = 0; i < count; ++i) bytes += static_cast<ssize_t>(parts[i].iov_len);
    written += static_cast<std::size_t>(bytes);
    return bytes;
  }
  ssize_t readv(const iovec* parts, int) override {
    if (trickle > 0) {  // a byte of a frame that is never whole
      --trickle;
      *static_cast<char*>(parts->iov_base) = 0;
      return 1;
    }
    if (!ended) return 0;
    errno = EPIPE;
    return -1;
  }
  bool readable() override {  // asked once in a turn
    ++turns;
    if (turns == fire_in_turn) g_engine->arm(*timer, 1);  // long due
    return ended || trickle > 0;
  }
  int fd() const override { return doorbell; }
  bool prepare_sleep(bool) override {
    slept_in_turn = turns;
    left_behind = link_.unsent();
    ++sleeping;
    if (--sleeps <= 0) g_engine->wake();
    return true;
  }
  void wake_up() override { ++wakes; }
  void on_fd_ready() override { ++rings_taken; }
  void close() override {}

  int turns = 0, fire_in_turn = 0, slept_in_turn = 0;
  int doorbell = -1, rings_taken = 0;
  int trickle = 0;  // bytes that may be read, one at a time
  int sleeps = 1;   // until the engine is asked to stop
  bool left_behind = false, ended = false;
  std::atomic<int> sleeping{0}, wakes{0};
  std::size_t written = 0;
  Timer* timer = nullptr;

 private:
  static constexpr StreamTraits kTraits = {
      .name = "counting", .copy_limit = 512, .read_ahead = false, .memory_readable = true};
  Link& link_;
};

class Helper : public ::testing::Test {
 protected:
  void SetUp() override {
    g_host = &kHost;
    engine_ = std::make_unique<Engine>();
    g_engine = engine_.get();
    ASSERT_EQ(engine_->open(), 0);
    link_ = std::make_unique<Link>(Endpoint{}, true);
    engine_->add_link(link_.get());
    stream_ = new CountingStream(*link_);
    link_->on_connected(stream_, false);
    timer_.fire = [](void* link) { static_cast<Link*>(link)->send_loose(FrameHeader{}); };
    timer_.owner = link_.get();
    stream_->timer = &timer_;
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Link> link_, second_;
  CountingStream* stream_ = nullptr;  // the link's
  Timer timer_;
};

// Who has no connection costs a turn nothing, and is back with the next one.
TEST_F(Helper, VisitsLinksThatAreConnected) {
  second_ = std::make_unique<Link>(Endpoint{}, true);
  engine_->add_link(second_.get());
  EXPECT_EQ(engine_->connected(), std::vector<Link*>{link_.get()});
  for (int i = 0; i < 2; ++i) {
    auto* stream = new CountingStream(*second_);
    second_->on_connected(stream, false);
    EXPECT_EQ(engine_->connected().size(), 2u);
    engine_->progress(0);
    EXPECT_EQ(stream->turns, 1);
    stream->ended = true;
    engine_->progress(0);
    EXPECT_EQ(engine_->connected(), std::vector<Link*>{link_.get()});
  }
}

// The turn the helper goes to sleep after, with nothing to do.
TEST_F(Helper, SleepsWhenNothingMoves) {
  engine_->progress(-1);
  EXPECT_GT(stream_->slept_in_turn, 0);
  EXPECT_FALSE(stream_->left_behind);
}

// Whichever turn a timer fires in, what it made ready is sent before the helper sleeps.
TEST_F(Helper, SendsWhatATimerMadeReadyBeforeItSleeps) {
  engine_->progress(-1);
  const int last = stream_->slept_in_turn;
  for (int turn = 1; turn <= last; ++turn) {
    SCOPED_TRACE("the timer fires in turn " + std::to_string(turn) + " of " + std::to_string(last));
    stream_->turns = 0;
    stream_->fire_in_turn = turn;
    stream_->written = 0;
    engine_->progress(-1);
    EXPECT_GT(stream_->slept_in_turn, turn);
    EXPECT_FALSE(stream_->left_behind);
    EXPECT_EQ(stream_->written, sizeof(FrameHeader));
  }
}

// How often engines were rung for and have not heard it: eventfds here are bells, also of the engines of tests
// before.
long rings() {
  long sum = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream info(entry.path());
    for (std::string name, value; info >> name >> value;)
      if (name == "eventfd-count:") sum += std::strtol(value.c_str(), nullptr, 16);
  }
  return sum;
}

// A helper that was woken runs when it gets a processor. A poll that looks at the same descriptors before must leave
// it its reason to wake: else it sleeps on, and everybody takes it for awake.
TEST_F(Helper, HearsARingThatAPollHasSeenBefore) {
  const long before = rings();
  engine_->sockets = 100;  // too many to be asked one by one
  engine_->wake();
  ASSERT_EQ(rings(), before + 1);
  engine_->progress(0);
  ASSERT_EQ(rings(), before + 1) << "a poll took the ring";
  engine_->progress(-1);  // it is to stop, and does not come to sleep
  EXPECT_EQ(rings(), before + 1);
  stream_->sleeps = 2;
  engine_->progress(-1);  // from its first sleep the ring wakes it; in the second one it is rung for again
  EXPECT_EQ(stream_->sleeps, 0);
  EXPECT_EQ(rings(), before + 1) << "it does not hear, and would never sleep again";
}

// A stream's doorbell is for a helper that sleeps, as the engine's bell is: whoever takes the ring reads what it told
// of, but the peer rings no second time.
TEST_F(Helper, HearsADoorbellThatAPollHasSeenBefore) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  second_ = std::make_unique<Link>(Endpoint{}, true);
  auto* stream = new CountingStream(*second_);
  stream->doorbell = ends[0];
  engine_->add_link(second_.get());
  second_->on_connected(stream, false);
  engine_->sockets = 100;  // too many to be asked one by one
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  engine_->progress(0);
  ASSERT_EQ(stream->rings_taken, 0) << "a poll took the ring";
  stream->sleeps = stream_->sleeps = 2;
  engine_->progress(-1);
  EXPECT_GT(stream->rings_taken, 0) << "the helper has slept, and does not look";
  ::close(ends[1]);
}

// Two programs that answer each other at once poll a few times between two messages. The helper of each slept beside
// them, and each message rang for it: a round trip took five times as long.
TEST_F(Helper, IsAskedOutByPollsThatMoveSomething) {
  stream_->sleeps = INT_MAX;
  std::thread helper([this] { engine_->progress(-1); });
  while (stream_->sleeping == 0) std::this_thread::yield();
  engine_->outstanding.add(1);
  engine_->about_to_sleep();
  for (int i = 0; i < 16; ++i) {
    {
      EngineGuard guard;
      stream_->trickle = 1;
    }
    ASSERT_TRUE(engine_->poll_turn(false)) << "nothing moved";
  }
  for (int ms = 0; ms < 10'000 && stream_->wakes == 0; ++ms)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GT(stream_->wakes, 0) << "the helper is still there";
  engine_->wake();
  helper.join();
  engine_->outstanding.add(-1);
}

// Each millisecond was two wake-ups, for as long as a program polled.
TEST_F(Helper, LooksSeldomAtAProgramThatGoesOnPolling) {
  constexpr std::int64_t kPolledNs = 400'000'000;
  constexpr std::uint64_t kMostNaps = 100;  // some 70: 13 in 8 ms, 18 to 64 ms, then each 8 ms; 400 otherwise
  std::thread helper([this] { engine_->progress(-1); });
  engine_->outstanding.add(1);
  const std::uint64_t before = engine_->statistics.naps;
  for (const std::int64_t end = monotonic_ns() + kPolledNs; monotonic_ns() < end;) engine_->poll_turn(false);
  EXPECT_LE(engine_->statistics.naps - before, kMostNaps);
  engine_->wake();
  helper.join();
  engine_->outstanding.add(-1);
}

}  // namespace
}  // namespace shadowib::ib2tcp
