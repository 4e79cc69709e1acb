// Descriptors that a test's forked child has from its parent.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {

// The result of `look` in a child forked now: 0 to 255.
template <typename Look>
int child_sees(Look look) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(look());
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

inline bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

// How many descriptors are open of which nobody knows that they are ours, as for the program's.
inline int unknown_descriptors() {
  int found = 0;
  const int top = static_cast<int>(::sysconf(_SC_OPEN_MAX));
  for (int fd = 0; fd < 1 << 10; ++fd) found += is_open(fd) && !is_owned_descriptor(fd);
  for (int fd = top - kOwnedDescriptorWindow; fd < top; ++fd) found += is_open(fd) && !is_owned_descriptor(fd);
  return found;
}

// While it exists, forks and those with unowned descriptors wait for each other without end: how long a fork takes
// does not decide what a child has.
struct WaitsWithoutEnd {
  WaitsWithoutEnd() { wait_for_forks_without_end(true); }
  ~WaitsWithoutEnd() { wait_for_forks_without_end(false); }
};

// The number of children, out of 300, with a descriptor more or less.
inline int children_with_unknown_descriptors(int usual) {
  const WaitsWithoutEnd waits;
  int strange = 0;
  for (int i = 0; i < 300; ++i) strange += child_sees([&] { return unknown_descriptors() == usual ? 0 : 1; });
  return strange;
}

}  // namespace shadowib
