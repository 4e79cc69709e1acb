// Output for people and scripts: tables, sizes, progress, JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/base/json_value.h"
#include "shadowib/cli/units.h"

namespace shadowib::cli {

// One value, indented, with a newline. Bytes that are not UTF-8 are replaced.
void print_json(const Json& json);

// Columns padded to their widest cell; numbers (cells that start with a digit) to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() == 1; }
  std::string text() const;
  void print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Progress on standard error: a line redrawn in place on a terminal, otherwise a line per step() and nothing between.
class Progress {
 public:
  Progress();
  ~Progress();
  // Work of a new kind begins.
  void step(const std::string& what);
  // How far it is, in bytes; total 0: not known.
  void update(std::uint64_t done, std::uint64_t total);
  // How far it is, in things.
  void count(std::uint64_t done, std::uint64_t total);
  // Takes the line away, before another one is told. It comes back by the next call.
  void clear();

 private:
  void draw(const std::string& text);
  // False: nothing is to be drawn now.
  bool is_time(bool at_end);
  bool terminal_;
  bool drawn_ = false;
  std::string what_;
  std::int64_t last_ns_ = 0;
};

}  // namespace shadowib::cli
