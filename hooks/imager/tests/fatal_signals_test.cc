#include "hooks/imager/save/fatal_signals.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <vector>

namespace shadowib {
namespace {

constexpr std::uint64_t bit(int signal) { return 1ull << (signal - 1); }

class FatalSignals : public testing::Test {
 protected:
  // Those of `signals` that an image keeps, in their order and with what came with them.
  std::vector<int> kept(const std::vector<int>& signals, std::uint64_t blocked = 0, std::uint64_t requests = 0) {
    std::uint8_t pending[64][128] = {};
    for (std::size_t i = 0; i < signals.size(); ++i)
      *reinterpret_cast<std::int32_t*>(pending[i]) = signals[i],
      pending[i][127] = static_cast<std::uint8_t>(signals[i]);
    std::vector<int> result;
    const std::uint32_t n =
        leave_out_fatal(pending, static_cast<std::uint32_t>(signals.size()), actions_, blocked, requests);
    for (std::uint32_t i = 0; i < n; ++i) {
      result.push_back(*reinterpret_cast<const std::int32_t*>(pending[i]));
      EXPECT_EQ(pending[i][127], result.back());
    }
    return result;
  }
  using List = std::vector<int>;
  SignalAction actions_[64] = {};
};

TEST_F(FatalSignals, WhatEndsOrStopsTheProcessIsLeftOut) {
  EXPECT_EQ(kept({SIGHUP, SIGTERM, SIGALRM, SIGUSR1, SIGQUIT, SIGTSTP, SIGRTMIN, SIGRTMAX}), List{});
  EXPECT_EQ(kept({}), List{});
}

TEST_F(FatalSignals, WhatIsIgnoredStays) {
  const List harmless{SIGCHLD, SIGCONT, SIGURG, SIGWINCH};
  EXPECT_EQ(kept(harmless), harmless);
  actions_[SIGTERM - 1].handler = 1;  // SIG_IGN
  EXPECT_EQ(kept({SIGTERM, SIGHUP}), List{SIGTERM});
}

TEST_F(FatalSignals, WhatTheProgramHandlesStays) {
  actions_[SIGTERM - 1].handler = actions_[SIGRTMAX - 1].handler = 0x1000;
  EXPECT_EQ(kept({SIGHUP, SIGTERM, SIGALRM, SIGRTMAX, SIGRTMIN, SIGRTMAX}), (List{SIGTERM, SIGRTMAX, SIGRTMAX}));
}

TEST_F(FatalSignals, WhatHasAskedForTheCheckpointIsLeftOut) {
  actions_[SIGUSR1 - 1].handler = actions_[SIGUSR2 - 1].handler = 0x1000;
  EXPECT_EQ(kept({SIGUSR1, SIGUSR2, SIGCHLD}, bit(SIGUSR1), bit(SIGUSR1)), (List{SIGUSR2, SIGCHLD}));
}

TEST_F(FatalSignals, WhatTheProgramHasBlockedStays) {
  EXPECT_EQ(kept({SIGHUP, SIGTERM, SIGRTMAX}, bit(SIGTERM) | bit(SIGRTMAX)), (List{SIGTERM, SIGRTMAX}));
}

}  // namespace
}  // namespace shadowib
