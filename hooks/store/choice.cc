#include "hooks/store/choice.h"

#include <algorithm>
#include <cerrno>
#include <map>

#include "hooks/store/mirror.h"
#include "hooks/store/parity_layout.h"

namespace shadowib {
namespace {

constexpr double kMiB = 1 << 20;

std::string mib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.0f MiB", bytes / kMiB);
  return text;
}

using Bytes = std::map<std::string, std::uint64_t>;

// A scheme on these hosts, in either tier.
struct Plan {
  Scheme scheme = Scheme::kSingle;
  int parities = 0;
  Bytes bytes;    // on each host for one set
  Status status;  // the hosts cannot keep it apart
};

Status fill(const StoreQuestion& question, Plan* plan) {
  Domains domains;
  for (const HostRoom& room : question.hosts) {
    domains[room.host] = room.domain;
    plan->bytes[room.host] = room.image_bytes;
  }
  const Bytes images = plan->bytes;
  if (plan->scheme == Scheme::kMirror) {
    std::map<std::string, std::string> partners;
    SHADOWIB_TRY(plan_mirror(domains, &partners));
    for (const auto& [from, to] : partners) plan->bytes[to] += images.at(from);
  }
  if (plan->scheme != Scheme::kParity) return {};
  std::vector<std::vector<std::string>> groups;
  SHADOWIB_TRY(plan_groups(domains, plan->parities, &groups));
  for (const std::vector<std::string>& group : groups) {
    std::uint64_t largest = 0;
    for (const std::string& host : group) largest = std::max(largest, images.at(host));
    const ParityShape shape{static_cast<int>(group.size()), plan->parities};
    for (const std::string& host : group)
      plan->bytes[host] += static_cast<std::uint64_t>(plan->parities) * segment_bytes(shape, largest);
  }
  return {};
}

std::vector<Plan> plans_of(const StoreQuestion& question) {
  std::vector<Plan> plans;
  const int parities = std::max(question.survive, 1);
  if (question.survive == 0) plans.push_back({.scheme = Scheme::kSingle});
  if (question.survive <= 1) plans.push_back({.scheme = Scheme::kMirror});
  if (question.survive < kMostGroupHosts) plans.push_back({.scheme = Scheme::kParity, .parities = parities});
  for (Plan& plan : plans) plan.status = fill(question, &plan);
  return plans;
}

// Besides the newest set, if that is there.
double sets_to_come(const StoreQuestion& question, Tier tier, int sets) {
  return sets > 1 && question.newest == tier ? sets - 1 : sets;
}

std::string central_shortage(const StoreQuestion& question, int all_sets) {
  double all = 0;
  for (const HostRoom& room : question.hosts) all += static_cast<double>(room.image_bytes);
  const double needed = sets_to_come(question, Tier::kCentral, all_sets) * all;
  const auto free = static_cast<double>(question.central_bytes);
  return needed <= free ? "" : "needs " + mib(needed) + ", " + mib(free) + " are free";
}

std::string near_shortage(const StoreQuestion& question, Tier tier, const Plan& plan, int all_sets) {
  const double sets = sets_to_come(question, tier, all_sets);
  if (!plan.status.ok()) return plan.status.text();
  const HostRoom* worst = nullptr;
  double most_missing = 0;
  for (const HostRoom& room : question.hosts) {
    const std::uint64_t free = tier == Tier::kMem ? room.mem_bytes : room.disk_bytes;
    const double missing = sets * static_cast<double>(plan.bytes.at(room.host)) - static_cast<double>(free);
    if (missing > most_missing) most_missing = missing, worst = &room;
  }
  if (worst == nullptr) return "";
  const std::uint64_t free = tier == Tier::kMem ? worst->mem_bytes : worst->disk_bytes;
  return "needs " + mib(sets * static_cast<double>(plan.bytes.at(worst->host))) + " on host " + worst->name + ", " +
         mib(static_cast<double>(free)) + " are free";
}

// Formulas (1), (2), (4), (5) and (6), for the host with the most to save. A parity goes to a host of its own, so M
// of them take M times the way.
double seconds_of(const StoreQuestion& question, const StoreSpec& store) {
  const StoreRates& rates = question.rates;
  double all = 0, most = 0;
  for (const HostRoom& room : question.hosts) {
    const auto bytes = static_cast<double>(room.image_bytes);
    all += bytes;
    most = std::max(most, bytes);
  }
  if (!store.is_near()) return rates.latency_s + rates.central * all;
  const double own = store.tier == Tier::kDisk ? rates.disk * most : 0;
  if (store.has_copies()) return rates.latency_s + rates.network * most + own;
  return rates.latency_s + store.parities * (rates.network + rates.coding) * most + own;
}

}  // namespace

std::vector<StoreOption> rank_stores(const StoreQuestion& question) {
  const std::vector<Plan> plans = plans_of(question);
  std::vector<StoreOption> options;
  for (const Tier tier : {Tier::kMem, Tier::kDisk})
    for (const Plan& plan : plans) {
      const StoreSpec store{tier, plan.scheme, plan.parities};
      options.push_back({store, seconds_of(question, store), near_shortage(question, tier, plan, 1),
                         near_shortage(question, tier, plan, 2).empty()});
      options.back().possible = plan.status.ok();
    }
  options.push_back(
      {{}, seconds_of(question, {}), central_shortage(question, 1), central_shortage(question, 2).empty()});
  for (StoreOption& option : options) {
    if (std::find(question.full.begin(), question.full.end(), option.store) == question.full.end()) continue;
    option.ran_out = true;
    option.has_room_for_next = false;
    option.shortage = "ran out of space";
  }
  std::stable_sort(options.begin(), options.end(),
                   [](const StoreOption& a, const StoreOption& b) { return a.seconds < b.seconds; });
  return options;
}

Status choose_store_of(const std::vector<StoreOption>& ranked, StoreSpec* store) {
  auto best = std::find_if(ranked.begin(), ranked.end(), [](const StoreOption& o) { return o.has_room_for_next; });
  if (best == ranked.end())
    best = std::find_if(ranked.begin(), ranked.end(), [](const StoreOption& o) { return o.has_room(); });
  if (best != ranked.end()) {
    *store = best->store;
    return {};
  }
  std::string shortages;
  for (const bool possible : {true, false})  // the text may be cut, and more room does not make the others possible
    for (const StoreOption& option : ranked)
      if (option.possible == possible)
        shortages += (shortages.empty() ? "" : "; ") + option.store.text() + " " + option.shortage;
  return Status::of(Code::kIo, ENOSPC, "no store has room: %.340s", shortages.c_str());
}

}  // namespace shadowib
