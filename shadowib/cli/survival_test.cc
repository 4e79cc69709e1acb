#include "shadowib/cli/survival.h"

#include <gtest/gtest.h>

namespace shadowib::cli {
namespace {

// Two hosts for each group and parity more, with an image on each.
SetManifest set_of(const char* store, std::size_t groups = 1) {
  SetManifest manifest{};
  SetPlacement& placement = manifest.placement;
  EXPECT_TRUE(parse_store(store, &placement.store).ok());
  for (std::size_t g = 0; g < groups; ++g) {
    ParityGroup group{.losses = placement.store.parities, .hosts = {}};
    for (int host = 0; host < 2 + group.losses; ++host) {
      const std::string id = std::to_string(g) + std::to_string(host);
      SetMember member{};
      member.file = "member-" + id + ".img";
      manifest.members.push_back(member);
      group.hosts.push_back({{"host" + id, id}, {{member.file, 100, ""}}, {"parity-" + id + ".par", 0, ""}});
    }
    group.set_sizes();
    if (placement.store.has_parity()) placement.groups.push_back(group);
  }
  return manifest;
}

// Each piece on its own host; an image of a mirror on the next one, too.
FileHolders all_there(const SetManifest& manifest, Domains* domains) {
  FileHolders holders;
  const std::size_t count = manifest.members.size();
  const auto host = [](std::size_t n) { return "host" + std::to_string(n); };
  for (std::size_t n = 0; n < count; ++n) {
    (*domains)[host(n)] = "rack" + std::to_string(n);
    holders[manifest.members[n].file] = {host(n)};
    if (manifest.placement.store.has_copies()) holders[manifest.members[n].file].insert(host((n + 1) % count));
  }
  std::size_t n = 0;
  for (const ParityGroup& group : manifest.placement.groups)
    for (const ParityGroup::Host& row : group.hosts) holders[row.parity.file] = {host(n++)};
  return holders;
}

void lose(const std::string& host, FileHolders* holders) {
  for (auto& [file, hosts] : *holders) hosts.erase(host);
}

TEST(Survival, AsAStorePromisesIt) {
  EXPECT_EQ(survival_text(set_of("central").placement), "all but DIR");
  EXPECT_EQ(survival_text(set_of("mem:single").placement), "0 hosts");
  EXPECT_EQ(survival_text(set_of("disk:mirror").placement), "1 host");
  EXPECT_EQ(survival_text(set_of("mem:xor").placement), "1 host");
  EXPECT_EQ(survival_text(set_of("mem:rs:2").placement), "2 hosts");
  EXPECT_EQ(survival_text(set_of("mem:xor", 2).placement), "1 host a group");
  EXPECT_EQ(survival_text(set_of("disk:rs:3", 2).placement), "3 hosts a group");
}

TEST(Survival, ForPrograms) {
  EXPECT_EQ(survival_json(set_of("central").placement).dump(), R"({"hosts":"all","per":"set","power_failure":true})");
  EXPECT_EQ(survival_json(set_of("mem:rs:2", 2).placement).dump(),
            R"({"hosts":2,"per":"group","power_failure":false})");
}

TEST(Redundancy, OfAMirror) {
  Domains domains;
  const SetManifest set = set_of("mem:mirror");
  FileHolders holders = all_there(set, &domains);
  Redundancy told = judge_redundancy(set, holders, domains, false);
  EXPECT_EQ(told.state, Redundancy::State::kWhole) << "whatever the others say";
  EXPECT_EQ(told.survives, 1);
  EXPECT_EQ(told.pieces, 4u);
  EXPECT_EQ(told.missing, 0u);
  lose("host1", &holders);
  told = judge_redundancy(set, holders, domains, true);
  EXPECT_EQ(told.state, Redundancy::State::kDegraded);
  EXPECT_EQ(told.survives, 0);
  EXPECT_EQ(told.missing, 2u);
  EXPECT_EQ(judge_redundancy(set, holders, domains, false).state, Redundancy::State::kNotKnown);
  lose("host0", &holders);
  EXPECT_EQ(judge_redundancy(set, holders, domains, true).state, Redundancy::State::kLost);
  EXPECT_EQ(judge_redundancy(set, holders, domains, false).state, Redundancy::State::kNotKnown);
}

TEST(Redundancy, CopiesInOneDomainAreOne) {
  Domains domains;
  const SetManifest set = set_of("disk:mirror");
  const FileHolders holders = all_there(set, &domains);
  domains["host1"] = domains["host0"];
  const Redundancy told = judge_redundancy(set, holders, domains, true);
  EXPECT_EQ(told.state, Redundancy::State::kDegraded);
  EXPECT_EQ(told.missing, 2u);
}

TEST(Redundancy, OfGroups) {
  Domains domains;
  const SetManifest set = set_of("mem:rs:2", 2);
  FileHolders holders = all_there(set, &domains);
  EXPECT_EQ(judge_redundancy(set, holders, domains, true).state, Redundancy::State::kWhole);
  holders.erase("parity-01.par");
  Redundancy told = judge_redundancy(set, holders, domains, true);
  EXPECT_EQ(told.state, Redundancy::State::kDegraded);
  EXPECT_EQ(told.survives, 1) << "the weakest group counts";
  EXPECT_EQ(told.pieces, 16u);
  EXPECT_EQ(told.missing, 1u);
  for (const char* host : {"host4", "host5", "host6"}) lose(host, &holders);
  told = judge_redundancy(set, holders, domains, true);
  EXPECT_EQ(told.state, Redundancy::State::kLost);
  EXPECT_EQ(told.survives, -1);
}

}  // namespace
}  // namespace shadowib::cli
