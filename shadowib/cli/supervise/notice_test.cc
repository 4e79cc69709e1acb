#include "shadowib/cli/supervise/notice.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <limits>

namespace shadowib::cli {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

NoticeSource source_of(const std::string& text) {
  NoticeSource source;
  const Status status = parse_notice(text, &source);
  EXPECT_TRUE(status.ok()) << text << ": " << status.text();
  return source;
}

TEST(NoticeSource, IsASignalOrACommand) {
  EXPECT_EQ(source_of("TERM").signal, SIGTERM);
  EXPECT_LT(source_of("SIGUSR1").signal_s, 0);
  EXPECT_EQ(source_of("SIGUSR1@5m").signal, SIGUSR1);
  EXPECT_DOUBLE_EQ(source_of("USR1@5m").signal_s, 300);
  EXPECT_DOUBLE_EQ(source_of("XCPU@30").signal_s, 30);
  for (const char* command : {"cat left", "usr1", "SIG", "TERMINAL", "mail a@b", "USR1 @5"}) {
    EXPECT_EQ(source_of(command).signal, 0) << command;
    EXPECT_EQ(source_of(command).command, command);
  }
  NoticeSource source;
  for (const char* wrong : {"KILL", "SIGSTOP", "CHLD", "SEGV", "USR1@", "USR1@soon", "USR1@0", "USR1@-3"})
    EXPECT_EQ(parse_notice(wrong, &source).code(), Code::kUsage) << wrong;
}

TEST(SecondsLeft, AreANumberOrNothing) {
  double left_s = -1;
  for (const char* nothing : {"", "\n", " \t\r\n"}) EXPECT_EQ(parse_seconds_left(nothing, &left_s), Said::kNothing);
  EXPECT_EQ(parse_seconds_left("120\n", &left_s), Said::kSeconds);
  EXPECT_DOUBLE_EQ(left_s, 120);
  EXPECT_EQ(parse_seconds_left("  0.5\r\n", &left_s), Said::kSeconds);
  EXPECT_DOUBLE_EQ(left_s, 0.5);
  EXPECT_EQ(parse_seconds_left("0", &left_s), Said::kSeconds);
  for (const char* wrong : {"-3", "soon", "5 s", "<html>404</html>", "nan", "inf", "1\n2"})
    EXPECT_EQ(parse_seconds_left(wrong, &left_s), Said::kNonsense) << wrong;
}

TEST(AnnouncedEnd, IsMetByALateSave) {
  AnnouncedEnd end;
  EXPECT_FALSE(end.save_is_due(1000, 8));
  EXPECT_EQ(end.left_s(1000), kUnknown);
  EXPECT_TRUE(end.announced(1000, 120, 8));
  EXPECT_TRUE(end.fits());
  EXPECT_FALSE(end.save_is_due(1111, 8));
  EXPECT_TRUE(end.save_is_due(1112, 8));
  EXPECT_FALSE(end.announced(1005, 114, 8)) << "whole seconds";
  EXPECT_FALSE(end.announced(1112, 7, 8)) << "what fitted does not cease to";
  EXPECT_TRUE(end.save_is_due(1112, 8));
}

TEST(AnnouncedEnd, MayComeTooSoon) {
  AnnouncedEnd end;
  EXPECT_TRUE(end.announced(1000, 7.9, 8));
  EXPECT_TRUE(end.is_too_soon());
  EXPECT_FALSE(end.save_is_due(1007, 8));
  EXPECT_NEAR(end.left_s(1008), -0.1, 1e-9);
  EXPECT_TRUE(end.announced(1001, 100, 8)) << "it was put off";
  EXPECT_TRUE(end.fits());
  EXPECT_TRUE(end.announced(1002, 3, 8)) << "and comes earlier after all";
  EXPECT_TRUE(end.is_too_soon());
  end.withdrawn();
  EXPECT_FALSE(end.is_too_soon());
  EXPECT_EQ(end.left_s(1008), kUnknown);
  EXPECT_TRUE(end.announced(1008, 100, 8));
}

TEST(AnnouncedEnd, IsMetAtOnceIfSomethingIsNotKnown) {
  AnnouncedEnd end, other;
  EXPECT_TRUE(end.announced(1000, 5, -1)) << "no checkpoint has ever been taken";
  EXPECT_TRUE(end.save_is_due(1000, -1));
  EXPECT_TRUE(other.announced(1000, kUnknown, 8)) << "a signal without a time";
  EXPECT_TRUE(other.save_is_due(1000, 8));
  EXPECT_FALSE(other.announced(1001, kUnknown, 8));
}

}  // namespace
}  // namespace shadowib::cli
