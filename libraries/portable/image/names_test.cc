#include "libraries/portable/image/names.h"

#include <gtest/gtest.h>

namespace shadowib::portable {
namespace {

TEST(Names, OneNameForWidthsOfWholeNumbers) {
  EXPECT_EQ(canonical_name("_Z4takem"), canonical_name("_Z4takej"));
  EXPECT_EQ(canonical_name("_Z4takel"), canonical_name("_Z4takei"));
  EXPECT_EQ(canonical_name("_ZNSt6vectorImSaImEE9push_backERKm"),
            canonical_name("_ZNSt6vectorIjSaIjEE9push_backERKj"));
  EXPECT_EQ(canonical_name("_Z1fILm12EEvv"), canonical_name("_Z1fILj12EEvv"));
  EXPECT_NE(canonical_name("_Z4takem"), canonical_name("_Z4takel"));
}

TEST(Names, NamesOfTheSourceStay) {
  EXPECT_NE(canonical_name("_ZN3lily4takeEv"), canonical_name("_ZN3iiiy4takeEv"));
  EXPECT_NE(canonical_name("_Z5lemonv"), canonical_name("_Z5iejonv"));
  EXPECT_EQ(canonical_name("solve_lm"), "solve_lm");
  EXPECT_EQ(canonical_name("_Z99"), "_Z99");
}

TEST(Names, AreReadable) {
  EXPECT_EQ(readable_name("_ZN5Stack4pushEi"), "Stack::push(int)");
  EXPECT_EQ(readable_name("main"), "main");
  EXPECT_EQ(readable_name("_Zno name"), "_Zno name");
}

}  // namespace
}  // namespace shadowib::portable
