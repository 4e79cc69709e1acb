// A command's collecting of what each member publishes once, below one key: "<above>/<index>". Internal to hooks/.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "shadowib/exchange/exchange.h"

namespace shadowib {

// Members come one by one, and a look costs more the more there are. So between two looks it rests for some time of
// the last one's length: looking takes a part of the time, however many members come. Used by one thread.
class Collection {
 public:
  // Borrows the exchange.
  Collection(Exchange& exchange, std::string above, const std::vector<std::uint32_t>& members)
      : exchange_(exchange), above_(std::move(above)), missing_(members.begin(), members.end()) {}

  // Takes what has come since the last look.
  Status look();
  // Until something comes, within timeout_ms; not at once after a look that took long. Early returns are allowed.
  Status wait(int timeout_ms);
  // Nobody waits for it any more.
  void drop(std::uint32_t member) { missing_.erase(member); }

  bool complete() const { return missing_.empty(); }
  const std::set<std::uint32_t>& missing() const { return missing_; }
  std::map<std::uint32_t, std::string>& values() { return values_; }

 private:
  Status take(const std::vector<std::uint32_t>& members);

  Exchange& exchange_;
  const std::string above_;
  std::set<std::uint32_t> missing_;
  std::map<std::uint32_t, std::string> values_;
  std::uint64_t token_ = 0;
  std::int64_t look_began_ns_ = 0;
};

}  // namespace shadowib
