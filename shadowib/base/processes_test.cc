#include "shadowib/base/processes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

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

TEST(Processes, AllIsClosedButWhatIsKept) {
  for (const bool with_close_range : {true, false}) {
    const pid_t child = ::fork();
    if (child == 0) {
      const int kept = ::dup2(2, 40), other = ::dup2(2, 41), low = ::dup2(2, 30);
      if (!with_close_range) {
        sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        const sock_fprog program{4, filter};
        if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
          ::_exit(2);
      }
      close_all_but({kept, 2});
      const auto is_open = [](int fd) { return ::fcntl(fd, F_GETFD) != -1; };
      ::_exit(is_open(kept) && is_open(2) && !is_open(other) && !is_open(low) && !is_open(0) && !is_open(1) ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << status;
    EXPECT_EQ(WEXITSTATUS(status), 0) << "with close_range: " << with_close_range;
  }
}

}  // namespace
}  // namespace shadowib
