// A pseudo-terminal of the program's own that controls it, by its name, by descriptors, and by what is typed.
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <string>

#include "hooks/imager/tests/subject.h"

using namespace shadowib::test;

namespace {

bool is_same(int fd, const std::string& path) {
  struct stat st {
  }, named{};
  return ::fstat(fd, &st) == 0 && ::stat(path.c_str(), &named) == 0 && st.st_dev == named.st_dev &&
         st.st_ino == named.st_ino && st.st_rdev == named.st_rdev;
}

bool passes(int from, int to, const char* text) {
  const std::string sent = text;
  std::string got(sent.size(), '\0');
  return ::write(from, sent.data(), sent.size()) == static_cast<ssize_t>(sent.size()) &&
         ::read(to, got.data(), got.size()) == static_cast<ssize_t>(got.size()) && got == sent;
}

SCENARIO(terminals) {
  with_table();
  int low[2], master = -1, slave = -1;
  for (int& fd : low) fd = ::posix_openpt(O_RDWR | O_NOCTTY);  // so that the pty has not the lowest number
  CHECK_THAT(::openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
  const std::string name = ::ttyname(slave), of_master = ::ptsname(master);
  for (const int fd : low) ::close(fd);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGINT);
  ::sigaddset(&set, SIGWINCH);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  CHECK_THAT(::setsid() == ::getpid() && ::ioctl(slave, TIOCSCTTY, 0) == 0);
  const int controlling = ::open("/dev/tty", O_RDWR);
  CHECK_THAT(controlling >= 0);
  save_and_end();
  CHECK_THAT(name == of_master && name == ::ttyname(slave) && name == ::ptsname(master));
  CHECK_THAT(is_same(slave, name));
  const int opened = ::open(name.c_str(), O_RDWR | O_NOCTTY), again = ::open("/dev/tty", O_RDWR | O_NOCTTY);
  CHECK_THAT(opened >= 0 && again >= 0);
  for (const int end : {slave, controlling, opened, again}) CHECK_THAT(passes(end, master, "out"));
  CHECK_THAT(::getsid(0) == ::getpid() && ::tcgetpgrp(slave) == ::getpgrp() && ::tcgetsid(slave) == ::getpid());
  int signal = 0;
  CHECK_THAT(::write(master, "\3", 1) == 1 && ::sigwait(&set, &signal) == 0 && signal == SIGINT);
  const winsize window{50, 100, 0, 0};
  CHECK_THAT(::ioctl(master, TIOCSWINSZ, &window) == 0 && ::sigwait(&set, &signal) == 0 && signal == SIGWINCH);
  const int more = ::posix_openpt(O_RDWR | O_NOCTTY);  // and there are others to be had
  CHECK_THAT(more >= 0 && ::unlockpt(more) == 0 && ::open(::ptsname(more), O_RDWR | O_NOCTTY) >= 0);
}

}  // namespace
