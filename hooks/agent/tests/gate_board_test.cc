// The board by which members tell each other how far they have come: who is woken, and how often.
#include "hooks/agent/gate_board.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace shadowib {
namespace {

constexpr std::uint64_t kNothing = std::numeric_limits<std::uint64_t>::max();
constexpr unsigned kBack = 1;
constexpr std::uint32_t kRoom = 8;
constexpr std::int64_t kHangNs = 60'000'000'000;

class Board : public ::testing::Test {
 protected:
  Board() {
    std::string name = ::testing::TempDir() + "board-XXXXXX";
    top_ = ::mkdtemp(name.data());
  }
  ~Board() override {
    members_.clear();
    std::filesystem::remove_all(top_);
  }

  // One that says it has `earliest` left, and awaits that much of others.
  GateBoard& add(std::uint64_t earliest, std::uint64_t awaits) {
    const auto number = static_cast<std::uint32_t>(members_.size());
    members_.push_back(std::make_unique<GateBoard>(top_ + "/board", number, kRoom));
    EXPECT_TRUE(members_.back()->is_there());
    members_.back()->write(kBack, earliest, awaits);
    return *members_.back();
  }
  // How often that member was woken since it was asked last.
  std::uint32_t woken(std::uint32_t member) {
    before_.resize(members_.size());
    const std::uint32_t now = members_.front()->wakings(member);
    return now - std::exchange(before_[member], now);
  }

  std::string top_;
  std::vector<std::unique_ptr<GateBoard>> members_;
  std::vector<std::uint32_t> before_;
};

TEST_F(Board, TellsWhatOthersHaveSaid) {
  GateBoard& a = add(50, kNothing);
  GateBoard& b = add(60, kNothing);
  EXPECT_EQ(a.read(1)[0], 0u);
  EXPECT_EQ(b.read(0)[kBack], 50u);
  EXPECT_EQ(b.read(7)[kBack], 0u) << "it was never there";
  a.write(kBack, 40, kNothing);
  EXPECT_EQ(b.read(0)[kBack], 50u) << "values grow";
  a.write(kBack, kNothing, kNothing);
  EXPECT_EQ(b.read(0)[kBack], kNothing);
}

TEST_F(Board, HasRoomForMoreThanTheFirstHasMadeItFor) {
  add(50, kNothing);
  GateBoard late(top_ + "/board", kRoom + 3, 1);
  late.write(kBack, 70, kNothing);
  EXPECT_EQ(GateBoard(top_ + "/board", 1, 1).read(kRoom + 3)[kBack], 70u);
  EXPECT_EQ(late.read(0)[kBack], 50u);
}

TEST_F(Board, TheLastOfThoseThatAreAwaitedWakes) {
  add(kNothing, 100);
  GateBoard& b = add(50, kNothing);
  GateBoard& c = add(60, kNothing);
  (void)woken(0);
  b.write(kBack, 70, kNothing);
  b.write(kBack, 120, kNothing);
  EXPECT_EQ(woken(0), 0u) << "the other one is at 60";
  c.write(kBack, 99, kNothing);
  EXPECT_EQ(woken(0), 0u);
  c.write(kBack, 100, kNothing);
  EXPECT_EQ(woken(0), 1u);
  b.write(kBack, 130, kNothing);
  c.write(kBack, 140, kNothing);
  EXPECT_EQ(woken(0), 0u) << "it is there already";
}

TEST_F(Board, WhoAwaitsWhatIsThereIsWoken) {
  GateBoard& a = add(10, kNothing);
  add(50, kNothing);
  (void)woken(0);
  a.write(kBack, 10, 51);
  EXPECT_EQ(woken(0), 0u);
  a.write(kBack, 10, 50);
  EXPECT_EQ(woken(0), 1u) << "it may not have heard";
}

TEST_F(Board, WhoSaysNothingOfItIsWokenByEachStep) {
  add(kNothing, 0);
  GateBoard& b = add(50, kNothing);
  (void)woken(0);
  b.write(kBack, 60, kNothing);
  b.write(kBack, 60, 55);
  b.write(kBack, 70, 55);
  EXPECT_EQ(woken(0), 2u);
}

TEST_F(Board, ASleeperGoesOn) {
  GateBoard& a = add(kNothing, 100);
  GateBoard& b = add(50, kNothing);
  const std::uint32_t seen = a.wakings(0);
  std::thread sleeper([&] {
    while (a.wakings(0) == seen) a.sleep(seen, kHangNs);
  });
  b.write(kBack, 100, kNothing);
  sleeper.join();
  EXPECT_EQ(a.read(1)[kBack], 100u);
}

// Members send in turn, each message behind the one before. A step wakes the next one in the row, and nobody else.
TEST_F(Board, AHandOverWakesWhoIsNext) {
  constexpr std::uint32_t kMembers = 5;
  constexpr std::uint64_t kMessages = 500;
  const auto completed = [](std::uint64_t message) { return message < kMessages ? 100 * message + 50 : kNothing; };
  const auto needs = [](std::uint64_t message) { return message < kMessages ? 100 * message : kNothing; };
  for (std::uint32_t i = 0; i < kMembers; ++i) add(completed(i), needs(i));
  for (std::uint32_t i = 0; i < kMembers; ++i) (void)woken(i);
  std::uint32_t all = 0;
  for (std::uint64_t message = 0; message < kMessages; ++message) {
    const auto who = static_cast<std::uint32_t>(message % kMembers);
    members_[who]->write(kBack, completed(message + kMembers), needs(message + kMembers));
    for (std::uint32_t i = 0; i < kMembers; ++i) {
      const std::uint32_t times = woken(i);
      all += times;
      if (message + 1 == kMessages) continue;
      EXPECT_EQ(times, i == (message + 1) % kMembers ? 1u : 0u) << "message " << message;
    }
  }
  EXPECT_LE(all, kMessages + kMembers);
}

}  // namespace
}  // namespace shadowib
