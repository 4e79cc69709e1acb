#include "hooks/job/collection.h"

#include <time.h>

#include <algorithm>
#include <cstdlib>

#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr std::size_t kFew = 16;                                 // are looked up without a list
constexpr std::int64_t kRests = 2, kLongestRestNs = 50'000'000;  // for each time that a look took

}  // namespace

Status Collection::take(const std::vector<std::uint32_t>& members) {
  std::vector<std::string> keys, values;
  std::vector<bool> found;
  keys.reserve(members.size());
  for (const std::uint32_t member : members) keys.push_back(above_ + "/" + std::to_string(member));
  SHADOWIB_TRY(exchange_.lookup(keys, &values, &found));
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (!found[i]) continue;
    values_[members[i]] = std::move(values[i]);
    missing_.erase(members[i]);
  }
  return {};
}

Status Collection::look() {
  look_began_ns_ = monotonic_ns();
  if (missing_.size() <= kFew) return take({missing_.begin(), missing_.end()});
  std::vector<std::string> names;
  std::vector<std::uint32_t> come;
  SHADOWIB_TRY(exchange_.list(above_, &names));
  for (const std::string& name : names) {
    const auto member = static_cast<std::uint32_t>(std::strtoul(name.c_str(), nullptr, 10));
    if (missing_.contains(member)) come.push_back(member);
  }
  return take(come);
}

Status Collection::wait(int timeout_ms) {
  const std::int64_t rest = std::min(kRests * (monotonic_ns() - look_began_ns_), kLongestRestNs);
  const timespec time{0, rest};
  ::nanosleep(&time, nullptr);
  const Status status = exchange_.watch(above_, &token_, timeout_ms, -1);
  return status.code() == Code::kTimeout ? Status() : status;
}

}  // namespace shadowib
