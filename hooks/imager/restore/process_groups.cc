#include "hooks/imager/restore/process_groups.h"

#include <algorithm>

#include "hooks/imager/descriptors.h"

namespace shadowib {

Status judge_process_groups(const OpenedSet& set) {
  if (set.elsewhere.empty()) return {};
  std::set<std::uint32_t> here;
  for (const MemberImage& m : set.members) here.insert(m.image.header.member);
  SHADOWIB_TRY(match_families_apart(set.tables, here));
  std::vector<std::set<std::uint32_t>> namespaces;
  SHADOWIB_TRY(split_members(set.tables, &namespaces));
  std::set<std::uint32_t> ranks;
  SHADOWIB_TRY(find_ranks(set.tables, &ranks));
  const auto share_numbers = [&namespaces](std::uint32_t one, std::uint32_t other) {
    return std::any_of(namespaces.begin(), namespaces.end(),
                       [=](const auto& members) { return members.contains(one) && members.contains(other); });
  };
  std::vector<MemberElsewhere> all = set.elsewhere;
  for (const MemberImage& m : set.members)
    all.push_back({m.image.header.member, m.image.process.pid, m.image.process.process_group});
  for (const MemberImage& m : set.members)
    for (const MemberElsewhere& other : set.elsewhere) {
      const std::uint32_t member = m.image.header.member;
      const pid_t group = m.image.process.process_group;
      const bool leads = std::any_of(all.begin(), all.end(), [&](const MemberElsewhere& leader) {
        return leader.pid == group && share_numbers(member, leader.member) &&
               !(ranks.contains(leader.member) && ranks.contains(member) && ranks.contains(other.member));
      });
      if (other.group != group || !leads || !share_numbers(member, other.member)) continue;
      return Status::of(Code::kRefused, 0,
                        "member %u (pid %d) is in the process group %d with member %u (pid %d): they have to be "
                        "restarted together, on one machine",
                        member, m.image.process.pid, group, other.member, other.pid);
    }
  return {};
}

}  // namespace shadowib
