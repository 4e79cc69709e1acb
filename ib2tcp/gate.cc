#include "ib2tcp/gate.h"

#include <algorithm>

namespace shadowib::ib2tcp {

void Gate::set(std::uint32_t queue_pair, std::uint64_t completed) {
  if (const auto known = times_.find(queue_pair); known != times_.end()) {
    own_.erase({known->second, queue_pair});
    times_.erase(known);
  }
  if (completed == kNothingLeft) return;
  own_.insert({completed, queue_pair});
  times_[queue_pair] = completed;
}

bool Gate::set_others(const GateState& others) {
  const bool news =
      others.earliest != others_.earliest || others.skew != others_.skew || others.goes_first != others_.goes_first;
  const bool other_skew = others.skew != others_.skew;
  others_ = others;
  if (other_skew)  // all of them need something else now
    for (const auto& [until, queue_pair] : std::exchange(behind_others_, {}))
      behind_others_.insert({needs_of_others(waiting_.at(queue_pair)), queue_pair});
  return news;
}

bool Gate::is_behind_own(std::uint32_t queue_pair, std::uint64_t left) const {
  auto first = own_.begin();
  if (first != own_.end() && first->second == queue_pair) ++first;
  return first != own_.end() && first->first <= left;
}

bool Gate::lets(std::uint32_t queue_pair, std::uint64_t left, std::uint64_t completed) const {
  if (is_behind_own(queue_pair, left)) return false;
  if (others_.earliest == kNothingLeft) return true;
  if (left == kNothingLeft || others_.earliest == kNotYetKnown) return false;
  if (others_.earliest > left && others_.earliest - left > others_.skew) return true;
  // Of two that wait for each other, within the skew, the one that completed first goes. It ran first, too, if the
  // clocks differ by less than a round trip.
  if (completed == 0 || others_.skew == 0) return false;
  return completed != others_.earliest ? completed < others_.earliest : others_.goes_first != 0;
}

// How far others have to have come, by lets(). Then it is asked.
std::uint64_t Gate::needs_of_others(const Waiting& waiting) const {
  const std::uint64_t skew = others_.skew;
  std::uint64_t until = waiting.left >= kNothingLeft - skew ? kNothingLeft : waiting.left + skew + 1;
  if (waiting.completed != 0 && skew != 0) until = std::min(until, waiting.completed);
  return until;
}

void Gate::place(std::uint32_t queue_pair, const Waiting& waiting) {
  waiting_[queue_pair] = waiting;
  if (is_behind_own(queue_pair, waiting.left))
    behind_own_.insert({waiting.left, queue_pair});
  else
    behind_others_.insert({needs_of_others(waiting), queue_pair});
}

void Gate::forget_place(std::uint32_t queue_pair, const Waiting& waiting) {
  behind_own_.erase({waiting.left, queue_pair});
  behind_others_.erase({needs_of_others(waiting), queue_pair});
}

void Gate::wait(std::uint32_t queue_pair, std::uint64_t left, std::uint64_t completed) {
  if (const auto known = waiting_.find(queue_pair); known != waiting_.end()) forget_place(queue_pair, known->second);
  place(queue_pair, {left, completed});
}

void Gate::wait_until_open(std::uint32_t queue_pair) {
  if (!waiting_.contains(queue_pair)) place(queue_pair, {kNothingLeft, 0});
}

std::vector<std::uint32_t> Gate::take_ready() {
  std::vector<std::uint32_t> looked_at, ready;
  const auto take = [&looked_at](Places& places, Places::iterator end) {
    for (auto it = places.begin(); it != end; it = places.erase(it)) looked_at.push_back(it->second);
  };
  if (own_.empty()) {
    take(behind_own_, behind_own_.end());
  } else {
    const auto& [earliest, first] = *own_.begin();
    take(behind_own_, behind_own_.lower_bound({earliest, 0}));
    // This one waits for the second.
    if (const auto it = waiting_.find(first);
        it != waiting_.end() && behind_own_.erase({it->second.left, first}) != 0)
      looked_at.push_back(first);
  }
  take(behind_others_, behind_others_.upper_bound({others_.earliest, ~std::uint32_t{0}}));
  for (const std::uint32_t queue_pair : looked_at) {
    const Waiting waiting = waiting_.at(queue_pair);
    if (lets(queue_pair, waiting.left, waiting.completed)) {
      waiting_.erase(queue_pair);
      ready.push_back(queue_pair);
    } else {
      place(queue_pair, waiting);
    }
  }
  return ready;
}

}  // namespace shadowib::ib2tcp
