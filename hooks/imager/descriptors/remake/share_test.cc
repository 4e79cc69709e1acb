// Members that are restarted apart: what they may have between them, and what is refused.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/table.h"
#include "hooks/imager/descriptors/tests/test_job.h"
#include "hooks/imager/descriptors/tests/test_sockets.h"

namespace shadowib::test {
namespace {

class Apart : public ::testing::TestWithParam<int> {};

// More than a receive buffer has room for at first, on its way in both directions, and one direction closed behind
// it.
TEST_P(Apart, ConnectionsComeBackWithTheirBytes) {
  const int domain = GetParam();
  constexpr std::size_t kMuch = 150000;
  std::uint16_t port = 0;
  Job job;
  job.apart = true;
  job.make = [&]() -> std::string {
    EXPECT_STEP(listen_tcp(domain, 3, &port) == 3);
    return "";
  };
  job.before = [&](int member) -> std::string {
    if (member == 1) {
      ::close(3);
      EXPECT_STEP(connect_tcp(domain, 10, port) == 10 && connect_tcp(domain, 11, port) == 11);
      EXPECT_STEP(say(10, "from one") && say(11, std::string(kMuch, 'x')));
      ::shutdown(11, SHUT_WR);
    } else {
      EXPECT_STEP(put(::accept(3, nullptr, nullptr), 20) == 20 && put(::accept(3, nullptr, nullptr), 21) == 21);
      EXPECT_STEP(say(20, std::string(kMuch, 'y')));
    }
    return "";
  };
  job.restarted = [](int member) -> std::string {
    if (member == 1) {
      EXPECT_STEP(read_some(10, kMuch) == std::string(kMuch, 'y') && say(10, ", more"));
      EXPECT_STEP(read_some(11, 4) == "back" && at_end(11));
    } else {
      EXPECT_STEP(read_some(20, 14) == "from one, more");
      EXPECT_STEP(read_some(21, kMuch) == std::string(kMuch, 'x') && at_end(21) && say(21, "back"));
      ::close(21);
    }
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

INSTANTIATE_TEST_SUITE_P(Domains, Apart, ::testing::Values(AF_INET, AF_INET6));

// What both have inherited; a plan for one of them says who shares what with whom.
TEST(ApartRefused, WhateverElseIsShared) {
  struct Case {
    const char* kind;
    int (*make)();
  };
  const Case cases[] = {
      {"pipe",
       [] {
         int ends[2];
         return ::pipe(ends);
       }},
      {"unix",
       [] {
         int ends[2];
         return ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
       }},
      {"eventfd", [] { return ::eventfd(0, 0); }},
      {"tcp",
       [] {
         std::uint16_t port;
         return listen_tcp(AF_INET, 3, &port);
       }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.kind);
    Job job;
    job.make = [&]() -> std::string {
      EXPECT_STEP(c.make() >= 0);
      return "";
    };
    job.before = [](int) -> std::string { return ""; };
    const Capture captured = checkpoint(job);
    ASSERT_EQ(captured.failure, "");
    DescriptorPlan plan;
    const Status status = plan.prepare(captured.tables, {0}, nullptr);
    EXPECT_EQ(status.code(), Code::kRefused) << status.text();
    EXPECT_NE(std::string(status.text()).find(c.kind), std::string::npos) << status.text();
    EXPECT_NE(std::string(status.text()).find("restarted together"), std::string::npos) << status.text();
  }
}

// Opened anew by each member, and locked as the case says; or opened and locked once, before the members come.
TEST(ApartRefused, AFileWithOneLockOfBoth) {
  struct Case {
    const char* name;
    bool inherited;
    int operation;  // of flock; 0: an open file description lock
    short type;     // of the latter
    bool bound;
  };
  const Case cases[] = {{"exclusive", true, LOCK_EX, 0, true},
                        {"shared", true, LOCK_SH, 0, true},
                        {"of the description", true, 0, F_WRLCK, true},
                        {"shared, each its own", false, LOCK_SH, 0, false},
                        {"of the description, shared, each its own", false, 0, F_RDLCK, false}};
  const std::string path = scratch_directory() + "/locked";
  ::close(::open(path.c_str(), O_RDWR | O_CREAT, 0600));
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto lock = [&]() -> std::string {
      struct flock whole {};
      whole.l_type = c.type;
      const int fd = put(::open(path.c_str(), O_RDWR), 20);
      EXPECT_STEP(fd == 20);
      EXPECT_STEP(c.operation != 0 ? ::flock(fd, c.operation) == 0 : ::fcntl(fd, F_OFD_SETLK, &whole) == 0);
      return "";
    };
    Job job;
    job.make = [&]() -> std::string { return c.inherited ? lock() : ""; };
    job.before = [&](int) -> std::string { return c.inherited ? "" : lock(); };
    const Capture captured = checkpoint(job);
    ASSERT_EQ(captured.failure, "");
    DescriptorPlan plan;
    const Status status = plan.prepare(captured.tables, {0}, nullptr);
    EXPECT_EQ(status.code(), c.bound ? Code::kRefused : Code::kOk) << status.text();
    if (!c.bound) continue;
    EXPECT_NE(std::string(status.text()).find(path), std::string::npos) << status.text();
    EXPECT_NE(std::string(status.text()).find("restarted together"), std::string::npos) << status.text();
  }
}

// What each part would write at an offset of its own.
TEST(ApartRefused, AFileThatBothWriteToByOneOffset) {
  struct Case {
    const char* name;
    bool inherited, compared;
    int flags;
    bool written, bound;
  };
  const Case cases[] = {{"for writing", true, true, O_WRONLY, true, true},
                        {"for writing, and nothing is written yet", true, true, O_RDWR, false, true},
                        {"for reading", true, true, O_RDONLY, false, false},
                        {"for appending", true, true, O_WRONLY | O_APPEND, true, false},
                        {"each its own", false, true, O_WRONLY, true, false},
                        {"of an earlier set", true, false, O_WRONLY, true, true},
                        {"of an earlier set, perhaps each its own", true, false, O_WRONLY, false, false}};
  const std::string path = scratch_directory() + "/written";
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto open = [&]() -> std::string {
      const int fd = put(::open(path.c_str(), O_CREAT | c.flags, 0600), 20);
      EXPECT_STEP(fd == 20 && (!c.written || ::write(fd, "something", 9) == 9));
      return "";
    };
    Job job;
    job.compares = c.compared;
    job.make = [&]() -> std::string { return c.inherited ? open() : ""; };
    job.before = [&](int) -> std::string { return c.inherited ? "" : open(); };
    const Capture captured = checkpoint(job);
    ASSERT_EQ(captured.failure, "");
    DescriptorPlan plan;
    const Status status = plan.prepare(captured.tables, {0}, nullptr);
    EXPECT_EQ(status.code(), c.bound ? Code::kRefused : Code::kOk) << status.text();
    if (!c.bound) continue;
    EXPECT_NE(std::string(status.text()).find(path), std::string::npos) << status.text();
    EXPECT_NE(std::string(status.text()).find("open it with O_APPEND"), std::string::npos) << status.text();
  }
}

// Each member gets the standard output of its restart's command where that appends to the file.
TEST(ApartRefused, OutputThatTheCommandsAppendToIsNot) {
  const std::string path = scratch_directory() + "/output";
  Job job;
  job.make = [&]() -> std::string {
    EXPECT_STEP(put(::open(path.c_str(), O_WRONLY | O_CREAT, 0600), 1) == 1 && ::write(1, "something", 9) == 9);
    return "";
  };
  job.before = [](int) -> std::string { return ""; };
  const Capture captured = checkpoint(job);
  ASSERT_EQ(captured.failure, "");
  for (const int appends : {0, O_APPEND}) {
    const int before = ::dup(1);
    put(::open(path.c_str(), O_WRONLY | appends), 1);
    DescriptorPlan plan;
    const Status status = plan.prepare(captured.tables, {0}, nullptr);
    put(before, 1);
    EXPECT_EQ(status.code(), appends != 0 ? Code::kOk : Code::kRefused) << status.text();
  }
}

// Two machines count the inodes of their sockets from 1, and their loopback addresses are not the same.
TEST(TwoKernels, HaveNumbersOfTheirOwn) {
  std::uint16_t port = 0;
  Job job;
  job.make = [&]() -> std::string {
    EXPECT_STEP(listen_tcp(AF_INET, 3, &port) == 3);
    return "";
  };
  job.before = [&](int member) -> std::string {
    if (member == 1) {
      EXPECT_STEP(connect_tcp(AF_INET, 10, port) == 10);
    } else {
      EXPECT_STEP(put(::accept(3, nullptr, nullptr), 11) == 11);
    }
    return "";
  };
  const Capture captured = checkpoint(job);
  ASSERT_EQ(captured.failure, "");
  ASSERT_TRUE(match_descriptors(captured.tables).ok());
  std::map<std::uint32_t, std::string> moved = captured.tables;
  descriptors::Table table;
  ASSERT_TRUE(descriptors::decode_table(moved[1], &table).ok());
  ASSERT_FALSE(table.kernel.empty());
  table.kernel = "00000000-0000-0000-0000-000000000000";
  descriptors::encode_table(table, &moved[1]);
  // Nobody is at the other end of that address any more.
  const Status status = match_descriptors(moved);
  EXPECT_EQ(status.code(), Code::kRefused) << status.text();
  EXPECT_NE(std::string(status.text()).find("outside the job"), std::string::npos) << status.text();
  std::vector<std::set<std::uint32_t>> parts;
  ASSERT_TRUE(split_members(moved, &parts).ok());
  EXPECT_EQ(parts.size(), 2u);
  parts.clear();
  ASSERT_TRUE(split_members(captured.tables, &parts).ok());
  EXPECT_EQ(parts.size(), 1u);
}

}  // namespace
}  // namespace shadowib::test
