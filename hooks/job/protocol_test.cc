// Names by which locks of members, guests and commands are told apart.
#include "hooks/job/protocol.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

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

// Who takes a holder for dead removes what is its.
TEST(Protocol, AHolderOfWhomNothingCanBeKnownIsAlive) {
  char name[] = "/tmp/shadowib-protocol-XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  const std::string path = std::string(name) + "/lock";
  EXPECT_FALSE(is_alive(path)) << "there is no such file";
  release_alive_lock(hold_alive_lock(path));
  EXPECT_FALSE(is_alive(path)) << "nobody holds it";
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  const bool alive = is_alive(path);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(alive) << "no descriptor is left to look with";
  std::filesystem::remove_all(name);
}

// gc removes a job's files with their locks held: who has opened one before must not take it for the job's.
TEST(Protocol, ALockIsOfTheFileThatIsThere) {
  char name[] = "/tmp/shadowib-protocol-XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  const std::string path = std::string(name) + "/alive/joining";
  std::atomic<bool> over{false};
  std::thread remover([&] {
    while (!over) {
      const int lock = hold_alive_lock(path);
      if (lock < 0) continue;
      ::unlink(path.c_str());
      release_alive_lock(lock);
    }
  });
  int strange = 0;
  for (int held = 0; held < 300;) {
    const int lock = hold_alive_lock(path);
    if (lock < 0) continue;
    struct stat ours {
    }, there{};
    ++held;
    strange += ::fstat(lock, &ours) != 0 || ::stat(path.c_str(), &there) != 0 || ours.st_ino != there.st_ino;
    release_alive_lock(lock);
  }
  over = true;
  remover.join();
  EXPECT_EQ(strange, 0);
  std::filesystem::remove_all(name);
}

}  // namespace
}  // namespace shadowib
