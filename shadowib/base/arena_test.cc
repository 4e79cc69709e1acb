#include "shadowib/base/arena.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "shadowib/base/descriptors.h"

namespace shadowib {
namespace {

// By memcmp: a loop over gigabytes takes minutes where every access is checked.
bool holds_only(const unsigned char* p, std::size_t bytes, unsigned char value) {
  return bytes == 0 || (p[0] == value && std::memcmp(p, p + 1, bytes - 1) == 0);
}

TEST(Arena, RandomOperationsAgainstAModel) {
  std::mt19937 random(20261120);
  std::map<unsigned char*, std::pair<std::size_t, unsigned char>> live;
  for (int step = 0; step < 20000; ++step) {
    if (live.size() < 200 && random() % 2 == 0) {
      std::size_t bytes = random() % 10 == 0 ? random() % (1 << 20) : random() % 3000;
      auto* p = static_cast<unsigned char*>(arena_allocate(bytes, random() % 2 ? 64 : 16));
      ASSERT_NE(p, nullptr);
      ASSERT_TRUE(holds_only(p, bytes, 0)) << "memory must come zeroed";
      auto fill = static_cast<unsigned char>(random());
      std::memset(p, fill, bytes);
      ASSERT_TRUE(live.emplace(p, std::make_pair(bytes, fill)).second);
    } else if (!live.empty()) {
      auto it = std::next(live.begin(), static_cast<long>(random() % live.size()));
      ASSERT_TRUE(holds_only(it->first, it->second.first, it->second.second));
      arena_free(it->first);
      live.erase(it);
    }
  }
  for (auto& [p, unused] : live) arena_free(p);
}

TEST(Arena, AlignmentAndReuse) {
  void* a = arena_allocate(100, 64);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % 64, 0u);
  std::size_t mapped = arena_mapped_bytes();
  for (int i = 0; i < 100000; ++i) arena_free(arena_allocate(100));
  EXPECT_EQ(arena_mapped_bytes(), mapped) << "freed blocks must be used again";
  arena_free(a);
}

// A cache finds a line by some bits of its address. Blocks at multiples of a power of two would have the same lines
// of each object in the same few sets.
TEST(Arena, EqualBlocksAreSpreadOverACachesSets) {
  for (const std::size_t bytes : {200, 1000, 2048, 4000, 16384, 65536}) {
    std::vector<void*> blocks;
    std::set<std::uintptr_t> sets;
    for (int i = 0; i < 64; ++i) {
      blocks.push_back(arena_allocate(bytes));
      sets.insert(reinterpret_cast<std::uintptr_t>(blocks.back()) / 64 % 64);
    }
    EXPECT_GE(sets.size(), 16u) << bytes;
    for (void* block : blocks) arena_free(block);
  }
}

TEST(Arena, KeepsBlocksForTheirSize) {
  const std::size_t mapped = arena_mapped_bytes();
  void* const large = arena_allocate(1 << 20);
  void* const larger = arena_allocate(2 << 20);
  const std::size_t whole = arena_mapped_bytes() - mapped;
  ASSERT_GE(whole, std::size_t{3} << 20);
  EXPECT_EQ(arena_take_kept(1 << 20), nullptr);
  std::memset(large, 7, 1 << 20);
  arena_keep(large);
  arena_keep(larger);
  EXPECT_EQ(arena_kept_bytes(), whole);
  EXPECT_EQ(arena_mapped_bytes(), mapped + whole);
  EXPECT_EQ(arena_take_kept(3 << 20), nullptr);
  EXPECT_EQ(arena_take_kept(1 << 20), large);
  EXPECT_EQ(static_cast<char*>(large)[5], 7) << "it is not cleared";
  EXPECT_EQ(arena_take_kept(1 << 20), nullptr);
  arena_keep(large);
  arena_release_kept(whole);
  EXPECT_EQ(arena_kept_bytes(), whole);
  arena_release_kept(whole - 1);
  EXPECT_LT(arena_kept_bytes(), whole);
  EXPECT_GT(arena_kept_bytes(), 0u);
  arena_release_kept(0);
  EXPECT_EQ(arena_kept_bytes(), 0u);
  EXPECT_EQ(arena_mapped_bytes(), mapped);
  void* const small = arena_allocate(100);
  arena_keep(small);
  EXPECT_EQ(arena_kept_bytes(), 0u) << "the arena keeps such blocks anyway";
}

TEST(Arena, SecretsAreInNoImageAndWiped) {
  for (const std::size_t bytes : {100, 20000, 1 << 20}) {
    auto* p = static_cast<unsigned char*>(arena_allocate_secret(bytes));
    ASSERT_TRUE(holds_only(p, bytes, 0));
    std::memset(p, 7, bytes);
    std::uintptr_t start = 0;
    std::size_t length = 0;
    ASSERT_TRUE(find_owned_mapping(reinterpret_cast<std::uintptr_t>(p), bytes, &start, &length));
    EXPECT_GE(start + length, reinterpret_cast<std::uintptr_t>(p) + bytes);
    if (const pid_t child = ::fork(); child == 0) {
      ::_exit(holds_only(p, bytes, 0) ? 0 : 1);
    } else {
      int status = -1;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0) << "a child has it";
    }
    arena_free_secret(p);
    if (bytes < 100000) {
      EXPECT_TRUE(holds_only(p, bytes, 0)) << "it is still there";
    }
  }
  (void)arena_allocate_secret(100);
  const unsigned forgotten = arena_secrets_forgotten();
  forget_owned_mappings(true);
  arena_forget_secrets();
  EXPECT_NE(arena_secrets_forgotten(), forgotten);
  void* after = arena_allocate_secret(100);
  ASSERT_NE(after, nullptr);
  std::memset(after, 1, 100);  // not where the one before was, which is not mapped any more
}

TEST(ArenaDeathTest, DoubleFreeIsCaught) {
  EXPECT_DEATH(
      {
        void* p = arena_allocate(8);
        arena_free(p);
        arena_free(p);
      },
      "not live in the arena");
}

}  // namespace
}  // namespace shadowib
