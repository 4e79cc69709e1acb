#include "hooks/imager/restore/process_groups.h"

#include <algorithm>
#include <map>
#include <utility>

#include "hooks/imager/descriptors.h"

namespace shadowib {
namespace {

using Group = std::vector<MemberElsewhere>;

// The members of each process group, by their pid namespace.
Status collect_groups(const OpenedSet& set, std::vector<Group>* groups) {
  std::vector<std::set<std::uint32_t>> namespaces;
  SHADOWIB_TRY(split_members(set.tables, &namespaces));
  std::map<std::pair<std::size_t, std::int32_t>, Group> found;
  const auto add = [&](const MemberElsewhere& m) {
    const auto at = std::find_if(namespaces.begin(), namespaces.end(),
                                 [&m](const auto& members) { return members.contains(m.member); });
    if (at != namespaces.end()) found[{at - namespaces.begin(), m.group}].push_back(m);
  };
  for (const MemberImage& m : set.members)
    add({m.image.header.member, m.image.process.pid, m.image.process.process_group});
  for (const MemberElsewhere& m : set.elsewhere) add(m);
  for (auto& [where, members] : found) groups->push_back(std::move(members));
  return {};
}

void bind_group(const Group& group, const std::set<std::uint32_t>& ranks, const BondSink& sink) {
  const bool is_programs =
      std::any_of(group.begin(), group.end(), [](const MemberElsewhere& m) { return m.pid == m.group; });
  const auto no_rank = std::find_if(group.rbegin(), group.rend(),
                                    [&ranks](const MemberElsewhere& m) { return !ranks.contains(m.member); });
  if (!is_programs || no_rank == group.rend()) return;
  for (const MemberElsewhere& m : group)
    if (m.member != no_rank->member)
      sink({m.member, no_rank->member, [m, other = *no_rank] {
              return Status::of(
                  Code::kRefused, 0,
                  "member %u (pid %d) is in the process group %d with member %u (pid %d): they have to be "
                  "restarted together, on one machine",
                  m.member, m.pid, m.group, other.member, other.pid);
            }});
}

}  // namespace

Status find_process_bonds(const OpenedSet& set, const BondSink& sink) {
  SHADOWIB_TRY(find_family_bonds(set.tables, sink));
  std::vector<Group> groups;
  SHADOWIB_TRY(collect_groups(set, &groups));
  std::set<std::uint32_t> ranks;
  SHADOWIB_TRY(find_ranks(set.tables, &ranks));
  for (const Group& group : groups) bind_group(group, ranks, sink);
  return {};
}

Status judge_parted(const OpenedSet& set) {
  if (set.elsewhere.empty()) return {};
  std::set<std::uint32_t> here;
  for (const MemberImage& m : set.members) here.insert(m.image.header.member);
  Status parted;
  SHADOWIB_TRY(find_process_bonds(set, first_parted(here, &parted)));
  SHADOWIB_TRY(find_offset_bonds(set.tables, Streams::kOwn, first_parted(here, &parted)));
  return parted;
}

}  // namespace shadowib
