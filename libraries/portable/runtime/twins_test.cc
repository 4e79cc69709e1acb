#include "libraries/portable/runtime/twins.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

namespace {

std::size_t allocations = 0;

}  // namespace

// Counted, as what pairing costs is what it keeps in maps.
void* operator new(std::size_t size) {
  allocations++;
  void* block = std::malloc(size);
  if (!block) throw std::bad_alloc();
  return block;
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }

namespace shadowib::portable {
namespace {

Twins<std::string> twins(const std::vector<std::string>& names) {
  Twins<std::string> made;
  for (const std::string& name : names) made.add(canonical_name(name), name);
  return made;
}

TEST(Twins, OneNamePairsWhateverTheWidth) {
  EXPECT_EQ(twins({"_Z1fm"}).match(twins({"_Z1gj", "_Z1fj"}))[0], 1U);
  EXPECT_EQ(twins({"_Z1fm", "_Z1fm"}).match(twins({"_Z1fj", "_Z1fj"}))[1], 1U);
}

TEST(Twins, SeveralGoByTheirFullNames) {
  EXPECT_EQ(twins({"_Z1fl", "_Z1fi"}).match(twins({"_Z1fi", "_Z1fl"}))[0], 1U);
  // Operators of * and - have names of such letters.
  EXPECT_EQ(twins({"_ZN1VmlEv", "_ZN1VmiEv"}).match(twins({"_ZN1VmiEv", "_ZN1VmlEv"}))[0], 1U);
}

// allocate(size_t) of std::vector<int> and of std::vector<long>.
TEST(Twins, ASizeDoesNotTellFunctionsApart) {
  const auto wide = twins({"_ZNSt1AIlE8allocateEm", "_ZNSt1AIiE8allocateEm"}),
             narrow = twins({"_ZNSt1AIiE8allocateEj", "_ZNSt1AIlE8allocateEj"});
  EXPECT_EQ(wide.match(narrow)[0], 1U);
  EXPECT_EQ(narrow.match(wide)[1], 0U);
  EXPECT_EQ(wide.match(twins({"_ZNSt1AIiE8allocateEj", "_ZNSt1AIxE8allocateEj"}))[0], kNone);
}

// f<size_t>, f<unsigned> and f<uint64_t> are two functions on 64 bits, and two others on 32.
TEST(Twins, OthersAreNotGuessed) {
  EXPECT_EQ(twins({"_Z1fm", "_Z1fj"}).match(twins({"_Z1fj", "_Z1fy"}))[0], kNone);
  EXPECT_EQ(twins({"_Z1fm", "_Z1fj"}).match(twins({"_Z1fj", "_Z1fy"}))[1], kNone);
  EXPECT_EQ(twins({"_Z1fm", "_Z1fj"}).match(twins({"_Z1fj"}))[1], kNone);
}

// A function of std::vector for each of `count` classes: they have one key here, and take a size_t.
std::size_t allocations_of_a_match(int count) {
  std::vector<std::string> wide, narrow;
  for (int i = 1000; i < 1000 + count; i++) {
    wide.push_back("_ZNSt1AI5s" + std::to_string(i) + "E8allocateEm");
    narrow.push_back("_ZNSt1AI5s" + std::to_string(i) + "E8allocateEj");
  }
  Twins<std::string> ours, theirs;
  for (const std::string& name : wide) ours.add("one key", name);
  for (const std::string& name : narrow) theirs.add("one key", name);
  const std::size_t before = allocations;
  const std::vector<std::size_t> found = ours.match(theirs);
  const std::size_t made = allocations - before;
  for (int i = 0; i < count; i++) EXPECT_EQ(found[i], static_cast<std::size_t>(i));
  return made;
}

TEST(Twins, CostGrowsWithTheInstancesOfATemplateAsTheirNumber) {
  EXPECT_LT(allocations_of_a_match(400), 5 * allocations_of_a_match(100));
}

}  // namespace
}  // namespace shadowib::portable
