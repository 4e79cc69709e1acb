#include "hooks/launcher/pmi_request.h"

#include <algorithm>
#include <utility>

namespace shadowib {
namespace {

constexpr std::string_view kMany = "mcmd=", kEnd = "endcmd";

void add_word(std::string_view word, PmiWords* words) {
  const std::size_t equals = word.find('=');
  if (equals != std::string_view::npos && equals > 0)
    (*words)[std::string(word.substr(0, equals))] = word.substr(equals + 1);
}

PmiRequest from_words(PmiWords words, const char* name) {
  PmiRequest request;
  if (const auto at = words.find(name); at != words.end()) {
    request.command = at->second;
    words.erase(at);
  }
  request.words = std::move(words);
  return request;
}

// A spawn of several programs is as many of these, with one answer to the last.
bool is_followed(const PmiRequest& request) {
  const auto total = request.words.find("totspawns"), so_far = request.words.find("spawnssofar");
  return request.command == "spawn" && total != request.words.end() && so_far != request.words.end() &&
         total->second != so_far->second;
}

}  // namespace

PmiWords parse_pmi_words(std::string_view line) {
  PmiWords words;
  while (!line.empty()) {
    const std::size_t blank = line.find(' ');
    add_word(line.substr(0, blank), &words);
    line = blank == std::string_view::npos ? std::string_view() : line.substr(blank + 1);
  }
  return words;
}

bool PmiRequests::take(std::string_view* bytes, PmiRequest* request) {
  while (!bytes->empty()) {
    const std::size_t newline = bytes->find('\n');
    const std::string_view piece = bytes->substr(0, newline);
    bytes_ += piece.size() + 1;
    too_long_ = too_long_ || bytes_ > kLongest;
    if (too_long_) gathered_.clear();
    // Of a request that is too long the last line's beginning is kept, which may be the end of it.
    line_ += piece.substr(0, too_long_ ? kEnd.size() + 1 - std::min(line_.size(), kEnd.size() + 1) : piece.size());
    if (newline == std::string_view::npos) {
      *bytes = {};
      return false;
    }
    bytes->remove_prefix(newline + 1);
    if (end_line(request)) return true;
  }
  return false;
}

bool PmiRequests::end_line(PmiRequest* request) {
  const std::string line = std::exchange(line_, {});
  if (!in_command_ && line.starts_with(kMany)) in_command_ = true;
  if (!in_command_) {
    *request = too_long_ ? PmiRequest{} : from_words(parse_pmi_words(line), "cmd");
    clear();
    return true;
  }
  if (line == kEnd) return end_request(request);
  if (!too_long_) add_word(line, &gathered_);  // a value may have blanks here
  return false;
}

bool PmiRequests::end_request(PmiRequest* request) {
  *request = too_long_ ? PmiRequest{} : from_words(std::move(gathered_), "mcmd");
  clear();
  followed_ = is_followed(*request);
  return !followed_;
}

void PmiRequests::clear() {
  line_.clear();
  gathered_.clear();
  bytes_ = 0;
  in_command_ = too_long_ = followed_ = false;
}

}  // namespace shadowib
