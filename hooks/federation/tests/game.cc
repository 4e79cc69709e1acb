#include "hooks/federation/tests/game.h"

#include <algorithm>

namespace shadowib::federation {
namespace {

std::string text_of(const Places& places) {
  std::string text;
  for (std::size_t place : places) text += " " + std::to_string(place);
  return text;
}

Places places_of(const RecoveryLine& line, const std::vector<ClusterHistory>& histories) {
  Places places;
  for (std::size_t i = 0; i < histories.size(); ++i)
    places.push_back(line.clusters[i].stays ? histories[i].kept.size() : line.clusters[i].record);
  return places;
}

// The state at `place` has what happened in interval `sn`.
bool has(const ClusterHistory& history, std::size_t place, Sn sn) {
  return place == history.kept.size() || sn < history.kept[place].sn;
}

std::size_t furthest_on(const ClusterHistory& history) {
  std::size_t place = history.kept.size();
  if (!history.running) --place;
  while (history.bound && (place == history.kept.size() || history.kept[place].sn > *history.bound)) --place;
  return place;
}

}  // namespace

Game::Game(std::uint64_t seed, Options options) : random_(seed), options_(options), kept_(options.clusters) {
  for (unsigned i = 0; i < options.clusters; ++i)
    running_.push_back({i, 0, PerCluster(options.clusters), PerCluster(options.clusters)});
}

std::vector<ClusterHistory> Game::histories() const {
  std::vector<ClusterHistory> all;
  for (unsigned i = 0; i < options_.clusters; ++i) all.push_back({kept_[i], running_[i], {}});
  return all;
}

bool Game::consistent(const std::vector<ClusterHistory>& histories, const Places& places) const {
  const auto orphan = [&](unsigned from, unsigned to, Sn posted, Sn delivered) {
    return has(histories[to], places[to], delivered) && !has(histories[from], places[from], posted);
  };
  for (const Message& m : messages_)
    if (m.delivered && orphan(m.from, m.to, m.stamp.sn, *m.delivered)) return false;
  for (const Promise& p : promises_)
    if (orphan(p.from, p.to, p.posted, p.interval)) return false;
  return true;
}

std::optional<Places> Game::brute_force(const std::vector<ClusterHistory>& histories) const {
  Places most;
  for (const ClusterHistory& history : histories) most.push_back(furthest_on(history));
  Places places(histories.size(), 0);
  std::optional<Places> best;
  for (;;) {
    if (consistent(histories, places)) {
      if (!best) best = places;
      for (std::size_t i = 0; i < places.size(); ++i) (*best)[i] = std::max((*best)[i], places[i]);
    }
    std::size_t i = 0;
    while (i < places.size() && places[i] == most[i]) places[i++] = 0;
    if (i == places.size()) break;
    ++places[i];
  }
  return best;
}

std::string Game::play(int moves, Met* met) {
  for (int i = 0; i < moves; ++i)
    if (std::string wrong = move(met); !wrong.empty()) return "move " + std::to_string(i) + ": " + wrong;
  return {};
}

std::string Game::move(Met* met) {
  const unsigned cluster = any(options_.clusters);
  switch (any(16)) {
    case 0:
    case 1:
      return kept_[cluster].size() < 6 ? take_clc(cluster, {}) : collect_all(met);
    case 2:
      return any(3) == 0 ? fail(met) : std::string();
    case 3:
      return any(4) == 0 ? collect_all(met) : std::string();
    case 4:
    case 5:
    case 6:
    case 7:
    case 8: {
      if (messages_.size() > 60) return {};
      if (running_[cluster].sn == 0)
        if (std::string wrong = take_clc(cluster, {}); !wrong.empty()) return wrong;
      const unsigned to = (cluster + 1 + any(options_.clusters - 1)) % options_.clusters;
      messages_.push_back({cluster, to, stamp_of(running_[cluster]), {}});
      return {};
    }
    default:
      return arrive(cluster);
  }
}

// Whatever is under way to `to` may come first: a flow has several queue pairs.
std::string Game::arrive(unsigned to) {
  std::vector<std::size_t> waiting;
  for (std::size_t i = 0; i < messages_.size(); ++i)
    if (messages_[i].to == to && !messages_[i].delivered) waiting.push_back(i);
  if (waiting.empty()) return {};
  std::shuffle(waiting.begin(), waiting.end(), random_);
  Message* first = &messages_[waiting[0]];
  const Arrival arrival = judge(options_.policy, running_[to], first->stamp);
  if (arrival == Arrival::kDead) return "a living message is called dead";
  if (arrival == Arrival::kDeliver || (options_.at_whim && running_[to].sn > 0 && any(3) == 0)) return deliver(first);
  if (kept_[to].size() >= 8) return {};
  waiting.resize(1 + any(static_cast<unsigned>(waiting.size())));
  std::erase_if(waiting, [&](std::size_t i) {
    return judge(options_.policy, running_[to], messages_[i].stamp) != Arrival::kHold;
  });
  if (std::string wrong = take_clc(to, waiting); !wrong.empty()) return wrong;
  for (std::size_t i : waiting) {
    if (judge(options_.policy, running_[to], messages_[i].stamp) != Arrival::kDeliver)
      return "what a CLC was taken for is not delivered after it";
    if (any(4) == 0) continue;  // a failure may come first
    if (std::string wrong = deliver(&messages_[i]); !wrong.empty()) return wrong;
  }
  return {};
}

std::string Game::take_clc(unsigned cluster, const std::vector<std::size_t>& held) {
  std::vector<Stamp> stamps;
  for (std::size_t i : held) stamps.push_back(messages_[i].stamp);
  ClcRecord record;
  if (!next_clc(options_.policy, running_[cluster], stamps, &record)) return "no next CLC";
  if (record.sn <= running_[cluster].sn) return "a CLC has no number above the last one";
  if (options_.policy != Policy::kIndex && record.sn != running_[cluster].sn + 1) return "a number is left out";
  if (record.forced != !held.empty()) return "a CLC does not know whether it is forced";
  record.claim = ClcRecord::Claim::kCommitted;
  kept_[cluster].push_back(record);
  commit(&running_[cluster], record);
  promise(cluster, record.before, record.after);
  return check_dependencies(cluster);
}

void Game::promise(unsigned cluster, const PerCluster& beyond, const PerCluster& depends) {
  for (unsigned i = 0; i < options_.clusters; ++i)
    if (depends[i] > beyond[i]) promises_.push_back({i, cluster, depends[i], running_[cluster].sn});
}

std::string Game::deliver(Message* message) {
  message->delivered = running_[message->to].sn;
  note_delivered(options_.policy, &running_[message->to], message->stamp);
  // What the whole of D brings is known of the sender, whose own deliveries are among the messages.
  if (options_.policy == Policy::kVector)
    for (unsigned i = 0; i < options_.clusters; ++i)
      if (i != message->to && message->stamp.vector[i] > 0)
        promises_.push_back({i, message->to, message->stamp.vector[i], *message->delivered});
  return check_dependencies(message->to);
}

// D is the greatest SN of what was delivered or promised, no more and no less.
std::string Game::check_dependencies(unsigned cluster) const {
  PerCluster expected(options_.clusters);
  for (const Message& m : messages_)
    if (m.to == cluster && m.delivered) expected[m.from] = std::max(expected[m.from], m.stamp.sn);
  for (const Promise& p : promises_)
    if (p.to == cluster) expected[p.from] = std::max(expected[p.from], p.posted);
  return running_[cluster].depends == expected ? "" : "D is not what was delivered";
}

std::string Game::compare(const std::vector<ClusterHistory>& histories, RecoveryLine* line, Met* met) const {
  ++met->lines;
  const std::optional<Places> best = brute_force(histories);
  const Status found = find_line(histories, line);
  if (!found) {
    ++met->lost;
    if (found.code() != Code::kNotFound) return std::string("find_line: ") + found.text();
    return best ? "no line is found, and there is" + text_of(*best) : "";
  }
  if (!best) return "a line is found, and no combination is consistent";
  const Places places = places_of(*line, histories);
  if (places != *best) return "the line is" + text_of(places) + ", and the latest one" + text_of(*best);
  if (!consistent(histories, places)) return "the line is not consistent";
  return {};
}

std::string Game::fail(Met* met) {
  std::vector<ClusterHistory> found = histories();
  bool failed = false;
  for (unsigned i = 0; i < options_.clusters; ++i)
    if (!found[i].kept.empty() && any(options_.clusters) == 0) found[i].running.reset(), failed = true;
  if (!failed) return {};
  RecoveryLine line;
  if (std::string wrong = compare(found, &line, met); !wrong.empty()) return wrong;
  if (line.clusters.empty()) return {};
  if (any(3) == 0) {  // another failure before the line is reached: what is published binds
    ++met->bounds;
    for (unsigned i = 0; i < options_.clusters; ++i)
      if (!line.clusters[i].stays)
        found[i].bound = line.clusters[i].sn;
      else if (!found[i].kept.empty() && any(2) == 0)
        found[i].running.reset();
    RecoveryLine second;
    if (std::string wrong = compare(found, &second, met); !wrong.empty()) return "bound: " + wrong;
    line = second;
  }
  return reach(line, found, met);
}

std::string Game::reach(const RecoveryLine& line, const std::vector<ClusterHistory>& found, Met* met) {
  const PerCluster sns = line.sns(found);
  int back = 0, failed = 0;
  PerCluster incarnations = running_[0].incarnations;
  for (unsigned i = 0; i < options_.clusters; ++i) {
    failed += !found[i].running;
    if (!line.clusters[i].stays) ++incarnations[i], ++back;
  }
  met->cascades += back > failed;
  met->stays += back < static_cast<int>(options_.clusters);
  const auto undone = [&](unsigned cluster, Sn sn) { return !line.clusters[cluster].stays && sn >= sns[cluster]; };
  std::erase_if(messages_, [&](const Message& m) { return undone(m.from, m.stamp.sn); });
  std::erase_if(promises_, [&](const Promise& p) { return undone(p.to, p.interval); });
  for (Message& m : messages_) {
    if (m.delivered && undone(m.to, *m.delivered)) m.delivered.reset(), ++met->resent;
    if (incarnations[m.from] == running_[m.from].incarnations[m.from]) continue;
    if (judge(options_.policy, running_[m.to], m.stamp) == Arrival::kDead) return "a message was dead before";
    m.stamp.incarnation = incarnations[m.from];  // from the log of the restored image
  }
  for (unsigned i = 0; i < options_.clusters; ++i) {
    if (line.clusters[i].stays) {
      running_[i].incarnations = incarnations;
    } else {
      const ClcRecord record = kept_[i][line.clusters[i].record];
      kept_[i].resize(line.clusters[i].record + 1);
      go_back(&running_[i], record, sns, incarnations);
      promise(i, record.before, running_[i].depends);
      for (unsigned j = 0; j < options_.clusters; ++j)
        if (running_[i].depends[j] > sns[j]) return "D is above the SN that a cluster went back to";
    }
    if (std::string wrong = check_dependencies(i); !wrong.empty()) return "after a recovery: " + wrong;
  }
  return {};
}

// Each set of failures at once: the furthest places of all.
std::string Game::collect_all(Met* met) {
  std::vector<ClusterHistory> all = histories();
  if (std::any_of(all.begin(), all.end(), [](const ClusterHistory& h) { return h.kept.empty(); })) return {};
  ++met->collections;
  ClcCollection collection;
  const Status status = find_collection(all, running_[0].incarnations, &collection);
  Places furthest;
  for (const ClusterHistory& history : all) furthest.push_back(history.kept.size());
  for (unsigned set = 1; set < 1u << options_.clusters; ++set) {
    std::vector<ClusterHistory> failed = all;
    for (unsigned i = 0; i < options_.clusters; ++i)
      if (set >> i & 1) failed[i].running.reset();
    const std::optional<Places> best = brute_force(failed);
    if (!best) return status.code() == Code::kNotFound ? "" : "a failure has no line, and CLCs are collected";
    for (unsigned i = 0; i < options_.clusters; ++i) furthest[i] = std::min(furthest[i], (*best)[i]);
  }
  if (!status) return std::string("find_collection: ") + status.text();
  for (unsigned i = 0; i < options_.clusters; ++i)
    if (all[i].kept[furthest[i]].sn != collection.oldest[i])
      return "cluster " + std::to_string(i) + " keeps " + std::to_string(collection.oldest[i]) + ", and needs " +
             std::to_string(all[i].kept[furthest[i]].sn);
  PerCluster past = running_[0].incarnations;
  ++past[any(options_.clusters)];
  if (collect(collection, past, &all) != 0) return "a collection of the past collects";
  met->collected += static_cast<int>(collect(collection, running_[0].incarnations, &all));
  for (unsigned i = 0; i < options_.clusters; ++i) {
    if (all[i].kept.front().sn != collection.oldest[i]) return "a collection leaves too much, or takes too much";
    kept_[i] = all[i].kept;
  }
  return {};
}

}  // namespace shadowib::federation
