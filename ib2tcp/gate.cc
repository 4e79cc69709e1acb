#include "ib2tcp/gate.h"

namespace shadowib::ib2tcp {

bool Gate::set(std::uint32_t queue_pair, std::uint64_t completed) {
  const std::uint64_t before = earliest();
  const auto known = times_.find(queue_pair);
  if (known != times_.end()) {
    if (known->second == completed) return false;
    own_.erase({known->second, queue_pair});
    times_.erase(known);
  } else if (completed == kNothingLeft) {
    return false;
  }
  if (completed != kNothingLeft) {
    own_.insert({completed, queue_pair});
    times_[queue_pair] = completed;
  }
  // Who waits for the second one is this queue pair, or waits for the first one, too.
  return earliest() != before || own_.size() < 2;
}

bool Gate::set_others(const GateState& others) {
  const bool news =
      others.earliest != others_.earliest || others.skew != others_.skew || others.goes_first != others_.goes_first;
  others_ = others;
  return news;
}

bool Gate::lets(std::uint32_t queue_pair, std::uint64_t left, std::uint64_t completed) const {
  auto first = own_.begin();
  if (first != own_.end() && first->second == queue_pair) ++first;
  if (first != own_.end() && first->first <= left) return false;
  if (others_.earliest == kNothingLeft) return true;
  if (left == kNothingLeft || others_.earliest == kNotYetKnown) return false;
  if (others_.earliest > left && others_.earliest - left > others_.skew) return true;
  // Of two that wait for each other, within the skew, the one that completed first goes. It ran first, too, if the
  // clocks differ by less than a round trip.
  if (completed == 0 || others_.skew == 0) return false;
  return completed != others_.earliest ? completed < others_.earliest : others_.goes_first != 0;
}

}  // namespace shadowib::ib2tcp
