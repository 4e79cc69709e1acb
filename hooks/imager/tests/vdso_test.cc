// Another kernel's vdso in the place of the recorded one.
#include "hooks/imager/restore/vdso.h"

#include <gtest/gtest.h>
#include <time.h>

#include <cstring>

namespace shadowib {
namespace {

class Vdso : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(read_current_mappings(&current_).ok());
    for (const CurrentMapping& m : current_) {
      if (m.name != "[vdso]" && m.name.rfind("[vv", 0) != 0) continue;
      VdsoRecord::Piece& piece = image_.vdso.pieces[image_.vdso.piece_count++];
      piece.start = m.range.start;
      piece.length = m.range.end - m.range.start;
      std::strncpy(piece.name, m.name.substr(1, m.name.size() - 2).c_str(), sizeof(piece.name) - 1);
      if (m.name != "[vdso]") continue;
      here_ = m.range;
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(m.range.start);
      image_.vdso_content.assign(bytes, bytes + piece.length);
    }
    ASSERT_NE(here_.end, 0u);
  }
  Status plan() { return plan_vdso(image_, current_, &plan_); }
  // Where this kernel's goes.
  std::uint64_t moved() const {
    for (std::uint32_t i = 0; i < plan_.piece_count; ++i)
      if (plan_.pieces[i].from == here_.start) return plan_.pieces[i].to;
    return 0;
  }

  LoadedImage image_{};
  std::vector<CurrentMapping> current_;
  AddressRange here_{};
  VdsoPlan plan_;
};

TEST_F(Vdso, TheSameGoesToItsPlace) {
  ASSERT_TRUE(plan().ok());
  EXPECT_EQ(moved(), here_.start);
  EXPECT_TRUE(plan_.copy.empty());
}

// Every place of the copy that differs is a jump into this kernel's, and one of them is where the clock is read.
TEST_F(Vdso, AnothersFunctionsLeadHere) {
  image_.vdso_content.back() ^= 1;  // padding
  ASSERT_TRUE(plan().ok());
  EXPECT_NE(moved(), here_.start);
  EXPECT_EQ(plan_.copy_at, here_.start);
  ASSERT_EQ(plan_.copy.size(), image_.vdso_content.size());
  int jumps = 0;
  for (std::size_t at = 0; at + 13 <= plan_.copy.size(); ++at) {
    if (plan_.copy[at] == image_.vdso_content[at]) continue;
    ASSERT_EQ(plan_.copy[at], 0x49) << at;
    std::uint64_t target;
    std::memcpy(&target, &plan_.copy[at + 2], sizeof(target));
    EXPECT_EQ(target, moved() + at) << "the same kernel has the function at the same offset";
    at += 12;
    ++jumps;
  }
  EXPECT_GE(jumps, 3);
}

TEST_F(Vdso, PlacesOfEveryPartKeepTheirDistances) {
  image_.vdso_content.back() ^= 1;
  ASSERT_TRUE(plan().ok());
  for (std::uint32_t i = 0; i < plan_.piece_count; ++i) {
    EXPECT_EQ(plan_.pieces[i].to - plan_.pieces[0].to, plan_.pieces[i].from - plan_.pieces[0].from);
    EXPECT_GE(plan_.pieces[i].to, plan_.taken.start);
    EXPECT_LE(plan_.pieces[i].to + plan_.pieces[i].length, plan_.taken.end);
  }
}

// As under vdso=0: there is nothing to lead elsewhere, and this kernel's may not lie where memory of the image does.
TEST_F(Vdso, OfAnImageWithoutOneItGoesWhereNothingIs) {
  image_.vdso = {};
  image_.vdso_content.clear();
  ASSERT_TRUE(plan().ok());
  EXPECT_TRUE(plan_.copy.empty());
  EXPECT_GE(moved(), plan_.taken.start);
  EXPECT_LT(moved(), plan_.taken.end);
  for (std::uint32_t i = 0; i < plan_.piece_count; ++i) EXPECT_NE(plan_.pieces[i].to, 0u);
}

TEST_F(Vdso, OneThatTellsNothingIsRefused) {
  for (std::size_t cut : {0, 10, 64, 200}) {
    image_.vdso_content.resize(here_.end - here_.start);
    std::fill(image_.vdso_content.begin() + static_cast<std::ptrdiff_t>(cut), image_.vdso_content.end(), 0xff);
    EXPECT_EQ(plan().code(), Code::kVersion) << cut;
  }
}

}  // namespace
}  // namespace shadowib
