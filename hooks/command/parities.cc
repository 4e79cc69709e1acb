// Parities of near images, made before a set is committed.
#include <functional>
#include <thread>
#include <vector>

#include "hooks/command/copies.h"
#include "hooks/store/keeper_client.h"
#include "hooks/store/parity_layout.h"

namespace shadowib {
namespace {

// One host's part.
struct Part {
  std::size_t group = 0, row = 0;
  KeeperInfo keeper;
  SegmentHashes hashes;
  Piece parity;
  Status status;
};

std::vector<ParityGroup> groups_of(const SetManifest& manifest, const NearHosts& hosts,
                                   const std::vector<std::vector<std::string>>& plan, int losses) {
  std::vector<ParityGroup> groups;
  for (const std::vector<std::string>& names : plan) {
    const std::string number = std::to_string(groups.size());
    ParityGroup& group = groups.emplace_back();
    group.losses = losses;
    for (const std::string& name : names) {
      const std::string file = "parity-" + number + "-" + std::to_string(group.hosts.size()) + ".par";
      ParityGroup::Host& host = group.hosts.emplace_back();
      host.host.id = name;
      host.parity = {file, 0, kNoHash};
      for (const SetMember& member : manifest.members)
        if (hosts.host_of.at(member.index) == name) {
          host.images.push_back({member.file, member.bytes, member.xxh3});
          host.host.name = member.host;
        }
    }
    group.set_sizes();
  }
  return groups;
}

// All at the same time. The first failure, with the host's name before it.
Status each(std::vector<Part>& parts, const std::vector<ParityGroup>& groups,
            const std::function<Status(Part&)>& act) {
  std::vector<std::thread> threads;
  for (Part& part : parts) threads.emplace_back([&] { part.status = act(part); });
  for (std::thread& thread : threads) thread.join();
  for (const Part& part : parts)
    if (!part.status.ok())
      return Status::of(part.status.code(), part.status.error(), "no parities on host %.60s: %.280s",
                        groups[part.group].hosts[part.row].host.name.c_str(), part.status.text());
  return {};
}

}  // namespace

Status make_parities(const std::string& directory, const NearHosts& hosts, std::int64_t deadline_ns,
                     SetManifest* manifest) {
  std::vector<std::vector<std::string>> plan;
  SetPlacement& placement = manifest->placement;
  SHADOWIB_TRY(plan_groups(hosts.domains, placement.store.parities, &plan));
  std::vector<ParityGroup> groups = groups_of(*manifest, hosts, plan, placement.store.parities);
  const NearSetId set{placement.place, manifest->job, manifest->set_id};
  std::vector<Part> parts;
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t row = 0; row < groups[g].hosts.size(); ++row)
      parts.push_back({.group = g, .row = row, .parity = groups[g].hosts[row].parity});
  // Each host reads its images once, against the hashes that members have told: what it gives away is right.
  SHADOWIB_TRY(each(parts, groups, [&](Part& part) -> Status {
    const ParityGroup& group = groups[part.group];
    SHADOWIB_TRY(await_keeper(directory, set.job, group.hosts[part.row].host.id, deadline_ns, &part.keeper));
    return ask_for_hashes(directory, part.keeper, set, group, static_cast<int>(part.row), deadline_ns, &part.hashes);
  }));
  std::vector<std::vector<SegmentHashes>> hashes(groups.size());
  std::vector<PieceHosts> where(groups.size());
  for (const Part& part : parts) {
    const ParityGroup::Host& host = groups[part.group].hosts[part.row];
    hashes[part.group].push_back(part.hashes);
    for (const Piece& image : host.images) where[part.group][image.file] = host.host.id;
  }
  SHADOWIB_TRY(each(parts, groups, [&](Part& part) {
    std::string failed;
    return ask_to_make(directory, part.keeper, set, groups[part.group], where[part.group], hashes[part.group],
                       deadline_ns, &part.parity, &failed);
  }));
  for (const Part& part : parts) {
    ParityGroup::Host& host = groups[part.group].hosts[part.row];
    host.parity = part.parity;
    placement.pieces.push_back({part.parity.file, {host.host}});
  }
  placement.groups = std::move(groups);
  return {};
}

}  // namespace shadowib
