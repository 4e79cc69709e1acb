// Pseudo-terminals of the job: modes, what waits in either direction, and who may have the other end.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <filesystem>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/tests/test_job.h"

namespace shadowib::test {
namespace {

constexpr int kMaster = 10, kSlave = 11;

std::string open_pair() {
  int master = -1, slave = -1;
  EXPECT_STEP(::openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
  EXPECT_STEP(put(slave, 31) == 31 && put(master, 30) == 30);
  EXPECT_STEP(put(30, kMaster) == kMaster && put(31, kSlave) == kSlave);
  return "";
}

bool put_all(int fd, const std::string& bytes) {
  return ::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
}

void change_modes(const std::function<void(termios*)>& change) {
  termios modes{};
  ::tcgetattr(kSlave, &modes);
  change(&modes);
  ::tcsetattr(kSlave, TCSANOW, &modes);
}
void make_raw(termios* modes) { ::cfmakeraw(modes); }

short ready(int fd, short events, int timeout_ms = 0) {
  pollfd p{fd, events, 0};
  ::poll(&p, 1, timeout_ms);
  return p.revents;
}

// What a read gives now, as a blocking one would: "-" if there is nothing, "!" for an end of file.
std::string one_read(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  char bytes[16384];
  const ssize_t n = ::read(fd, bytes, sizeof(bytes));
  ::fcntl(fd, F_SETFL, flags);
  return n < 0 ? "-" : n == 0 ? "!" : std::string(bytes, static_cast<std::size_t>(n));
}

// `after` holds in the original as if there had been no checkpoint, and in the restarted process, once each.
void expect_same(const Step& before, const Step& after) {
  Job job;
  job.members = 1;
  job.before = [&before](int member) -> std::string {
    std::string words = open_pair();
    return words.empty() ? before(member) : words;
  };
  job.resumed = job.restarted = after;
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

TEST(Ptys, LinesAsTheyWereTyped) {
  expect_same(
      [](int) -> std::string {
        change_modes([](termios* modes) { modes->c_cc[VEOL] = ';'; });
        EXPECT_STEP(::write(kSlave, "out\n", 4) == 4);
        // Two lines, one ended by end of file, an end of file by itself, one ended by a character of the program's,
        // quoted special bytes, and the beginning of one, of which a byte was erased.
        EXPECT_STEP(put_all(kMaster, "first\r\nhalf\4\4part;\26\4\26\26\26\n\26\3.\nbegix\177"));
        // The last byte's echo: the line discipline has it all.
        EXPECT_STEP((ready(kSlave, POLLIN, 5000) & POLLIN) != 0);
        return "";
      },
      [](int member) -> std::string {
        (void)member;
        EXPECT_STEP(one_read(kSlave) == "first\n" && one_read(kSlave) == "\n");
        EXPECT_STEP(one_read(kSlave) == "half");
        EXPECT_STEP(one_read(kSlave) == "!");
        EXPECT_STEP(one_read(kSlave) == "part;");
        EXPECT_STEP(one_read(kSlave) == "\4\26\n\3.\n");
        EXPECT_STEP(one_read(kSlave) == "-" && "a line without an end is none yet");
        // All that was put out and echoed, once; then the rest is typed, with echo.
        const std::string out = one_read(kMaster);
        EXPECT_STEP(out.starts_with("out\r\nfirst\r\n") && out.ends_with("begix\b \b"));
        EXPECT_STEP(one_read(kMaster) == "-");
        EXPECT_STEP(put_all(kMaster, "n\n") && (ready(kSlave, POLLIN, 5000) & POLLIN) != 0);
        EXPECT_STEP(one_read(kSlave) == "begin\n");
        EXPECT_STEP(read_some(kMaster, 3) == "n\r\n");
        return "";
      });
}

TEST(Ptys, RawBytesBothWays) {
  std::string every;
  for (int i = 0; i < 3000; ++i) every.push_back(static_cast<char>(i * 7));
  expect_same(
      [&](int) -> std::string {
        change_modes(make_raw);
        EXPECT_STEP(put_all(kMaster, every) && put_all(kSlave, every + every + every));
        return "";
      },
      [&](int) -> std::string {
        EXPECT_STEP(read_some(kSlave, 3000) == every);
        EXPECT_STEP(read_some(kMaster, 9000) == every + every + every);
        EXPECT_STEP(one_read(kSlave) == "-" && one_read(kMaster) == "-");
        return "";
      });
}

TEST(Ptys, MoreThanALineDisciplineHolds) {
  std::string every;
  for (int i = 0; i < 8000; ++i) every.push_back(static_cast<char>(i * 11));
  expect_same(
      [&](int) -> std::string {
        change_modes(make_raw);
        EXPECT_STEP(put_all(kMaster, every));
        return "";
      },
      [&](int) -> std::string {
        EXPECT_STEP(read_some(kSlave, 8000) == every && one_read(kSlave) == "-");
        return "";
      });
}

TEST(Ptys, ModesWindowPacketsAndFlags) {
  expect_same(
      [](int) -> std::string {
        change_modes([](termios* modes) {
          modes->c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON);
          modes->c_iflag |= ISTRIP;
          modes->c_cc[VMIN] = 7;
          modes->c_cc[VINTR] = 'q';
          ::cfsetspeed(modes, B19200);
        });
        const winsize window{40, 132, 7, 9};
        const int on = 1;
        EXPECT_STEP(::ioctl(kSlave, TIOCSWINSZ, &window) == 0 && ::ioctl(kMaster, TIOCPKT, &on) == 0);
        EXPECT_STEP(::ioctl(kMaster, TIOCSPTLCK, &on) == 0);
        EXPECT_STEP(::fcntl(kMaster, F_SETFL, O_NONBLOCK) == 0);
        EXPECT_STEP(::dup2(kSlave, 20) == 20 && put_all(kSlave, "put out"));
        EXPECT_STEP(put_all(kMaster, "in"));
        return "";
      },
      [](int) -> std::string {
        termios modes{};
        EXPECT_STEP(::tcgetattr(20, &modes) == 0);
        EXPECT_STEP((modes.c_lflag & (ECHO | ICANON)) == 0 && (modes.c_lflag & ISIG) != 0);
        EXPECT_STEP((modes.c_iflag & ISTRIP) != 0 && (modes.c_oflag & OPOST) != 0);
        EXPECT_STEP(modes.c_cc[VMIN] == 7 && modes.c_cc[VINTR] == 'q' && ::cfgetospeed(&modes) == B19200);
        winsize window{};
        EXPECT_STEP(::ioctl(kMaster, TIOCGWINSZ, &window) == 0 && window.ws_row == 40 && window.ws_col == 132 &&
                    window.ws_xpixel == 7 && window.ws_ypixel == 9);
        int packet = 0, locked = 0;
        EXPECT_STEP(::ioctl(kMaster, TIOCGPKT, &packet) == 0 && packet == 1);
        EXPECT_STEP(::ioctl(kMaster, TIOCGPTLCK, &locked) == 0 && locked == 1);
        EXPECT_STEP((::fcntl(kMaster, F_GETFL) & (O_NONBLOCK | O_ACCMODE)) == (O_NONBLOCK | O_RDWR));
        EXPECT_STEP((::fcntl(kSlave, F_GETFL) & (O_NONBLOCK | O_ACCMODE)) == O_RDWR);
        EXPECT_STEP(one_read(kMaster) == std::string("\0put out", 8) && "a byte says that it is data");
        EXPECT_STEP(one_read(20) == "in");
        return "";
      });
}

TEST(Ptys, OutputThatWasStopped) {
  for (const bool by_character : {true, false})
    expect_same(
        [=](int) -> std::string {
          EXPECT_STEP(put_all(kSlave, "before"));
          if (!by_character) EXPECT_STEP(::tcflow(kSlave, TCOOFF) == 0);
          if (by_character) EXPECT_STEP(put_all(kMaster, "\23"));
          while ((ready(kSlave, POLLOUT) & POLLOUT) != 0) ::sched_yield();
          return "";
        },
        [=](int) -> std::string {
          EXPECT_STEP((ready(kSlave, POLLOUT) & POLLOUT) == 0);
          EXPECT_STEP(one_read(kMaster) == "before");
          if (by_character) EXPECT_STEP(put_all(kMaster, "\21"));
          if (!by_character) EXPECT_STEP(::tcflow(kSlave, TCOON) == 0);
          EXPECT_STEP((ready(kSlave, POLLOUT, 5000) & POLLOUT) != 0);
          EXPECT_STEP(put_all(kSlave, "after") && read_some(kMaster, 5) == "after");
          return "";
        });
}

TEST(Ptys, OneEndClosed) {
  expect_same(
      [](int) -> std::string {
        change_modes(make_raw);
        EXPECT_STEP(put_all(kSlave, "last words") && put_all(kMaster, "unheard") && ::close(kSlave) == 0);
        return "";
      },
      [](int) -> std::string {
        EXPECT_STEP((ready(kMaster, POLLIN) & POLLHUP) != 0 && read_some(kMaster, 10) == "last words");
        char byte;
        EXPECT_STEP(::read(kMaster, &byte, 1) < 0 && errno == EIO);
        const int slave = ::ioctl(kMaster, TIOCGPTPEER, O_RDWR | O_NOCTTY);
        EXPECT_STEP(slave >= 0 && read_some(slave, 7) == "unheard");
        return "";
      });
  expect_same([](int) -> std::string { return ::close(kMaster) == 0 ? "" : "close"; },
              [](int) -> std::string {
                EXPECT_STEP(one_read(kSlave) == "!" && (ready(kSlave, POLLIN) & POLLHUP) != 0);
                EXPECT_STEP(::write(kSlave, "x", 1) < 0 && errno == EIO);
                return "";
              });
}

// Which the rig closes only when it has made them all.
void await_that_only_members_have_it() {
  const std::string directory = "/proc/" + std::to_string(::getppid()) + "/fd";
  for (bool has = true; has; ::sched_yield()) {
    has = false;
    std::error_code error;
    for (const auto& fd : std::filesystem::directory_iterator(directory, error))
      has |= std::filesystem::read_symlink(fd.path(), error).string().ends_with("ptmx");
  }
}

TEST(Ptys, BetweenMembersThatInheritedThem) {
  Job job;
  job.members = 3;  // the third has the master as well: both may look, and one does
  job.make = [] {
    std::string words = open_pair();
    change_modes(make_raw);
    return words;
  };
  job.before = [](int member) -> std::string {
    await_that_only_members_have_it();
    EXPECT_STEP(::close(member == 1 ? kMaster : kSlave) == 0);
    if (member == 1) EXPECT_STEP(put_all(kSlave, "to the master"));
    if (member == 0) EXPECT_STEP(put_all(kMaster, "to the slave"));
    return "";
  };
  job.resumed = job.restarted = [](int member) -> std::string {
    if (member == 1) {
      EXPECT_STEP(read_some(kSlave, 12) == "to the slave");
      EXPECT_STEP(::write(kSlave, "!", 1) == 1);
    }
    meet();
    if (member == 0) EXPECT_STEP(read_some(kMaster, 14) == "to the master!");
    meet();
    if (member == 2) EXPECT_STEP(one_read(kMaster) == "-");
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
  job.apart = true;
  EXPECT_NE(checkpoint_and_restart(job).find("restarted together"), std::string::npos);
}

TEST(Ptys, StandardStreamsOnAPtyOfTheJob) {
  expect_same(
      [](int) -> std::string {
        change_modes(make_raw);
        EXPECT_STEP(::dup2(kSlave, 0) == 0 && ::dup2(kSlave, 2) == 2 && ::close(kSlave) == 0);
        EXPECT_STEP(::write(2, "error", 5) == 5);
        return "";
      },
      [](int) -> std::string {
        EXPECT_STEP(read_some(kMaster, 5) == "error");
        EXPECT_STEP(::write(kMaster, "typed", 5) == 5 && read_some(0, 5) == "typed");
        return "";
      });
}

// What the only member did `before`, in which `outsider` of another process has the other end.
std::string refusal(const Step& before) {
  Job job;
  job.members = 1;
  job.before = before;
  Capture capture = checkpoint(job);
  if (!capture.failure.empty()) return capture.failure;
  return capture.refusals.contains(0) ? capture.refusals[0] : match_descriptors(capture.tables).text();
}

TEST(Ptys, WhoHasTheOtherEndIsNamed) {
  for (const int kept : {kMaster, kSlave}) {
    int go[2];
    ASSERT_EQ(::pipe(go), 0);
    const std::string words = refusal([&](int) -> std::string {
      if (std::string failed = open_pair(); !failed.empty()) return failed;
      EXPECT_STEP(::pipe(go) == 0);
      EXPECT_STEP(start_outsider([&] {
        ::close(kept == kMaster ? kSlave : kMaster);
        ::close(go[0]);
        ::write(go[1], "", 1);
        for (::alarm(20);;) ::pause();
      }));
      char byte;
      EXPECT_STEP(::read(go[0], &byte, 1) == 1);
      ::close(go[0]);
      ::close(go[1]);
      return "";
    });
    ::close(go[0]);
    ::close(go[1]);
    EXPECT_NE(words.find(std::string("descriptor 10 (pty /dev/pts/")), std::string::npos) << words;
    EXPECT_NE(words.find(kept == kMaster ? "its master is open in process" : "its slave is open in process"),
              std::string::npos)
        << words;
    EXPECT_NE(words.find("descriptors_tes"), std::string::npos) << words;
  }
}

TEST(Ptys, WhatCannotBeReadOrPutBackIsRefused) {
  EXPECT_NE(refusal([](int) -> std::string {
              EXPECT_STEP(put(::posix_openpt(O_RDWR | O_NOCTTY), kMaster) == kMaster);
              return "";
            }).find("nobody has opened its slave yet"),
            std::string::npos);
  const std::string status = refusal([](int) -> std::string {
    const int on = 1;
    EXPECT_STEP(open_pair().empty() && ::ioctl(kMaster, TIOCPKT, &on) == 0 && ::tcflush(kSlave, TCIFLUSH) == 0);
    return "";
  });
  EXPECT_NE(status.find("a status byte waits"), std::string::npos) << status;
  const std::string background = refusal([](int) -> std::string {
    EXPECT_STEP(open_pair().empty() && ::setsid() > 0 && ::ioctl(kSlave, TIOCSCTTY, 0) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(kMaster);
      ::close(kSlave);
      for (::alarm(20);;) ::pause();
    }
    EXPECT_STEP(::setpgid(child, child) == 0 && ::tcsetpgrp(kSlave, child) == 0);
    return "";
  });
  EXPECT_NE(background.find("is in its background"), std::string::npos) << background;
  const std::string more = refusal([](int) -> std::string {
    EXPECT_STEP(open_pair().empty());
    change_modes([](termios* modes) {
      make_raw(modes);
      modes->c_lflag |= ISIG;
    });
    EXPECT_STEP(put_all(kMaster, std::string(6000, 'x')));
    for (int bytes = 0; bytes < 4095;) EXPECT_STEP(::ioctl(kSlave, FIONREAD, &bytes) == 0);
    return "";
  });
  EXPECT_NE(more.find("more waits to be read at its slave"), std::string::npos) << more;
}

}  // namespace
}  // namespace shadowib::test
