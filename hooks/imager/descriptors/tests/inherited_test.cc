// Pipes and sockets that a job was started with, and whose other ends are outside of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/tests/test_job.h"

namespace shadowib::test {
namespace {

std::string identity(int fd) {
  struct stat st {};
  ::fstat(fd, &st);
  return std::to_string(st.st_dev) + ":" + std::to_string(st.st_ino);
}

// 8: write end, 9: read end with something in it, 10: socket. Their other ends are an outsider's.
std::string start_with_three() {
  int to[2], from[2], pair[2];
  EXPECT_STEP(::pipe(to) == 0 && ::pipe(from) == 0 && ::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  EXPECT_STEP(::write(from[1], "said before", 11) == 11);
  EXPECT_STEP(start_outsider([&] {
    ::dup2(to[0], 3), ::dup2(from[1], 4), ::dup2(pair[1], 5);
    for (int fd = 6; fd < 64; ++fd) ::close(fd);
    ::alarm(30);
    ::pause();
  }));
  ::close(to[0]), ::close(from[1]), ::close(pair[1]);
  EXPECT_STEP(::fcntl(to[1], F_DUPFD, 20) >= 0 && ::fcntl(from[0], F_DUPFD, 20) >= 0 &&
              ::fcntl(pair[0], F_DUPFD, 20) >= 0);
  for (int fd = 3; fd < 20; ++fd) ::close(fd);
  EXPECT_STEP(::dup2(20, 8) == 8 && ::dup2(21, 9) == 9 && ::dup2(22, 10) == 10);
  for (int fd = 20; fd < 23; ++fd) ::close(fd);
  return "";
}

Job with_three(Step restarted) {
  Job job;
  job.make = start_with_three;
  job.before = [](int) -> std::string {
    note_inherited((identity(8) + "," + identity(9) + "," + identity(10)).c_str());
    return "";
  };
  job.restarted = std::move(restarted);
  return job;
}

TEST(Inherited, NobodyIsAtTheOtherEndAfterARestart) {
  Job job = with_three([](int) -> std::string {
    ::signal(SIGPIPE, SIG_IGN);
    EXPECT_STEP(::write(8, "x", 1) < 0 && errno == EPIPE);
    EXPECT_STEP(read_some(9, 11) == "said before" && at_end(9));
    EXPECT_STEP(at_end(10) && ::write(10, "x", 1) < 0 && errno == EPIPE);
    return "";
  });
  job.resumed = [](int member) -> std::string {
    EXPECT_STEP(::write(8, "x", 1) == 1 && "nothing has changed for who goes on");
    EXPECT_STEP(member == 1 || read_some(9, 11) == "said before");
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

TEST(Inherited, TheCommandsOwnStandIn) {
  Job job = with_three([](int member) -> std::string {
    EXPECT_STEP(::write(8, "x", 1) == 1 && "into the command's file");
    EXPECT_STEP(member == 1 || read_some(9, 3) == "the");
    return "";
  });
  const std::string out = scratch_directory() + "/stand_in";
  job.command = [&] {
    int in[2];
    (void)!::pipe(in);
    (void)!::write(in[1], "the command's", 13);
    ::close(in[1]);
    ::dup2(in[0], 9);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), 8);
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
  struct stat st {};
  EXPECT_EQ(::stat(out.c_str(), &st), 0);
  EXPECT_EQ(st.st_size, 2);
}

TEST(Inherited, OthersAreRefusedAsEver) {
  Job job = with_three([](int) { return std::string(); });
  job.before = [](int) -> std::string {
    note_inherited((identity(8) + "," + identity(9)).c_str());
    return "";
  };
  Capture capture = checkpoint(job);
  EXPECT_EQ(capture.failure, "");
  EXPECT_NE(std::string(match_descriptors(capture.tables).text()).find("descriptor 10 (unix"), std::string::npos);
  for (const char* list : {"", "1", "x:1", ":", "1:", "1:2:3", ",,"}) note_inherited(list);
  note_inherited(nullptr);
}

}  // namespace
}  // namespace shadowib::test
