#include "shadowib/cli/supervise/bounds.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "shadowib/base/status.h"

namespace shadowib::cli {
namespace {

constexpr unsigned kChances = 2;  // of a set
constexpr std::int64_t kFirstPauseMs = 1000, kLongestPauseMs = 300'000;
constexpr unsigned kLastDoubling = 9;  // 512 s

}  // namespace

bool is_of_the_set(int code) {
  constexpr int kOfTheSet[] = {static_cast<int>(Code::kNotFound), static_cast<int>(Code::kCorrupt),
                               static_cast<int>(Code::kVersion)};
  return std::find(std::begin(kOfTheSet), std::end(kOfTheSet), code) != std::end(kOfTheSet);
}

void Bounds::remember(const std::vector<PastEvent>& events) {
  std::uint32_t from = kFromTheBeginning;
  bool runs = false;
  for (const PastEvent& e : events) {
    const auto number = static_cast<std::uint32_t>(e.number("number"));
    if (e.name == "started") runs = true;
    if (e.name == "checkpoint") {
      if (number <= newest_) forget_from(number), newest_ = 0;  // those were removed
      committed(number);
    }
    if (e.name == "restart") from = number, runs = true;
    if (e.name == "ended") runs = false;
    if (e.name == "gave_up") in_a_row_ = 0;  // who starts a supervisor again gives the job new chances
    // One death may have several events, of several members.
    if (e.name == "failure" && runs) failed(from), runs = false;
  }
}

void Bounds::committed(std::uint32_t number) {
  if (number <= newest_) return;
  newest_ = number;
  in_a_row_ = 0;
}

void Bounds::present(const std::vector<std::uint32_t>& sets) {
  const auto greatest = std::max_element(sets.begin(), sets.end());
  const std::uint32_t last = greatest == sets.end() ? kFromTheBeginning : *greatest;
  if (last >= newest_) return committed(last);
  newest_ = last;
  forget_from(last + 1);
}

void Bounds::forget_from(std::uint32_t number) {
  failures_.erase(failures_.lower_bound(number), failures_.end());
  refused_.erase(refused_.lower_bound(number), refused_.end());
}

void Bounds::failed(std::uint32_t set) {
  ++in_a_row_;
  if (set != kFromTheBeginning) ++failures_[set];
}

void Bounds::not_restarted(std::uint32_t set, bool by_the_set) {
  if (!by_the_set) {
    ++in_a_row_;
    return;
  }
  failures_[set] = std::max(failures_[set], kChances);
  refused_.insert(set);
}

bool Bounds::all_refused(const std::vector<std::uint32_t>& sets) const {
  return std::all_of(sets.begin(), sets.end(), [this](std::uint32_t set) { return refused_.contains(set); });
}

std::int64_t Bounds::pause_ms() const {
  if (in_a_row_ == 0) return 0;
  return std::min(kFirstPauseMs << std::min(in_a_row_ - 1, kLastDoubling), kLongestPauseMs);
}

bool Bounds::is_spent(std::uint32_t set) const {
  const auto at = failures_.find(set);
  return at != failures_.end() && at->second >= kChances;
}

std::vector<std::uint32_t> Bounds::order(std::vector<std::uint32_t> sets) const {
  std::sort(sets.begin(), sets.end(), std::greater<>());
  std::stable_partition(sets.begin(), sets.end(), [this](std::uint32_t set) { return !is_spent(set); });
  return sets;
}

unsigned Bounds::to_keep(unsigned keep, const std::vector<std::uint32_t>& sets) const {
  const std::vector<std::uint32_t> tried = order(sets);
  unsigned good = 0;
  std::uint32_t oldest_kept = 0;
  for (const std::uint32_t set : tried)
    if (!is_spent(set) && good < keep) oldest_kept = set, ++good;
  if (oldest_kept == 0) return keep;
  return static_cast<unsigned>(
      std::count_if(sets.begin(), sets.end(), [oldest_kept](std::uint32_t set) { return set >= oldest_kept; }));
}

}  // namespace shadowib::cli
