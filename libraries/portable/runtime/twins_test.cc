#include "libraries/portable/runtime/twins.h"

#include <gtest/gtest.h>

namespace shadowib::portable {
namespace {

Twins<std::string> twins(const std::vector<std::string>& names) {
  Twins<std::string> made;
  for (const std::string& name : names) made.add(canonical_name(name), name);
  return made;
}

TEST(Twins, OneNamePairsWhateverTheWidth) {
  EXPECT_EQ(twins({"_Z1fm"}).match(0, twins({"_Z1gj", "_Z1fj"})), 1U);
  EXPECT_EQ(twins({"_Z1fm", "_Z1fm"}).match(1, twins({"_Z1fj", "_Z1fj"})), 1U);
}

TEST(Twins, SeveralGoByTheirFullNames) {
  EXPECT_EQ(twins({"_Z1fl", "_Z1fi"}).match(0, twins({"_Z1fi", "_Z1fl"})), 1U);
  // Operators of * and - have names of such letters.
  EXPECT_EQ(twins({"_ZN1VmlEv", "_ZN1VmiEv"}).match(0, twins({"_ZN1VmiEv", "_ZN1VmlEv"})), 1U);
}

// allocate(size_t) of std::vector<int> and of std::vector<long>.
TEST(Twins, ASizeDoesNotTellFunctionsApart) {
  const auto wide = twins({"_ZNSt1AIlE8allocateEm", "_ZNSt1AIiE8allocateEm"}),
             narrow = twins({"_ZNSt1AIiE8allocateEj", "_ZNSt1AIlE8allocateEj"});
  EXPECT_EQ(wide.match(0, narrow), 1U);
  EXPECT_EQ(narrow.match(1, wide), 0U);
  EXPECT_EQ(wide.match(0, twins({"_ZNSt1AIiE8allocateEj", "_ZNSt1AIxE8allocateEj"})), kNone);
}

// f<size_t>, f<unsigned> and f<uint64_t> are two functions on 64 bits, and two others on 32.
TEST(Twins, OthersAreNotGuessed) {
  EXPECT_EQ(twins({"_Z1fm", "_Z1fj"}).match(0, twins({"_Z1fj", "_Z1fy"})), kNone);
  EXPECT_EQ(twins({"_Z1fm", "_Z1fj"}).match(1, twins({"_Z1fj", "_Z1fy"})), kNone);
  EXPECT_EQ(twins({"_Z1fm", "_Z1fj"}).match(1, twins({"_Z1fj"})), kNone);
}

}  // namespace
}  // namespace shadowib::portable
