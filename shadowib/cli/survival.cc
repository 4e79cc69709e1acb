#include "shadowib/cli/survival.h"

#include <algorithm>

namespace shadowib::cli {
namespace {

PieceDomains domains_of(const FileHolders& holders, const Domains& domains) {
  PieceDomains where;
  for (const auto& [file, hosts] : holders)
    for (const std::string& host : hosts)
      if (const auto at = domains.find(host); at != domains.end()) where[file].insert(at->second);
  return where;
}

std::size_t count_of(const std::string& file, const PieceDomains& where) {
  const auto at = where.find(file);
  return at == where.end() ? 0 : at->second.size();
}

}  // namespace

bool is_per_group(const SetPlacement& placement) { return placement.groups.size() > 1; }

std::string losses_text(int hosts, bool per_group) {
  return std::to_string(hosts) + (hosts == 1 ? " host" : " hosts") + (per_group ? " a group" : "");
}

std::string survival_text(const SetPlacement& placement) {
  const int hosts = survival_of(placement.store).hosts;
  return hosts == kAllHosts ? "all but DIR" : losses_text(hosts, is_per_group(placement));
}

Json survival_json(const SetPlacement& placement) {
  const Survival survival = survival_of(placement.store);
  return {{"hosts", survival.hosts == kAllHosts ? Json("all") : Json(survival.hosts)},
          {"per", is_per_group(placement) ? "group" : "set"},
          {"power_failure", survival.power_failure}};
}

int survived_losses(const SetManifest& manifest, const FileHolders& holders, const Domains& domains) {
  const PieceDomains where = domains_of(holders, domains);
  int least = survival_of(manifest.placement.store).hosts;
  if (manifest.placement.store.has_copies())
    for (const SetMember& member : manifest.members)
      least = std::min(least, static_cast<int>(count_of(member.file, where)) - 1);
  for (const ParityGroup& group : manifest.placement.groups)
    least = std::min(least, shadowib::survived_losses(group, where));
  return least;
}

const char* state_name(Redundancy::State state) {
  static constexpr const char* kNames[] = {"whole", "degraded", "lost", "not known"};
  return kNames[static_cast<int>(state)];
}

Redundancy judge_redundancy(const SetManifest& manifest, const FileHolders& holders, const Domains& domains,
                            bool all_answered) {
  Redundancy redundancy;
  const PieceDomains where = domains_of(holders, domains);
  const auto expect = [&](const std::string& file, std::size_t copies) {
    redundancy.pieces += copies;
    redundancy.missing += copies - std::min(copies, count_of(file, where));
  };
  if (manifest.placement.store.has_copies())
    for (const SetMember& member : manifest.members) expect(member.file, kMirrorCopies);
  for (const ParityGroup& group : manifest.placement.groups)
    for (const Piece& piece : group.pieces()) expect(piece.file, 1);
  redundancy.survives = survived_losses(manifest, holders, domains);
  if (redundancy.survives >= survival_of(manifest.placement.store).hosts)
    redundancy.state = Redundancy::State::kWhole;
  else if (!all_answered)
    redundancy.state = Redundancy::State::kNotKnown;
  else
    redundancy.state = redundancy.survives < 0 ? Redundancy::State::kLost : Redundancy::State::kDegraded;
  return redundancy;
}

}  // namespace shadowib::cli
