#include "shadowib/cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "shadowib/base/lock.h"

namespace shadowib::cli {
namespace {

std::string bar(std::uint64_t done, std::uint64_t total) {
  if (total == 0) return "";
  constexpr std::size_t kWidth = 30;
  std::size_t filled = static_cast<std::size_t>(static_cast<double>(done) / static_cast<double>(total) * kWidth);
  filled = std::min(filled, kWidth);
  return "[" + std::string(filled, '#') + std::string(kWidth - filled, '.') + "]  ";
}

}  // namespace

void print_json(const Json& json) { std::printf("%s\n", json.dump(2).c_str()); }

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (widths.size() <= i) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string pad(widths[i] - row[i].size(), ' ');
      bool number = !row[i].empty() && row[i][0] >= '0' && row[i][0] <= '9';
      line += (i == 0 ? "" : "  ") + (number ? pad + row[i] : row[i] + pad);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

void Table::print() const { std::fputs(text().c_str(), stdout); }

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (drawn_) std::fprintf(stderr, "\r\033[K");
  drawn_ = false;
}

void Progress::draw(const std::string& text) {
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  drawn_ = true;
}

void Progress::step(const std::string& what) {
  if (what == what_) return;
  what_ = what;
  last_ns_ = 0;
  if (terminal_)
    draw(what_);
  else
    std::fprintf(stderr, "shadowib: %s\n", what_.c_str());
}

bool Progress::is_time(bool at_end) {
  if (!terminal_) return false;
  const std::int64_t now = monotonic_ns();
  if (now - last_ns_ < 50000000 && !at_end) return false;
  last_ns_ = now;
  return true;
}

void Progress::update(std::uint64_t done, std::uint64_t total) {
  if (is_time(done == total))
    draw(what_ + "  " + bar(done, total) + human_bytes(done) + (total > 0 ? " of " + human_bytes(total) : ""));
}

void Progress::count(std::uint64_t done, std::uint64_t total) {
  if (is_time(done == total))
    draw(what_ + "  " + bar(done, total) + std::to_string(done) + " of " + std::to_string(total));
}

}  // namespace shadowib::cli
