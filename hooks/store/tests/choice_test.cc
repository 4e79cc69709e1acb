#include "hooks/store/choice.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <functional>

namespace shadowib {
namespace {

constexpr std::uint64_t kMB = 1'000'000;

// The hosts of the paper's figure 8, all alike.
StoreQuestion question_of(std::uint64_t image_bytes, std::uint64_t mem_bytes, std::uint64_t disk_bytes,
                          std::uint64_t central_bytes, int hosts = 5) {
  StoreQuestion question;
  question.rates = {.latency_s = 0, .network = 20e-9, .coding = 5e-9, .disk = 13e-9, .central = 20e-9};
  question.central_bytes = central_bytes;
  for (int i = 0; i < hosts; ++i) {
    const std::string name = "h" + std::to_string(i);
    question.hosts.push_back({name, name, name, image_bytes, mem_bytes, disk_bytes});
  }
  return question;
}

// With the newest set in every place at once: room for one more is enough.
std::string chosen(const StoreQuestion& question) {
  for (const StoreOption& candidate : rank_stores(question))
    if (candidate.has_room()) return candidate.store.text();
  StoreSpec store;
  return choose_store_of(rank_stores(question), &store).text();
}

StoreOption option(const StoreQuestion& question, const std::string& text) {
  for (const StoreOption& candidate : rank_stores(question))
    if (candidate.store.text() == text) return candidate;
  ADD_FAILURE() << text << " is no candidate";
  return {};
}

TEST(Choice, TakesTheBranchesOfFigure6InOrder) {
  EXPECT_EQ(chosen(question_of(100 * kMB, 200 * kMB, 900 * kMB, 900 * kMB)), "mem:mirror");
  EXPECT_EQ(chosen(question_of(100 * kMB, 199 * kMB, 900 * kMB, 900 * kMB)), "mem:xor");
  EXPECT_EQ(chosen(question_of(100 * kMB, 124 * kMB, 900 * kMB, 900 * kMB)), "disk:mirror");
  EXPECT_EQ(chosen(question_of(100 * kMB, 124 * kMB, 199 * kMB, 900 * kMB)), "disk:xor");
  EXPECT_EQ(chosen(question_of(100 * kMB, 124 * kMB, 124 * kMB, 500 * kMB)), "central");
  const std::string refusal = chosen(question_of(100 * kMB, 124 * kMB, 124 * kMB, 499 * kMB));
  EXPECT_TRUE(refusal.starts_with("no store has room: ")) << refusal;
  EXPECT_NE(refusal.find("mem:xor needs 119 MiB on host h0, 118 MiB are free"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("central needs 477 MiB, 476 MiB are free"), std::string::npos) << refusal;
}

// Figure 8, by formula (7). The paper does not count where parities lie: with them, its limits of 400 and 800 MB are
// 320 and 640, and disk:mirror has its place between.
TEST(Choice, TakesAsLongAsFormula7Says) {
  for (std::uint64_t c = 10; c <= 900; c += 10) {
    const double m = static_cast<double>(c * kMB), beta = 20e-9, gamma = 5e-9, zeta = 13e-9;
    const double formula = c <= 200   ? beta * m
                           : c <= 320 ? (beta + gamma) * m
                           : c <= 400 ? (beta + zeta) * m
                           : c <= 640 ? (beta + gamma + zeta) * m
                                      : 5 * beta * m;
    const StoreQuestion question = question_of(c * kMB, 400 * kMB, 800 * kMB, 5000 * kMB);
    const std::vector<StoreOption> options = rank_stores(question);
    const auto first = std::find_if(options.begin(), options.end(), [](const auto& o) { return o.has_room(); });
    ASSERT_NE(first, options.end());
    EXPECT_NEAR(first->seconds, formula, formula / 100) << c << " MB, " << first->store.text();
  }
}

TEST(Choice, TakesTheQuickestOfThisMachineRatherThanThePapersOrder) {
  StoreQuestion question = question_of(100 * kMB, 900 * kMB, 900 * kMB, 900 * kMB);
  question.rates.central = 1e-9;  // a parallel file system beside a slow network
  EXPECT_EQ(chosen(question), "central");
  question.rates.network = 0.1e-9;
  question.rates.coding = 0;
  EXPECT_EQ(chosen(question), "mem:mirror") << "as quick as mem:xor, and first in figure 6";
}

TEST(Choice, SurvivesWhatIsAskedFor) {
  StoreQuestion question = question_of(100 * kMB, 900 * kMB, 900 * kMB, 900 * kMB);
  question.survive = 0;
  EXPECT_EQ(chosen(question), "mem:single");
  for (int losses = 2; losses <= 4; ++losses) {
    question.survive = losses;
    EXPECT_EQ(chosen(question), "mem:rs:" + std::to_string(losses)) << "M * 25 beside central's 5 * 20 ns a byte";
    for (const StoreOption& candidate : rank_stores(question))
      EXPECT_GE(survival_of(candidate.store).hosts, losses) << candidate.store.text();
  }
  question.survive = 5;  // of five hosts
  EXPECT_EQ(chosen(question), "central");
  EXPECT_NE(option(question, "mem:rs:5").shortage, "");
  question.survive = 9;  // more than any group
  EXPECT_EQ(rank_stores(question).size(), 1u);
}

TEST(Choice, LeavesRoomForTheNextSetIfItCan) {
  StoreQuestion question = question_of(100 * kMB, 250 * kMB, 900 * kMB, 900 * kMB);
  StoreSpec store;
  ASSERT_TRUE(choose_store_of(rank_stores(question), &store).ok());
  EXPECT_EQ(store.text(), "mem:xor") << "two mirrors need 400 MB, two parities 250";
  question.newest = Tier::kMem;  // what is free is besides that set
  ASSERT_TRUE(choose_store_of(rank_stores(question), &store).ok());
  EXPECT_EQ(store.text(), "mem:mirror");
  question = question_of(100 * kMB, 130 * kMB, 130 * kMB, 0);
  ASSERT_TRUE(choose_store_of(rank_stores(question), &store).ok()) << "room for one is better than none";
  EXPECT_EQ(store.text(), "mem:xor");
}

// A host's room counts for what comes to it, not for what it sends.
TEST(Choice, CountsCopiesAndParitiesWhereTheyLie) {
  StoreQuestion question = question_of(100 * kMB, 200 * kMB, 0, 900 * kMB, 3);
  EXPECT_EQ(chosen(question), "mem:mirror");
  question.hosts[0].image_bytes = 50 * kMB;
  question.hosts[0].mem_bytes = 150 * kMB;
  EXPECT_EQ(chosen(question), "mem:mirror");
  question.hosts[0].mem_bytes = 149 * kMB;
  EXPECT_EQ(option(question, "mem:mirror").shortage, "needs 143 MiB on host h0, 142 MiB are free");
  EXPECT_EQ(chosen(question), "mem:xor") << "a parity of 50 MB, by the largest image";
  question.hosts[0].mem_bytes = 99 * kMB;
  EXPECT_EQ(chosen(question), "central");
}

// A store that had less room than it told of.
TEST(Choice, FallsToTheNextStoreUntilNoneIsLeft) {
  StoreQuestion question = question_of(100 * kMB, 900 * kMB, 900 * kMB, 9000 * kMB);
  for (const char* wanted : {"mem:mirror", "mem:xor", "disk:mirror", "disk:xor", "central"}) {
    StoreSpec store;
    ASSERT_TRUE(choose_store_of(rank_stores(question), &store).ok()) << wanted;
    EXPECT_EQ(store.text(), wanted);
    question.full.push_back(store);
    EXPECT_TRUE(option(question, wanted).ran_out);
  }
  StoreSpec store;
  const Status refusal = choose_store_of(rank_stores(question), &store);
  EXPECT_EQ(refusal.error(), ENOSPC);
  EXPECT_NE(std::string(refusal.text()).find("mem:xor ran out of space"), std::string::npos) << refusal.text();
}

TEST(Choice, TellsOfRoomBeforeItTellsOfWhatCannotBe) {
  StoreQuestion question = question_of(100 * kMB, 90 * kMB, 90 * kMB, 90 * kMB, 1);
  question.survive = 0;
  StoreSpec store;
  const std::string told = choose_store_of(rank_stores(question), &store).text();
  for (const char* wanted : {"mem:single needs", "disk:single needs", "central needs"})
    EXPECT_NE(told.find(wanted), std::string::npos) << told;
}

TEST(Choice, HostsThatFailTogetherAreOneLoss) {
  StoreQuestion question = question_of(100 * kMB, 900 * kMB, 900 * kMB, 900 * kMB);
  for (HostRoom& room : question.hosts) room.domain = "rack";
  EXPECT_EQ(chosen(question), "central");
  StoreQuestion one = question_of(100 * kMB, 900 * kMB, 900 * kMB, 900 * kMB, 1);
  EXPECT_EQ(chosen(one), "central");
}

TEST(Choice, IsMadeWithin50MillisecondsFor64Hosts) {
  const StoreQuestion question = question_of(100 * kMB, 110 * kMB, 124 * kMB, 6400 * kMB, 64);
  double least_ms = 1e9;  // other work on the machine only adds to it
  for (int i = 0; i < 50 && least_ms > 50; ++i) {
    timespec before{}, after{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    StoreSpec store;
    ASSERT_TRUE(choose_store_of(rank_stores(question), &store).ok());
    EXPECT_EQ(store.text(), "disk:xor");
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    least_ms = std::min(least_ms, static_cast<double>(after.tv_sec - before.tv_sec) * 1e3 +
                                      static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e6);
  }
  EXPECT_LE(least_ms, 50);
}

}  // namespace
}  // namespace shadowib
