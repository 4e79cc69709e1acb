#include "shadowib/base/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdarg>

// In libc's place. If told to, as where more descriptors are allowed than we can note, and those at the top are used.
static bool g_top_is_used = false;
extern "C" int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (g_top_is_used && command == F_DUPFD_CLOEXEC && static_cast<unsigned>(argument) > limit.rlim_cur / 2)
    return shadowib::kMaxOwnedDescriptors;
  return static_cast<int>(::syscall(SYS_fcntl, fd, command, argument));
}

#include "shadowib/base/spare_descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

TEST(Descriptors, MovesHighAndCloseOnExec) {
  int low = ::open("/dev/null", O_RDONLY);
  ASSERT_GE(low, 0);
  int fd = UnownedDescriptors().own(low);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_GE(fd, static_cast<int>(limit.rlim_cur) - 256);
  EXPECT_EQ(::fcntl(low, F_GETFD), -1) << "the low number must be free again";
  EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
  EXPECT_TRUE(is_owned_descriptor(fd));
  EXPECT_LE(lowest_owned_descriptor(), fd);
  close_owned_descriptor(fd);
  EXPECT_FALSE(is_owned_descriptor(fd));
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

TEST(Descriptors, TakesNoneThatCannotBeNoted) {
  const int low = ::open("/dev/null", O_RDONLY);
  g_top_is_used = true;
  const int fd = UnownedDescriptors().own(low);
  g_top_is_used = false;
  ASSERT_GE(fd, 3);
  ASSERT_LT(fd, kMaxOwnedDescriptors);
  EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
  close_owned_descriptor(fd);
}

TEST(Descriptors, ForgettingWithoutClosingLeavesTheNumbersAlone) {
  int fd = UnownedDescriptors().own(::open("/dev/null", O_RDONLY));
  forget_owned_descriptors(false);
  EXPECT_FALSE(is_owned_descriptor(fd));
  EXPECT_NE(::fcntl(fd, F_GETFD), -1);
  ::close(fd);
}

TEST(Descriptors, FindsTheFirstOverlappingMapping) {
  char* p = static_cast<char*>(::mmap(nullptr, 16384, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_TRUE(own_mapping(p + 8192, 4096));
  ASSERT_TRUE(own_mapping(p + 4096, 4096));
  std::uintptr_t start = 0;
  std::size_t length = 0;
  ASSERT_TRUE(find_owned_mapping(reinterpret_cast<std::uintptr_t>(p), 16384, &start, &length));
  EXPECT_EQ(start, reinterpret_cast<std::uintptr_t>(p + 4096));
  EXPECT_FALSE(find_owned_mapping(reinterpret_cast<std::uintptr_t>(p), 4096, &start, &length));
  disown_mapping(p + 4096);
  ASSERT_TRUE(find_owned_mapping(reinterpret_cast<std::uintptr_t>(p), 16384, &start, &length));
  EXPECT_EQ(start, reinterpret_cast<std::uintptr_t>(p + 8192));
  forget_owned_mappings(true);
  EXPECT_FALSE(find_owned_mapping(reinterpret_cast<std::uintptr_t>(p), 16384, &start, &length));
}

TEST(Descriptors, ASpareIsThereWhenNoneIsLeft) {
  const pid_t child = ::fork();  // with a limit of its own
  if (child == 0) {
    const rlimit small{64, 64};
    if (::setrlimit(RLIMIT_NOFILE, &small) != 0) ::_exit(1);
    reserve_spare_descriptors();
    while (::open("/dev/null", O_RDONLY) >= 0) {
    }
    for (int turn = 0; turn < 5; ++turn) {
      UnownedDescriptors unowned;
      if (!give_up_spare_descriptor()) ::_exit(2);
      const int fd = unowned.own_in_place(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
      if (fd < 0 || !is_owned_descriptor(fd)) ::_exit(3);
      close_owned_descriptor(fd);  // and its number is a spare one again
      if (::open("/dev/null", O_RDONLY) >= 0 || errno != EMFILE) ::_exit(4);
    }
    // The program has taken the numbers by system calls of its own: they are its own now.
    ::syscall(SYS_close_range, 3, ~0u, 0);
    while (::open("/dev/null", O_RDONLY) >= 0) {
    }
    ::_exit(give_up_spare_descriptor() ? 5 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
}

TEST(Descriptors, TellsOfThoseThatWereClosedPastTheGuard) {
  int first = -1;
  forget_closed_descriptors(&first);
  const int one = UnownedDescriptors().own(::open("/dev/null", O_RDONLY)),
            other = UnownedDescriptors().own(::open("/dev/null", O_RDONLY));
  EXPECT_EQ(forget_closed_descriptors(&first), 0);
  ::syscall(SYS_close, one);
  EXPECT_EQ(forget_closed_descriptors(&first), 1);
  EXPECT_EQ(first, one);
  EXPECT_FALSE(is_owned_descriptor(one));
  EXPECT_TRUE(is_owned_descriptor(other));
  close_owned_descriptor(other);
}

TEST(Descriptors, ANumberThatAnotherOfOursHasGotIsNotTheFirstOnesAnyMore) {
  const UnownedDescriptors unowned;
  const int first = unowned.own(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_GE(first, 0);
  EXPECT_TRUE(is_still_the_owned_descriptor(first));
  ::syscall(SYS_close, first);
  EXPECT_FALSE(is_still_the_owned_descriptor(first));
  ASSERT_EQ(::syscall(SYS_dup3, 0, first, O_CLOEXEC), first);
  ASSERT_EQ(unowned.own_in_place(first), first);
  EXPECT_FALSE(is_still_the_owned_descriptor(first)) << "it is another descriptor";
  close_owned_descriptor(first);
  ASSERT_EQ(::syscall(SYS_dup3, 0, first, O_CLOEXEC), first);
  ASSERT_EQ(unowned.own_in_place(first), first);
  EXPECT_TRUE(is_still_the_owned_descriptor(first)) << "the number was given back in between";
  close_owned_descriptor(first);
}

}  // namespace
}  // namespace shadowib
