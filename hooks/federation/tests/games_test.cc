// Rule, line and collection against brute force, in random games. SHADOWIB_GAMES=100000 plays more of each kind.
#include <gtest/gtest.h>

#include <cstdlib>

#include "hooks/federation/tests/game.h"

namespace shadowib::federation {
namespace {

int games_of(unsigned clusters) {
  const char* given = std::getenv("SHADOWIB_GAMES");
  return given ? std::atoi(given) : clusters == 4 ? 20 : 100;  // of four clusters brute force is slow
}

struct Kind {
  const char* name;
  Game::Options options;
};

class GamesTest : public testing::TestWithParam<Kind> {};

TEST_P(GamesTest, EqualBruteForce) {
  const char* given = std::getenv("SHADOWIB_SEED");
  const std::uint64_t seed = given ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  Game::Met met;
  const int games = games_of(GetParam().options.clusters);
  for (int i = 0; i < games; ++i) {
    Game game(seed + static_cast<std::uint64_t>(i), GetParam().options);
    const std::string wrong = game.play(100, &met);
    ASSERT_EQ(wrong, "") << "repeat: SHADOWIB_SEED=" << seed + static_cast<std::uint64_t>(i)
                         << " SHADOWIB_GAMES=1 federation_test --gtest_filter='*" << GetParam().name << "'";
  }
  if (games < 20) return;  // a game may meet none of these
  EXPECT_GT(met.lines, 0) << "seed " << seed;
  EXPECT_GT(met.cascades, 0);
  EXPECT_GT(met.stays, 0);
  EXPECT_GT(met.bounds, 0);
  EXPECT_GT(met.collections, 0);
  EXPECT_GT(met.collected, 0);
  EXPECT_GT(met.resent, 0);
}

std::vector<Kind> kinds() {
  return {{"PaperTwo", {Policy::kPaper, 2, false}},     {"PaperThree", {Policy::kPaper, 3, false}},
          {"PaperFour", {Policy::kPaper, 4, false}},    {"VectorTwo", {Policy::kVector, 2, false}},
          {"VectorThree", {Policy::kVector, 3, false}}, {"VectorFour", {Policy::kVector, 4, false}},
          {"IndexTwo", {Policy::kIndex, 2, false}},     {"IndexThree", {Policy::kIndex, 3, false}},
          {"NoneThree", {Policy::kNone, 3, false}},     {"PaperAtWhim", {Policy::kPaper, 3, true}},
          {"VectorAtWhim", {Policy::kVector, 3, true}}, {"IndexAtWhim", {Policy::kIndex, 3, true}}};
}

INSTANTIATE_TEST_SUITE_P(Kinds, GamesTest, testing::ValuesIn(kinds()),
                         [](const testing::TestParamInfo<Kind>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shadowib::federation
