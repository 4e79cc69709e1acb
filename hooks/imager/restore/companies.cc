#include "hooks/imager/restore/companies.h"

#include <algorithm>
#include <map>
#include <vector>

#include "hooks/imager/restart.h"
#include "hooks/imager/restore/process_groups.h"
#include "hooks/imager/restore/shared_memory.h"
#include "hooks/imager/restore/system_v.h"

namespace shadowib {
namespace {

// Members by the lowest of those whom bonds connect them with.
class Companies {
 public:
  void add(std::uint32_t member) { lower_.emplace(member, member); }
  void bind(std::uint32_t one, std::uint32_t other) {
    one = lowest(one), other = lowest(other);
    if (one != other) lower_[std::max(one, other)] = std::min(one, other);
  }
  std::uint32_t lowest(std::uint32_t member) {
    while (lower_.at(member) != member) member = lower_[member] = lower_.at(lower_.at(member));
    return member;
  }

 private:
  std::map<std::uint32_t, std::uint32_t> lower_;
};

}  // namespace

Status find_bonds(const OpenedSet& set, const BondSink& sink) {
  SHADOWIB_TRY(find_memory_bonds(set, sink));
  SHADOWIB_TRY(find_system_v_bonds(set, sink));
  SHADOWIB_TRY(find_descriptor_bonds(set.tables, sink));
  return find_process_bonds(set, sink);
}

Status find_companies(const SetManifest& manifest, std::vector<std::vector<std::uint32_t>>* companies) {
  Companies found;
  for (const SetMember& m : manifest.members) found.add(m.index);
  if (manifest.members.empty()) return {};
  OpenedSet set;
  Status status = manifest.placement.store.is_near() ? open_tables(manifest, &set)
                                                     : open_members(manifest, {manifest.members.front().index}, &set);
  if (status.ok()) status = find_bonds(set, [&found](const Bond& bond) { found.bind(bond.one, bond.other); });
  close_members(&set);
  SHADOWIB_TRY(status);
  std::map<std::uint32_t, std::vector<std::uint32_t>> by_lowest;
  for (const SetMember& m : manifest.members) by_lowest[found.lowest(m.index)].push_back(m.index);
  for (auto& [lowest, members] : by_lowest) companies->push_back(std::move(members));
  return {};
}

}  // namespace shadowib
