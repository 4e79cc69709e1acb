// The requests that a rank writes to its launcher in version 1 of PMI's wire protocol, and lines of the answers:
// text, "cmd=put kvsname=X key=Y value=Z\n", in which words hold no blank; or "mcmd=spawn\n", lines of one word each,
// "endcmd\n". Source: MPICH 4.0.2, src/pmi/simple and src/pm/hydra.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace shadowib {

using PmiWords = std::map<std::string, std::string>;

struct PmiRequest {
  std::string command;  // empty: malformed
  PmiWords words;       // the others; of two with one name the later one
};

// The words of a line without its end. Words without NAME=VALUE are left out.
PmiWords parse_pmi_words(std::string_view line);

// Cuts written bytes into requests, in whatever pieces they come. Believes nothing it reads.
class PmiRequests {
 public:
  static constexpr std::size_t kLongest = 1 << 16;  // bytes of a request; of a longer one only its end is looked for

  // Takes from `bytes` what belongs to the next request. True: it is complete, there may be more.
  bool take(std::string_view* bytes, PmiRequest* request);
  // Nothing of a request has come that is not complete.
  bool is_between() const { return line_.empty() && !in_command_ && !too_long_ && !followed_; }
  void clear();

 private:
  bool end_line(PmiRequest* request);
  bool end_request(PmiRequest* request);

  std::string line_;       // so far
  PmiWords gathered_;      // of a request of several lines
  std::size_t bytes_ = 0;  // of the request
  bool in_command_ = false, too_long_ = false;
  bool followed_ = false;  // the latest one is the first part of a spawn
};

}  // namespace shadowib
