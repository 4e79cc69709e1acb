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

// What a scheme puts on each host for one set.
Status bytes_of(const StoreQuestion& question, const StoreSpec& store, Bytes* bytes) {
  Domains domains;
  for (const HostRoom& room : question.hosts) {
    domains[room.host] = room.domain;
    (*bytes)[room.host] = room.image_bytes;
  }
  const Bytes images = *bytes;
  if (store.has_copies()) {
    std::map<std::string, std::string> partners;
    SHADOWIB_TRY(plan_mirror(domains, &partners));
    for (const auto& [from, to] : partners) (*bytes)[to] += images.at(from);
  }
  if (!store.has_parity()) return {};
  std::vector<std::vector<std::string>> groups;
  SHADOWIB_TRY(plan_groups(domains, store.parities, &groups));
  for (const std::vector<std::string>& group : groups) {
    std::uint64_t largest = 0;
    for (const std::string& host : group) largest = std::max(largest, images.at(host));
    const ParityShape shape{static_cast<int>(group.size()), store.parities};
    for (const std::string& host : group)
      (*bytes)[host] += static_cast<std::uint64_t>(store.parities) * segment_bytes(shape, largest);
  }
  return {};
}

std::string shortage_of(const StoreQuestion& question, const StoreSpec& store, int all_sets) {
  const double sets = all_sets > 1 && question.newest == store.tier ? all_sets - 1 : all_sets;
  if (!store.is_near()) {
    double all = 0;
    for (const HostRoom& room : question.hosts) all += static_cast<double>(room.image_bytes);
    const auto free = static_cast<double>(question.central_bytes);
    return sets * all <= free ? "" : "needs " + mib(sets * all) + ", " + mib(free) + " are free";
  }
  Bytes bytes;
  if (const Status status = bytes_of(question, store, &bytes); !status.ok()) return status.text();
  const HostRoom* worst = nullptr;
  double most_missing = 0;
  for (const HostRoom& room : question.hosts) {
    const std::uint64_t free = store.tier == Tier::kMem ? room.mem_bytes : room.disk_bytes;
    const double missing = sets * static_cast<double>(bytes.at(room.host)) - static_cast<double>(free);
    if (missing > most_missing) most_missing = missing, worst = &room;
  }
  if (worst == nullptr) return "";
  const std::uint64_t free = store.tier == Tier::kMem ? worst->mem_bytes : worst->disk_bytes;
  return "needs " + mib(sets * static_cast<double>(bytes.at(worst->host))) + " on host " + worst->name + ", " +
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

std::vector<StoreOption> rank_stores(const StoreQuestion& question, int sets) {
  std::vector<StoreSpec> stores;
  for (const Tier tier : {Tier::kMem, Tier::kDisk}) {
    if (question.survive == 0) stores.push_back({tier, Scheme::kSingle, 0});
    if (question.survive <= 1) stores.push_back({tier, Scheme::kMirror, 0});
    if (question.survive < kMostGroupHosts) stores.push_back({tier, Scheme::kParity, std::max(question.survive, 1)});
  }
  stores.push_back({});
  std::vector<StoreOption> options;
  options.reserve(stores.size());
  for (const StoreSpec& store : stores)
    options.push_back({store, seconds_of(question, store), shortage_of(question, store, sets)});
  std::stable_sort(options.begin(), options.end(),
                   [](const StoreOption& a, const StoreOption& b) { return a.seconds < b.seconds; });
  return options;
}

Status choose_store_for(const StoreQuestion& question, StoreSpec* store) {
  std::string shortages;
  for (int sets = 2; sets > 0; --sets) {
    shortages.clear();
    for (const StoreOption& option : rank_stores(question, sets)) {
      if (option.has_room()) {
        *store = option.store;
        return {};
      }
      shortages += (shortages.empty() ? "" : "; ") + option.store.text() + " " + option.shortage;
    }
  }
  return Status::of(Code::kIo, ENOSPC, "no store has room: %.340s", shortages.c_str());
}

}  // namespace shadowib
