#include "perftest/fedsim/tests/replay.h"

#include <algorithm>
#include <cmath>

namespace shadowib::fedsim {
namespace {

constexpr std::uint64_t kStays = ~0ull;

std::vector<std::uint64_t> list_of(const federation::PerCluster& numbers) {
  return {numbers.of.begin(), numbers.of.begin() + numbers.clusters};
}

template <typename T>
std::string text_of(const std::vector<T>& list) {
  std::string text;
  for (const T& entry : list) text += " " + std::to_string(entry);
  return text;
}

}  // namespace

Replay::Replay(const Input& input, federation::Policy policy) : input_(input), policy_(policy) {
  const std::size_t clusters = input.topology.clusters();
  places_.resize(clusters);
  directions_.resize(clusters * clusters);
  for (Place& place : places_) place.depends.assign(clusters, 0);
  expected_.messages.assign(clusters, std::vector<unsigned>(clusters));
  expected_.forced.assign(clusters, 0);
  expected_.unforced.assign(clusters, 0);
  expected_.most_stored = expected_.most_logged = expected_.most_node_logged = std::vector<std::size_t>(clusters);
  if (input.timers.collection != kNever) next_collection_ = static_cast<std::uint64_t>(input.timers.collection);
}

void Replay::wrong(const TraceEvent& event, const std::string& what) {
  if (complaint_.empty()) complaint_ = what + ": " + encode_event(event);
}

void Replay::take(const TraceEvent& event) {
  collect_until(event.at_us);
  const bool of_a_cluster = event.kind != TraceEvent::Kind::kStart && event.kind != TraceEvent::Kind::kResume;
  if (of_a_cluster && event.incarnation != places_[event.cluster].incarnation) wrong(event, "incarnation");
  if (of_a_cluster && event.kind != TraceEvent::Kind::kCommit && event.sn != sn(event.cluster)) wrong(event, "SN");
  switch (event.kind) {
    case TraceEvent::Kind::kStart:
      return;
    case TraceEvent::Kind::kPost:
      return post(event);
    case TraceEvent::Kind::kHold:
      return hold(event);
    case TraceEvent::Kind::kDeliver:
      return deliver(event);
    case TraceEvent::Kind::kCommit:
      return commit(event);
    case TraceEvent::Kind::kResume:
      return resume(event);
  }
}

bool Replay::must_wait(std::size_t to, std::size_t from, const Message& message) const {
  if (sn(to) == 0) return true;
  if (policy_ == federation::Policy::kNone) return false;
  if (policy_ == federation::Policy::kIndex) return message.posted_sn > sn(to);
  bool waits = message.posted_sn > places_[to].depends[from];
  if (policy_ == federation::Policy::kVector)
    for (std::size_t i = 0; i < n(); ++i) waits |= i != to && message.vector[i] > places_[to].depends[i];
  return waits;
}

void Replay::raise(std::vector<std::uint64_t>* depends, std::size_t to, std::size_t from,
                   const Message& message) const {
  (*depends)[from] = std::max((*depends)[from], message.posted_sn);
  for (std::size_t i = 0; i < n() && policy_ == federation::Policy::kVector; ++i)
    if (i != to) (*depends)[i] = std::max((*depends)[i], message.vector[i]);
}

void Replay::post(const TraceEvent& event) {
  Direction& way = direction(event.cluster, event.peer);
  std::vector<std::uint64_t> vector = places_[event.cluster].depends;
  vector[event.cluster] = sn(event.cluster);
  if (sn(event.cluster) == 0) wrong(event, "posted before the first CLC");
  if (event.number != way.posted.size()) wrong(event, "number of a post");
  if (list_of(event.vector) != (policy_ == federation::Policy::kVector ? vector : std::vector<std::uint64_t>()))
    wrong(event, "vector of a post");
  if (event.member >= input_.topology.nodes[event.cluster]) wrong(event, "member of a post");
  way.posted.push_back({event.at_us, sn(event.cluster), event.member, vector});
  ++expected_.messages[event.cluster][event.peer];
  count_logs(event.cluster);
}

void Replay::count_logs(std::size_t from) {
  std::map<std::uint64_t, std::size_t> of_member;
  std::size_t all = 0;
  for (std::size_t to = 0; to < n(); ++to)
    for (std::size_t i = direction(from, to).logged; i < direction(from, to).posted.size(); ++i)
      ++all, ++of_member[direction(from, to).posted[i].member];
  expected_.most_logged[from] = std::max(expected_.most_logged[from], all);
  for (const auto& [member, count] : of_member)
    expected_.most_node_logged[from] = std::max(expected_.most_node_logged[from], count);
}

void Replay::hold(const TraceEvent& event) {
  Direction& way = direction(event.peer, event.cluster);
  if (event.number != way.delivered_in.size() || event.number >= way.posted.size())
    return wrong(event, "number held");
  if (!must_wait(event.cluster, event.peer, way.posted[event.number])) wrong(event, "held in vain");
  if (way.held) wrong(event, "held twice");
  way.held = true;
  way.held_at = event.at_us;
}

void Replay::deliver(const TraceEvent& event) {
  Direction& way = direction(event.peer, event.cluster);
  if (event.number != way.delivered_in.size() || event.number >= way.posted.size())
    return wrong(event, "number delivered");
  const Message& message = way.posted[event.number];
  if (must_wait(event.cluster, event.peer, message)) wrong(event, "delivered too early");
  const std::int64_t least =
      input_.topology.between[event.peer][event.cluster].takes(input_.application.message_bytes);
  if (event.at_us < message.posted_at + static_cast<std::uint64_t>(least))
    wrong(event, "delivered before it can arrive");
  raise(&places_[event.cluster].depends, event.cluster, event.peer, message);
  way.delivered_in.push_back(event.sn);
  way.held = false;
  ++expected_.delivered;
}

void Replay::commit(const TraceEvent& event) {
  Place& place = places_[event.cluster];
  Clc clc{event.sn, event.at_us, place.depends, place.depends};
  std::uint64_t next = sn(event.cluster) + 1, asked_at = 0;
  bool forced = false;
  for (std::size_t from = 0; from < n(); ++from) {
    Direction& way = direction(from, event.cluster);
    if (!way.held) continue;
    const Message& message = way.posted[way.delivered_in.size()];
    raise(&clc.after, event.cluster, from, message);
    if (policy_ == federation::Policy::kIndex) next = std::max(next, message.posted_sn);
    forced = true;
    asked_at = std::max(asked_at, way.held_at);
    way.held = false;
  }
  if (event.sn != next) wrong(event, "number of a CLC");
  if (event.record.forced != forced) wrong(event, "forced or not");
  if (list_of(event.record.before) != clc.depends) wrong(event, "before");
  if (list_of(event.record.after) != clc.after) wrong(event, "after");
  const std::uint64_t takes = static_cast<std::uint64_t>(
      3 * std::llround(input_.topology.inside[event.cluster].latency_us) + input_.timers.clc_takes);
  const Time timer = input_.timers.clc[event.cluster];
  if (forced && event.at_us != asked_at + takes) wrong(event, "a forced CLC is not at once");
  const bool first_timer = place.clcs.size() == 1 && place.incarnation == 0 && !input_.timers.in_step;
  if (!forced && !place.clcs.empty() && !first_timer &&
      (timer == kNever || event.at_us < place.timer_from + static_cast<std::uint64_t>(timer) + takes))
    wrong(event, "an unforced CLC before its time");
  if (timer != kNever && event.at_us > place.timer_from + static_cast<std::uint64_t>(timer) + 2 * takes &&
      !place.clcs.empty())
    wrong(event, "a CLC after its time");
  place.timer_from = event.at_us;
  place.depends = clc.after;
  place.clcs.push_back(clc);
  ++(forced ? expected_.forced : expected_.unforced)[event.cluster];
  expected_.most_stored[event.cluster] = std::max(expected_.most_stored[event.cluster], place.clcs.size());
}

std::vector<std::uint64_t> Replay::line_of(std::size_t failed) const {
  std::vector<std::uint64_t> to(n(), kStays);
  to[failed] = places_[failed].clcs.back().sn;
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t j = 0; j < n(); ++j)
      for (std::size_t i = 0; i < n(); ++i) {
        if (i == j || to[i] == kStays) continue;
        // The oldest interval of j that ended with, or has, D of i not below.
        const std::vector<Clc>& clcs = places_[j].clcs;
        for (std::size_t k = 0; k < clcs.size(); ++k) {
          const std::vector<std::uint64_t>& end = k + 1 < clcs.size() ? clcs[k + 1].depends : places_[j].depends;
          if (end[i] < to[i] || clcs[k].sn >= to[j]) continue;
          to[j] = clcs[k].sn;
          changed = true;
          break;
        }
      }
  }
  return to;
}

void Replay::resume(const TraceEvent& event) {
  const std::vector<std::uint64_t> to = line_of(event.failed.at(0));
  ++expected_.recoveries;
  for (std::size_t i = 0; i < n(); ++i) {
    if (event.stays[i] != (to[i] == kStays)) wrong(event, "who goes back");
    if (event.sns[static_cast<unsigned>(i)] != (to[i] == kStays ? sn(i) : to[i])) wrong(event, "the line");
    if (event.stays[i] != event.running[i].has_value()) wrong(event, "who answers");
    if (event.running[i] && list_of(*event.running[i]) != places_[i].depends) wrong(event, "an answer");
    places_[i].incarnation += to[i] != kStays;
    if (event.incarnations[static_cast<unsigned>(i)] != places_[i].incarnation) wrong(event, "incarnations");
    for (std::size_t j = 0; j < n(); ++j) {
      Direction& way = direction(i, j);
      way.held = false;
      while (!way.posted.empty() && way.posted.back().posted_sn >= to[i]) way.posted.pop_back();
      while (!way.delivered_in.empty() && way.delivered_in.back() >= to[j]) way.delivered_in.pop_back();
      if (way.delivered_in.size() > way.posted.size()) wrong(event, "a message without sender");
      if (way.logged > way.delivered_in.size()) wrong(event, "a message in no log");
      if (to[i] != kStays || to[j] != kStays) expected_.resent += way.posted.size() - way.delivered_in.size();
    }
    if (to[i] == kStays) continue;
    ++expected_.clusters_back;
    Place& place = places_[i];
    while (place.clcs.back().sn > to[i]) place.clcs.pop_back();
    expected_.lost_s += static_cast<double>(event.at_us - place.clcs.back().at) / 1e6;
    place.timer_from = event.at_us;
  }
  for (std::size_t i = 0; i < n(); ++i) {
    if (to[i] == kStays) continue;
    places_[i].depends = places_[i].clcs.back().after;
    for (std::size_t j = 0; j < n(); ++j) places_[i].depends[j] = std::min(places_[i].depends[j], sn(j));
  }
}

void Replay::collect_until(std::uint64_t at) {
  for (; next_collection_ > 0 && at > next_collection_;
       next_collection_ += static_cast<std::uint64_t>(input_.timers.collection)) {
    SimulationResult::Collection counts;
    std::vector<std::uint64_t> oldest(n(), kStays);
    for (std::size_t failed = 0; failed < n(); ++failed) {
      const std::vector<std::uint64_t> to = line_of(failed);
      for (std::size_t i = 0; i < n(); ++i) oldest[i] = std::min(oldest[i], to[i]);
    }
    for (std::size_t i = 0; i < n(); ++i) {
      counts.before.push_back(places_[i].clcs.size());
      std::erase_if(places_[i].clcs, [&](const Clc& clc) { return clc.sn < oldest[i]; });
      counts.after.push_back(places_[i].clcs.size());
      for (std::size_t from = 0; from < n(); ++from) {
        Direction& way = direction(from, i);
        way.logged = static_cast<std::size_t>(std::count_if(way.delivered_in.begin(), way.delivered_in.end(),
                                                            [&](std::uint64_t in) { return in < oldest[i]; }));
      }
    }
    expected_.collections.push_back(counts);
  }
}

std::string Replay::compare(const SimulationResult& result) {
  if (!complaint_.empty()) return complaint_;
  collect_until(static_cast<std::uint64_t>(input_.application.total) + 1);
  for (std::size_t i = 0; i < n(); ++i) {
    const auto differs = [&](const char* what, std::uint64_t ours, std::uint64_t theirs) {
      if (ours != theirs && complaint_.empty())
        complaint_ = std::string(what) + " of cluster " + std::to_string(i) + ": " + std::to_string(theirs) +
                     " instead of " + std::to_string(ours);
    };
    differs("forced CLCs", expected_.forced[i], result.forced[i]);
    differs("unforced CLCs", expected_.unforced[i], result.unforced[i]);
    differs("stored CLCs", expected_.most_stored[i], result.most_stored[i]);
    differs("logged messages", expected_.most_logged[i], result.most_logged[i]);
    differs("logged messages by a node", expected_.most_node_logged[i], result.most_node_logged[i]);
    for (std::size_t j = 0; j < n(); ++j) {
      if (i == j) continue;
      differs("posted messages", expected_.messages[i][j], result.messages[i][j]);
      // Whatever was posted a second before the end has arrived.
      const Direction& way = direction(i, j);
      if (way.delivered_in.size() < way.posted.size() && way.posted[way.delivered_in.size()].posted_at + 1'000'000 <
                                                             static_cast<std::uint64_t>(input_.application.total))
        differs("delivered messages", way.posted.size(), way.delivered_in.size());
    }
    differs("recoveries", expected_.recoveries, result.recoveries);
    differs("clusters that went back", expected_.clusters_back, result.clusters_back);
    differs("milliseconds lost", static_cast<std::uint64_t>(expected_.lost_s * 1000 + 0.5),
            static_cast<std::uint64_t>(result.lost_s * 1000 + 0.5));
    differs("messages sent again", expected_.resent, result.resent);
    differs("deliveries", expected_.delivered, result.delivered);
    differs("collections", expected_.collections.size(), result.collections.size());
  }
  for (std::size_t k = 0; k < expected_.collections.size() && complaint_.empty(); ++k) {
    const auto &ours = expected_.collections[k], &theirs = result.collections[k];
    if (ours.before != theirs.before || ours.after != theirs.after)
      complaint_ = "collection " + std::to_string(k) + ":" + text_of(theirs.before) + " to" + text_of(theirs.after) +
                   " instead of" + text_of(ours.before) + " to" + text_of(ours.after);
  }
  return complaint_;
}

}  // namespace shadowib::fedsim
