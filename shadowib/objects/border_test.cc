// What a backend hears of the border, in which order: also one that is loaded in the middle, and of a CLC of which
// nobody knows whether it counts.
#include "shadowib/objects/border.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hooks/threads/stop.h"
#include "shadowib/objects/backend.h"

namespace shadowib {

constinit thread_local ThreadDepth t_depth;
std::atomic<std::uint32_t> g_stop_requested{0};
void park_if_requested() {}
BackendOps g_backend;

namespace {

std::vector<std::string> g_heard;

using Heard = std::vector<std::string>;

ClusterState at(std::uint32_t sn) {
  ClusterState state{};
  state.sn = sn;
  return state;
}

class BorderOfTheShim : public testing::Test {
 protected:
  void SetUp() override {
    g_backend = BackendOps();
    g_backend.set_cluster = [](const ClusterState* state) {
      g_heard.push_back("SN " + std::to_string(state->sn));
      return 0;
    };
    g_backend.freeze_border = [](int phase) {
      static constexpr const char* kNames[] = {"open", "frozen", "undecided"};
      g_heard.emplace_back(kNames[phase]);
    };
    g_backend.held_stamps = [](HeldStamp*, std::size_t) { return std::size_t{0}; };
    g_backend.border_facts = [](BorderFacts*) {};
    g_backend.cluster_gone = [](std::uint32_t, std::uint32_t) { return 0; };
    forget_border_backend();
    forget_told_gates();
    ASSERT_EQ(tell_cluster(at(1)), 0);
    g_heard.clear();
  }
  static void load() { ASSERT_EQ(tell_loaded_backend(), 0); }
  static Heard heard() { return std::exchange(g_heard, {}); }
};

TEST_F(BorderOfTheShim, AnUndecidedClcThatCountsIsToldBeforeTheBorderOpens) {
  load();
  EXPECT_EQ(heard(), (Heard{"SN 1"}));
  freeze_border(true);
  note_undecided_clc();
  ASSERT_EQ(tell_cluster(at(2)), 0);
  freeze_border(false);
  EXPECT_EQ(heard(), (Heard{"frozen", "undecided", "SN 2", "open"}));
}

TEST_F(BorderOfTheShim, OneThatIsNotFrozenHasNoUndecidedClc) {
  load();
  heard();
  note_undecided_clc();
  EXPECT_EQ(heard(), Heard());
  // It is not told later, either.
  freeze_border(true);
  forget_border_backend();
  freeze_border(true);
  load();
  EXPECT_EQ(heard(), (Heard{"frozen", "SN 1", "frozen"}));
}

// A program opens its first device between the CLC and the answer.
TEST_F(BorderOfTheShim, ABackendThatIsLoadedMeanwhileHearsOfIt) {
  freeze_border(true);
  note_undecided_clc();
  EXPECT_EQ(heard(), Heard());
  load();
  EXPECT_EQ(heard(), (Heard{"SN 1", "frozen", "undecided"}));
  ASSERT_EQ(tell_cluster(at(2)), 0);
  freeze_border(false);
  EXPECT_EQ(heard(), (Heard{"SN 2", "open"}));
}

TEST_F(BorderOfTheShim, ItEndsWithItsFreeze) {
  freeze_border(true);
  note_undecided_clc();
  freeze_border(false);
  freeze_border(true);
  load();
  EXPECT_EQ(heard(), (Heard{"SN 1", "frozen"}));
}

TEST_F(BorderOfTheShim, ARestartAndAForkForgetIt) {
  for (void (*forget)() : {forget_border_backend, forget_border_after_fork}) {
    freeze_border(true);
    note_undecided_clc();
    forget();
    load();
    EXPECT_EQ(heard(), (Heard{"SN 1"}));
    forget_border_backend();
  }
}

TEST_F(BorderOfTheShim, ABackendWithoutBordersIsRefused) {
  g_backend = BackendOps();
  EXPECT_EQ(tell_loaded_backend(), EOPNOTSUPP);
  freeze_border(true);
  note_undecided_clc();
  freeze_border(false);
  EXPECT_EQ(heard(), Heard());
}

}  // namespace
}  // namespace shadowib
