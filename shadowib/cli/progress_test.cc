// Progress on a terminal, and without one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>

#include "shadowib/cli/output.h"
#include "shadowib/cli/piece_progress.h"

namespace shadowib::cli {
namespace {

// Whatever `body` writes to standard error, which is a terminal or a pipe.
std::string told(bool terminal, const std::function<void()>& body) {
  std::array<int, 2> ends{};
  const int made = terminal ? ::openpty(ends.data(), &ends[1], nullptr, nullptr, nullptr) : ::pipe(ends.data());
  EXPECT_EQ(made, 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  body();
  std::fprintf(stderr, "end");
  ::dup2(before, STDERR_FILENO);
  std::string text;
  for (char buffer[4096]; !text.ends_with("end");) {
    const ssize_t n = ::read(ends[0], buffer, sizeof(buffer));
    if (n <= 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  for (const int fd : {before, ends[0], ends[1]}) ::close(fd);
  return text;
}

std::string drawn(const std::string& text) { return "\r\033[K" + text; }

TEST(Progress, OfPiecesOnATerminal) {
  const std::string text = told(true, [] {
    PieceProgress progress("fetching", 4 << 20);
    progress.moved()(4 << 20);
    progress.clear();
    std::fprintf(stderr, "a line\n");
    progress.again();
    progress.next(4 << 20);
  });
  const std::string empty(30, '.'), full(30, '#');
  const std::string whole = drawn("fetching  [" + full + "]  4.0 MiB of 4.0 MiB");
  EXPECT_EQ(text, drawn("fetching") + drawn("fetching  [" + empty + "]  0 B of 4.0 MiB") + whole + drawn("") +
                      "a line\r\n" + whole + drawn("") + "end");
}

// Between the ends a line may be left out: no more than twenty a second are drawn.
TEST(Progress, CountsAPieceThatIsBegunAgainOnce) {
  const std::string text = told(true, [] {
    PieceProgress progress("fetching", 4 << 20);
    progress.next(1 << 20);
    const Moved moved = progress.moved();
    moved(2 << 20);
    progress.again();
    moved(2 << 20);
    moved(1 << 20);
  });
  EXPECT_TRUE(text.ends_with("]  4.0 MiB of 4.0 MiB" + drawn("") + "end")) << text;
}

TEST(Progress, OfThings) {
  const std::string text = told(true, [] {
    Progress progress;
    progress.step("asking");
    progress.count(0, 2);
    progress.count(2, 2);
  });
  EXPECT_NE(text.find("..]  0 of 2"), std::string::npos) << text;
  EXPECT_NE(text.find("##]  2 of 2"), std::string::npos) << text;
}

TEST(Progress, ElsewhereALineForEachStep) {
  EXPECT_EQ(told(false,
                 [] {
                   PieceProgress progress("fetching", 4 << 20);
                   progress.moved()(1 << 20);
                   progress.clear();
                   progress.next(4 << 20);
                 }),
            "shadowib: fetching\nend");
}

}  // namespace
}  // namespace shadowib::cli
