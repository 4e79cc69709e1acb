#include "shadowib/base/processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace shadowib {
namespace {

TEST(Processes, ANameMayHoldAnything) {
  const ProcessStat stat =
      parse_process_stat("77 (a) R 1 (b c) S 42 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 987654321012 22 23\n");
  EXPECT_EQ(stat.state, 'S');
  EXPECT_EQ(stat.parent, 42);
  EXPECT_EQ(stat.start_time, 987654321012u);
  for (const char* text : {"", "77 (a", "77 (a) S", "77 (a) S 1 2 3"})
    EXPECT_FALSE(parse_process_stat(text).exists());
}

TEST(Processes, AZombieHasEnded) {
  EXPECT_EQ(process_stat(::getpid()).parent, ::getppid());
  const pid_t child = ::fork();
  if (child == 0)
    for (;;) ::pause();
  const ProcessStat alive = process_stat(child);
  EXPECT_TRUE(alive.exists());
  EXPECT_EQ(alive.parent, ::getpid());
  EXPECT_EQ(process_start_time(child), alive.start_time);
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(process_stat(child).state, 'Z');
  EXPECT_EQ(process_start_time(child), 0u);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(process_stat(child).state, 0);
}

}  // namespace
}  // namespace shadowib
