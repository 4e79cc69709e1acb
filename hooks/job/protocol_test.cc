// Names by which locks of members, guests and commands are told apart.
#include "hooks/job/protocol.h"

#include <gtest/gtest.h>

namespace shadowib {
namespace {

TEST(Protocol, TellsGuestsFromMembers) {
  EXPECT_FALSE(is_guest_index(0));
  EXPECT_FALSE(is_guest_index(99999));
  EXPECT_TRUE(is_guest_index(kFirstGuest));
  EXPECT_EQ(lock_name(0), "0");
  EXPECT_EQ(lock_name(kFirstGuest - 1), "1048575");
  EXPECT_EQ(lock_name(kFirstGuest), "g0");
  EXPECT_EQ(lock_name(kFirstGuest + 12), "g12");
  EXPECT_EQ(guest_key("g0-12", 7), "g0-12/guest/7");
}

// An epoch begins with a g, too.
TEST(Protocol, TellsLocksOfGuestsByTheirFiles) {
  for (const char* file : {"g0-1a2b3c4d.g0", "g12-1a2b3c4d.g1048575"}) EXPECT_TRUE(is_guest_lock(file)) << file;
  for (const char* file : {"g0-1a2b3c4d.0", "g0-1a2b3c4d.ckpt1", "g0-1a2b3c4d.share2", "g0-1a2b3c4d.g", "restart",
                           "joining", "g0", "g0-1a2b3c4d.g1x", ""})
    EXPECT_FALSE(is_guest_lock(file)) << file;
}

}  // namespace
}  // namespace shadowib
