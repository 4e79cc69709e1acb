#include "ib2tcp/gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace shadowib::ib2tcp {
namespace {

constexpr GateState others(std::uint64_t earliest, std::uint64_t skew = 0, std::uint32_t goes_first = 0) {
  return {earliest, skew, goes_first, 0};
}

TEST(Gate, IsOpenWhileNothingComesAgain) {
  Gate gate;
  EXPECT_TRUE(gate.is_open());
  EXPECT_EQ(gate.earliest(), kNothingLeft);
  EXPECT_TRUE(gate.lets(1, kNothingLeft, 0));
  EXPECT_TRUE(gate.lets(1, 5, 6));
}

TEST(Gate, ARequestWaitsForWhatCompletedBeforeItLeft) {
  Gate gate;
  gate.set(1, 100);
  EXPECT_FALSE(gate.lets(2, 101, 120));
  EXPECT_FALSE(gate.lets(2, 100, 120));
  EXPECT_TRUE(gate.lets(2, 99, 120));  // it may have run before the other, and did not know of it
  EXPECT_TRUE(gate.lets(2, 99, 0));
  EXPECT_FALSE(gate.is_open());
  gate.set(1, kNothingLeft);
  EXPECT_TRUE(gate.lets(2, 101, 120));
  EXPECT_TRUE(gate.is_open());
}

TEST(Gate, NewRequestsWaitForAll) {
  Gate gate;
  gate.set(1, 100);
  EXPECT_FALSE(gate.lets(2, kNothingLeft, 0));
  gate.set(1, kNothingLeft);
  gate.set_others(others(7));
  EXPECT_FALSE(gate.lets(2, kNothingLeft, 0));
  gate.set_others(others(kNothingLeft));
  EXPECT_TRUE(gate.lets(2, kNothingLeft, 0));
}

TEST(Gate, AQueuePairHasItsOwnOrder) {
  Gate gate;
  gate.set(1, 100);
  EXPECT_TRUE(gate.lets(1, 500, 600));
  EXPECT_TRUE(gate.lets(1, kNothingLeft, 0));
  gate.set(2, 300);
  EXPECT_FALSE(gate.lets(1, 500, 600));
  EXPECT_TRUE(gate.lets(1, 200, 210));
  EXPECT_FALSE(gate.lets(2, 300, 310));
}

TEST(Gate, TellsTheEarliest) {
  Gate gate;
  gate.set(1, 100);
  gate.set(1, 100);
  EXPECT_EQ(gate.earliest(), 100u);
  gate.set(2, 50);
  EXPECT_EQ(gate.earliest(), 50u);
  gate.set(2, 150);
  EXPECT_EQ(gate.earliest(), 100u);
  gate.set(1, kNothingLeft);
  EXPECT_EQ(gate.earliest(), 150u);
  gate.set(1, kNothingLeft);
  gate.set(2, kNothingLeft);
  EXPECT_EQ(gate.earliest(), kNothingLeft);
}

TEST(Gate, TellsWhetherOthersSayAnythingNew) {
  Gate gate;
  EXPECT_TRUE(gate.set_others(others(9)));
  EXPECT_FALSE(gate.set_others(others(9)));
}

TEST(Gate, NothingGoesBeforeOtherProcessesHaveSpoken) {
  Gate gate;
  gate.set_others(others(kNotYetKnown));
  EXPECT_FALSE(gate.lets(1, 1, 2));
  EXPECT_FALSE(gate.is_open());
}

TEST(Gate, OtherClocksMayDifferByTheSkew) {
  Gate gate;
  gate.set_others(others(100, 10));
  EXPECT_TRUE(gate.lets(1, 89, 0));
  EXPECT_FALSE(gate.lets(1, 90, 0));
  EXPECT_FALSE(gate.lets(1, 105, 0));
  // Exact at home.
  gate.set(2, 100);
  EXPECT_TRUE(gate.lets(1, 89, 0));
}

TEST(Gate, OneOfTwoThatWaitForEachOtherGoes) {
  // Left at 100 and 101, completed at 103 and 104; the skew is more than that.
  Gate a, b;
  a.set(1, 103);
  b.set(1, 104);
  a.set_others(others(b.earliest(), 10, 1));
  b.set_others(others(a.earliest(), 10, 0));
  EXPECT_TRUE(a.lets(1, 100, 103));
  EXPECT_FALSE(b.lets(1, 101, 104));
  // At the same time.
  b.set(1, 103);
  a.set_others(others(103, 10, 1));
  b.set_others(others(103, 10, 0));
  EXPECT_TRUE(a.lets(1, 100, 103));
  EXPECT_FALSE(b.lets(1, 101, 103));
}

// Processes with queue pairs, each of which sends a request after another, and all is replayed: it ends, and nothing
// runs before what completed before it left, by true time.
TEST(Gate, ReplaysOfChanceEndInOrder) {
  struct Request {
    std::uint64_t left, completed;  // true
    unsigned process;
  };
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const unsigned processes = 1 + random() % 3, pairs = 1 + random() % 3;
    const std::uint64_t skew = random() % 2 == 0 ? 0 : 40, round_trip = skew + 2;
    std::vector<std::int64_t> offset(processes, 0);
    for (auto& o : offset) o = skew == 0 ? 0 : static_cast<std::int64_t>(random() % (skew + 1));
    std::vector<std::vector<std::vector<Request>>> logs(processes, std::vector<std::vector<Request>>(pairs));
    for (unsigned p = 0; p < processes; ++p)
      for (auto& log : logs[p]) {
        std::uint64_t now = 1000;
        for (unsigned n = random() % 6; n > 0; --n) {
          const std::uint64_t left = now + random() % 100, completed = left + round_trip + random() % 200;
          log.push_back({left, completed, p});
          now = completed + 1;
        }
      }
    std::vector<std::vector<std::size_t>> at(processes, std::vector<std::size_t>(pairs, 0));
    std::vector<Gate> gates(processes);
    std::vector<Request> ran;
    const auto stamp = [&](unsigned p, std::uint64_t time) { return time + static_cast<std::uint64_t>(offset[p]); };
    const auto publish = [&] {
      for (unsigned p = 0; p < processes; ++p)
        for (unsigned q = 0; q < pairs; ++q)
          gates[p].set(q, at[p][q] == logs[p][q].size() ? kNothingLeft : stamp(p, logs[p][q][at[p][q]].completed));
      for (unsigned p = 0; p < processes; ++p) {
        std::pair<std::uint64_t, unsigned> least{kNothingLeft, processes};
        for (unsigned o = 0; o < processes; ++o)
          if (o != p) least = std::min(least, {gates[o].earliest(), o});
        gates[p].set_others(others(least.first, skew, p < least.second));
      }
    };
    bool moved = true;
    while (moved) {
      moved = false;
      for (unsigned p = 0; p < processes; ++p)
        for (unsigned q = 0; q < pairs; ++q) {
          publish();
          if (at[p][q] == logs[p][q].size()) continue;
          const Request& next = logs[p][q][at[p][q]];
          if (!gates[p].lets(q, stamp(p, next.left), stamp(p, next.completed))) continue;
          ran.push_back(next);
          ++at[p][q];
          moved = true;
        }
    }
    publish();
    for (const Gate& gate : gates) EXPECT_TRUE(gate.is_open()) << "some wait for each other";
    for (std::size_t i = 0; i < ran.size(); ++i)
      for (std::size_t j = i + 1; j < ran.size(); ++j) EXPECT_GE(ran[j].completed, ran[i].left);
  }
}

// Whoever may go after a change is told, and nobody else.
TEST(Gate, WakesThoseThatMayGo) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int game = 0; game < 200; ++game) {
    struct Waits {
      std::uint64_t left, completed;
    };
    Gate gate;
    std::map<std::uint32_t, Waits> waiting;
    const auto time = [&] { return random() % 8 == 0 ? kNothingLeft : 1 + random() % 40; };
    for (int step = 0; step < 100; ++step) {
      for (std::uint32_t qp = 0; qp < 8; ++qp) {
        const std::uint64_t left = time(),
                            completed = left == kNothingLeft ? 0 : (left + random() % 5) * (random() % 2);
        if (random() % 2 == 0 || gate.lets(qp, left, completed)) continue;
        gate.wait(qp, left, completed);
        gate.wait_until_open(qp);  // that comes later
        waiting[qp] = {left, completed};
      }
      if (random() % 3 != 0)
        gate.set(random() % 8, time());
      else
        gate.set_others(others(random() % 5 == 0 ? kNotYetKnown : time(), random() % 3 == 0 ? 3 : 0, random() % 2));
      std::vector<std::uint32_t> expected;
      for (const auto& [qp, waits] : waiting)
        if (gate.lets(qp, waits.left, waits.completed)) expected.push_back(qp);
      std::vector<std::uint32_t> ready = gate.take_ready();
      std::sort(ready.begin(), ready.end());
      ASSERT_EQ(ready, expected);
      for (const std::uint32_t qp : ready) waiting.erase(qp);
    }
  }
}

// Many queue pairs send again in turn: each is woken about once, not whenever another one has come further.
TEST(Gate, WakesEachOfManyOnce) {
  constexpr std::uint32_t kQueuePairs = 500;
  Gate gate;
  const auto wait = [&](std::uint32_t qp) {  // the second half has something new
    const bool again = qp < kQueuePairs;
    const std::uint64_t left = again ? 95 + 10 * qp : kNothingLeft, completed = again ? 100 + 10 * qp : 0;
    if (!gate.lets(qp, left, completed)) gate.wait(qp, left, completed);
  };
  for (std::uint32_t qp = 0; qp < kQueuePairs; ++qp) gate.set(qp, 100 + 10 * qp);
  for (std::uint32_t qp = 0; qp < 2 * kQueuePairs; ++qp) wait(qp);
  std::size_t woken = 0;
  for (std::uint32_t qp = 0; qp < kQueuePairs; ++qp) {
    gate.set(qp, kNothingLeft);
    for (const std::uint32_t again : gate.take_ready()) wait(again), ++woken;
  }
  EXPECT_EQ(woken, 2 * kQueuePairs - 1);
}

// Others are heard when they are that far, and not before.
TEST(Gate, SaysHowFarOthersHaveToCome) {
  Gate gate;
  EXPECT_EQ(gate.awaits(), kNothingLeft);
  gate.set_others(others(100));
  gate.wait(1, 300, 310);
  gate.wait(2, 200, 210);
  gate.wait_until_open(3);
  EXPECT_EQ(gate.awaits(), 201u);
  gate.set_others(others(200));
  EXPECT_TRUE(gate.take_ready().empty());
  gate.set_others(others(201));
  EXPECT_EQ(gate.take_ready(), std::vector<std::uint32_t>{2});
  EXPECT_EQ(gate.awaits(), 301u);
  // Behind a queue pair of its own it waits for nobody else yet.
  gate.set(4, 250);
  gate.set_others(others(301));
  EXPECT_TRUE(gate.take_ready().empty());
  gate.set(4, kNothingLeft);
  EXPECT_EQ(gate.take_ready(), std::vector<std::uint32_t>{1});
  EXPECT_EQ(gate.awaits(), kNothingLeft);
}

// A hand-over: a process goes on because of what another one has told. Two processes send a message each in turn, and
// each completes before the next one is posted. With a completion for each fourth one the order is looser, and what
// may go goes at once.
TEST(Gate, HandsOverWhereACompletionWasHeard) {
  constexpr std::uint64_t kMessages = 800;
  const auto count = [](std::uint64_t signaled_each) {
    struct Process {
      Gate gate;
      std::uint64_t next = 0, told = 0, wakings = 0;
      std::vector<std::pair<std::uint64_t, std::uint64_t>> log;
    } processes[2];
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      auto& log = processes[i % 2].log;
      log.emplace_back(100 * (i + 1), 0);
      if (log.size() % signaled_each == 0)
        for (std::uint64_t back = 0; back < signaled_each; ++back)
          (log.end() - 1 - static_cast<std::ptrdiff_t>(back))->second = 100 * (i + 1) + 50;
    }
    const auto earliest = [](const Process& p) {
      return p.next < p.log.size() ? p.log[p.next].second : kNothingLeft;
    };
    for (Process& p : processes) p.gate.set(1, p.told = earliest(p));
    for (int i = 0; i < 2; ++i) processes[i].gate.set_others(others(processes[1 - i].told));
    // As on the agents' board: who is awaited wakes, and who begins to wait looks once.
    const auto hand_over = [](Process& to, const Process& from) {
      if (from.told < to.gate.awaits() || !to.gate.set_others(others(from.told))) return false;
      const bool wakes = !to.gate.take_ready().empty();
      to.wakings += wakes;
      return wakes;
    };
    for (bool moved = true; std::exchange(moved, false);)
      for (int i = 0; i < 2; ++i) {
        Process &p = processes[i], &other = processes[1 - i];
        do {
          for (; p.next < p.log.size() && p.gate.lets(1, p.log[p.next].first, p.log[p.next].second); moved = true)
            ++p.next;
          if (p.next < p.log.size()) p.gate.wait(1, p.log[p.next].first, p.log[p.next].second);
          p.gate.set(1, p.told = earliest(p));
        } while (hand_over(p, other));
        (void)hand_over(other, p);
      }
    for (const Process& p : processes) EXPECT_EQ(p.next, p.log.size());
    return processes[0].wakings + processes[1].wakings;
  };
  EXPECT_GE(count(1), kMessages - 2);
  EXPECT_LE(count(4), kMessages / 4);
}

TEST(Gate, WhoWaitsUntilItOpensIsWoken) {
  Gate gate;
  gate.set(1, 100);
  gate.wait_until_open(2);
  gate.set(1, 200);
  EXPECT_TRUE(gate.take_ready().empty());
  gate.set(1, kNothingLeft);
  EXPECT_EQ(gate.take_ready(), std::vector<std::uint32_t>{2});
  EXPECT_TRUE(gate.take_ready().empty());
}

}  // namespace
}  // namespace shadowib::ib2tcp
