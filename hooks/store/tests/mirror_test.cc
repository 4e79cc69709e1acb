// The ring of a mirror: a copy is never in the domain of its original, and no host takes more than it must.
#include "hooks/store/mirror.h"

#include <gtest/gtest.h>

namespace shadowib {
namespace {

TEST(Mirror, EachHostHasACopyElsewhere) {
  for (int hosts = 2; hosts <= 9; ++hosts) {
    Domains domains;
    for (int i = 0; i < hosts; ++i) domains["h" + std::to_string(i)] = "d" + std::to_string(i);
    std::map<std::string, std::string> partners;
    std::set<std::string> keepers;
    ASSERT_TRUE(plan_mirror(domains, &partners).ok());
    ASSERT_EQ(partners.size(), domains.size());
    for (const auto& [host, partner] : partners) {
      EXPECT_NE(host, partner);
      keepers.insert(partner);
    }
    EXPECT_EQ(keepers.size(), domains.size()) << "each keeps one";
  }
}

TEST(Mirror, DomainsAreKeptApart) {
  // Two racks, of three hosts and of one.
  const Domains domains{{"a", "r1"}, {"b", "r1"}, {"c", "r1"}, {"d", "r2"}};
  std::map<std::string, std::string> partners;
  ASSERT_TRUE(plan_mirror(domains, &partners).ok());
  for (const auto& [host, partner] : partners) EXPECT_NE(domains.at(host), domains.at(partner)) << host;
}

TEST(Mirror, OneDomainIsRefusedByName) {
  std::map<std::string, std::string> partners;
  for (const Domains& domains : {Domains{{"a", "rack7"}}, Domains{{"a", "rack7"}, {"b", "rack7"}}}) {
    const Status status = plan_mirror(domains, &partners);
    EXPECT_EQ(status.code(), Code::kUsage);
    EXPECT_NE(std::string(status.text()).find("rack7"), std::string::npos) << status.text();
  }
}

TEST(Mirror, ALostCopyIsMadeInAnotherDomainWithTheLeastLoad) {
  const Domains domains{{"a", "r1"}, {"b", "r1"}, {"c", "r2"}, {"d", "r3"}};
  EXPECT_EQ(find_partner(domains, {"a"}, {{"c", 1}}), "d");
  EXPECT_EQ(find_partner(domains, {"a"}, {}), "c");
  EXPECT_EQ(find_partner(domains, {"c", "d"}, {}), "a");
  EXPECT_EQ(find_partner({{"a", "r1"}, {"b", "r1"}}, {"a"}, {}), "");
}

}  // namespace
}  // namespace shadowib
