// Parents and children over a whole set: who may be made again, and who is refused.
#include "hooks/imager/descriptors/match/family.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "hooks/imager/bonds.h"
#include "hooks/imager/descriptors/capture/capture.h"

namespace shadowib::descriptors {
namespace {

// Members 0, 1, ... with the pids 100, 101, ... in the session and group of 100, each the child of the one before.
Tables line_of(std::uint32_t count) {
  Tables tables;
  for (std::uint32_t i = 0; i < count; ++i) {
    Table& t = tables[i];
    t.member = i;
    t.pid = static_cast<std::int32_t>(100 + i);
    t.kernel = "one";
    t.processes = 7;
    t.group = t.session = 100;
    if (i + 1 < count) t.children = {{t.pid + 1, 100, 100, 0, 0, "child"}};
  }
  return tables;
}

Status judged(std::uint32_t count, const std::function<void(Tables&)>& change = nullptr) {
  Tables tables = line_of(count);
  if (change != nullptr) change(tables);
  return judge_families(tables);
}

#define EXPECT_REFUSED(status, words)                                                    \
  do {                                                                                   \
    const Status found = status;                                                         \
    EXPECT_EQ(found.code(), Code::kRefused) << found.text();                             \
    EXPECT_NE(std::string(found.text()).find(words), std::string::npos) << found.text(); \
  } while (0)

TEST(Families, OfMembersMayBe) {
  EXPECT_TRUE(judged(4).ok());
  EXPECT_EQ(parent_of(line_of(2), line_of(2).at(0)), nullptr);
  const Status own_session = judged(3, [](Tables& t) {
    t[1].session = t[1].group = t[2].session = 101;
    t[2].group = 102;
  });
  EXPECT_TRUE(own_session.ok()) << own_session.text();
  const Status ended = judged(2, [](Tables& t) { t[1].children = {{150, 150, 100, 1, 7 << 8, "ended"}}; });
  EXPECT_TRUE(ended.ok()) << ended.text();
}

TEST(Families, AChildHasToBeAMember) {
  const auto without = [](Tables& t) { t.erase(1); };
  EXPECT_REFUSED(judged(2, without),
                 "child process 101 (child) of pid 100, member 0, cannot be checkpointed: it is no member");
  EXPECT_EQ(judged(2, without).error(), EAGAIN) << "it may end";
  EXPECT_REFUSED(judged(2, [](Tables& t) { t[1].processes = 8; }), "no member");
  EXPECT_REFUSED(judged(2, [](Tables& t) { t[1].kernel = "other"; }), "no member");
}

TEST(Families, WhoCannotBeWhereItWasIsRefused) {
  EXPECT_REFUSED(judged(2, [](Tables& t) { t[0].session = 90; }),
                 "a session that is neither its parent's nor its own");
  const auto led_by_child = [](Tables& t) { t[1].session = t[1].group = 101; };
  EXPECT_REFUSED(judged(3,
                        [&](Tables& t) {
                          led_by_child(t);
                          t[1].children.clear();
                          t[2].session = t[2].group = 101;
                        }),
                 "its own parent is no member");
  EXPECT_REFUSED(judged(3,
                        [&](Tables& t) {
                          led_by_child(t);
                          t[2].session = 101;
                          t[2].group = 102;
                          t[1].group = 150;
                        }),
                 "the leader of its process group 150 is no member");
  EXPECT_REFUSED(judged(2,
                        [](Tables& t) {
                          t[0].group = 90;
                          t[1].group = 100;
                        }),
                 "the leader of its process group 100 is in another group or session by now");
  EXPECT_REFUSED(judged(2,
                        [](Tables& t) {
                          t[0].children.push_back({150, 90, 100, 1, 0, "ended"});
                          t[1].group = 150;
                        }),
                 "is in another group or session by now");
  EXPECT_REFUSED(judged(2,
                        [&](Tables& t) {
                          t[0].children.push_back({150, 150, 150, 1, 0, "ended"});
                          t[1].session = 150;
                          t[0].session = 150;
                        }),
                 "led the session");
}

TEST(Families, WhatCannotBeTrueIsCorrupt) {
  EXPECT_EQ(judged(2, [](Tables& t) { t[1].children = {{100, 100, 100, 0, 0, "parent"}}; }).code(), Code::kCorrupt);
  EXPECT_EQ(judged(3, [](Tables& t) { t[1].children[0].pid = 101; }).code(), Code::kCorrupt);
  EXPECT_EQ(judged(3,
                   [](Tables& t) {
                     t[0].children.push_back({102, 100, 100, 0, 0, "child"});
                   })
                .code(),
            Code::kCorrupt);
  EXPECT_EQ(judged(3,
                   [](Tables& t) {
                     t[0].children.push_back({102, 100, 100, 1, 0, "ended"});
                   })
                .code(),
            Code::kCorrupt);
}

TEST(Families, StayOnOneMachine) {
  std::map<std::uint32_t, std::string> encoded;
  for (const auto& [member, table] : line_of(2)) encode_table(table, &encoded[member]);
  const auto judged_apart = [&encoded](const std::set<std::uint32_t>& here) {
    Status parted;
    SHADOWIB_TRY(find_family_bonds(encoded, first_parted(here, &parted)));
    return parted;
  };
  EXPECT_TRUE(judged_apart({0, 1}).ok());
  EXPECT_TRUE(judged_apart({}).ok());
  EXPECT_REFUSED(judged_apart({0}), "restarted together");
  EXPECT_REFUSED(judged_apart({1}), "restarted together");
}

// In a process of its own, whose only children are those that it makes here.
std::string captured(const std::function<void(pid_t child, Status status, const Table& table)>& look, int exit_signal,
                     const std::function<int()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const long made = ::syscall(SYS_clone, exit_signal, nullptr, nullptr, nullptr, nullptr);
    if (made == 0) ::_exit(child());
    siginfo_t info{};
    if (exit_signal == SIGCHLD && child() >= 0) ::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT);
    Table table;
    const Status status = capture_family(&table);
    look(static_cast<pid_t>(made), status, table);
    ::kill(static_cast<pid_t>(made), SIGKILL);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  ::waitpid(pid, &status, 0);
  return status == 0 ? "" : "see above";
}

TEST(Families, AChildThatHasEndedIsDescribedAndLeft) {
  EXPECT_EQ(captured(
                [](pid_t child, const Status& status, const Table& table) {
                  EXPECT_TRUE(status.ok()) << status.text();
                  ASSERT_EQ(table.children.size(), 1u);
                  const Child& c = table.children[0];
                  EXPECT_TRUE(c.pid == child && c.ended == 1 && c.wait_status == 9 << 8);
                  EXPECT_TRUE(c.group == table.group && c.session == table.session && table.session == ::getsid(0));
                  int taken = 0;
                  EXPECT_EQ(::waitpid(child, &taken, WNOHANG), child);
                  EXPECT_EQ(taken, 9 << 8);
                },
                SIGCHLD, [] { return 9; }),
            "");
}

TEST(Families, AChildWhoseEndIsToldOtherwiseIsRefused) {
  EXPECT_EQ(
      captured(
          [](pid_t, const Status& status, const Table&) { EXPECT_REFUSED(status, "another signal than SIGCHLD"); }, 0,
          [] {
            ::pause();
            return 0;
          }),
      "");
}

}  // namespace
}  // namespace shadowib::descriptors
