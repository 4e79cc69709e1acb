// Changed memory against a model that has a state for each byte, and the index of regions against a look at each.
#include "ib2tcp/pinned.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>
#include <vector>

#include "ib2tcp/memory.h"
#include "ib2tcp/region_index.h"

namespace shadowib::ib2tcp {
namespace {

constexpr std::uintptr_t kBase = 1 << 20;

TEST(ChangedMemory, FollowsEveryByte) {
  constexpr std::size_t kBytes = 64;
  enum State { kPlain, kCareful, kGoing, kGone };
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    ChangedMemory memory;
    std::vector<State> model(kBytes, kPlain);
    for (int step = 0; step < 200; ++step) {
      const std::size_t begin = random() % kBytes, end = begin + 1 + random() % (kBytes - begin);
      const auto change = static_cast<MemoryChange>(random() % 6);
      memory.change(kBase + begin, kBase + end, change);
      for (std::size_t i = begin; i < end; ++i) {
        State& state = model[i];
        if (change == MemoryChange::kUsable && state == kCareful) state = kPlain;
        if ((change == MemoryChange::kReadOnly || change == MemoryChange::kProtected) && state == kPlain)
          state = kCareful;
        if (change == MemoryChange::kGone && state != kGone) state = kGoing;
        if (change == MemoryChange::kKept && state == kGoing) state = kCareful;
        if (change == MemoryChange::kWent && state == kGoing) state = kGone;
      }
      const std::size_t from = random() % kBytes, to = from + 1 + random() % (kBytes - from);
      bool touches = false, has_gone = false, any = false;
      for (std::size_t i = 0; i < kBytes; ++i) {
        any |= model[i] != kPlain;
        if (i < from || i >= to) continue;
        touches |= model[i] != kPlain;
        has_gone |= model[i] >= kGoing;
      }
      ASSERT_EQ(memory.touches(kBase + from, kBase + to), touches) << step;
      ASSERT_EQ(memory.has_gone(kBase + from, kBase + to), has_gone) << step;
      ASSERT_EQ(memory.empty(), !any) << step;
    }
  }
}

// A call that fails restores what it has taken, not what was unmapped long before: other memory may lie there.
TEST(ChangedMemory, AFailedCallBringsNothingBack) {
  ChangedMemory memory;
  memory.change(kBase + 100, kBase + 200, MemoryChange::kGone);
  memory.change(kBase + 100, kBase + 200, MemoryChange::kWent);
  memory.change(kBase, kBase + 300, MemoryChange::kGone);
  memory.change(kBase, kBase + 300, MemoryChange::kKept);
  EXPECT_FALSE(memory.has_gone(kBase, kBase + 100));
  EXPECT_TRUE(memory.has_gone(kBase + 100, kBase + 101));
  EXPECT_TRUE(memory.has_gone(kBase + 199, kBase + 200));
  EXPECT_FALSE(memory.has_gone(kBase + 200, kBase + 300));
}

struct Regions {
  RegionIndex index;
  std::deque<Mr> all;
  std::size_t add(std::uintptr_t begin, std::size_t bytes) {
    Mr& mr = all.emplace_back();
    mr.verbs.addr = reinterpret_cast<void*>(begin);
    mr.verbs.length = bytes;
    index.add(mr.place, &mr, mr.verbs.addr, bytes);
    return all.size() - 1;
  }
  ~Regions() {
    for (Mr& mr : all) index.remove(mr.place);
  }
};

TEST(RegionIndex, FindsThoseThatTouch) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Regions regions;
    std::set<const Mr*> live;
    for (int step = 0; step < 300; ++step) {
      const std::size_t bytes = random() % 5 == 0 ? random() % 3 : random() % (std::size_t{1} << (random() % 16));
      Mr& mr = regions.all[regions.add(kBase + random() % 40000, bytes)];
      live.insert(&mr);
      if (random() % 3 == 0) {
        Mr& gone = regions.all[random() % regions.all.size()];
        regions.index.remove(gone.place);
        live.erase(&gone);
      }
      const std::uintptr_t begin = kBase - 100 + random() % 50000, end = begin + 1 + random() % 3000;
      std::multiset<const Mr*> expected, found;
      for (const Mr* mr : live) {
        const auto at = reinterpret_cast<std::uintptr_t>(mr->verbs.addr);
        if (mr->verbs.length != 0 && at < end && at + mr->verbs.length > begin) expected.insert(mr);
      }
      regions.index.for_each_touching(begin, end, [&](Mr& mr) { found.insert(&mr); });
      ASSERT_EQ(found, expected) << step;
    }
  }
}

TEST(RegionIndex, FindsThoseAtTheEndsOfTheAddresses) {
  Regions regions;
  regions.add(0, SIZE_MAX);
  regions.add(SIZE_MAX - 100, 100);
  regions.add(1, 1);
  int found = 0;
  regions.index.for_each_touching(SIZE_MAX - 2, SIZE_MAX - 1, [&](Mr&) { ++found; });
  EXPECT_EQ(found, 2);
  found = 0;
  regions.index.for_each_touching(0, 2, [&](Mr&) { ++found; });
  EXPECT_EQ(found, 2);
}

// A program with many regions that unmaps them one by one has each looked at a few times, not once for each other.
TEST(RegionIndex, LooksAtFewOfMany) {
  Regions regions;
  std::mt19937 random(3);
  std::vector<std::pair<std::uintptr_t, std::size_t>> places;
  std::uintptr_t at = kBase;
  for (int i = 0; i < 20'000; ++i) {
    const std::size_t bytes = 1 + random() % (std::size_t{1} << (random() % 20));
    places.push_back({at, bytes});
    regions.add(at, bytes);
    at += bytes;
  }
  std::size_t most = 0;
  for (const auto& [begin, bytes] : places)
    most = std::max(most, regions.index.for_each_touching(begin, begin + bytes, [](Mr&) {}));
  EXPECT_LE(most, 3u * 20);
}

}  // namespace
}  // namespace shadowib::ib2tcp
