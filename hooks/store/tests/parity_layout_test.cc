// Each stripe has one element of each host, each host's segments lie in stripes of their own, and groups keep domains
// apart.
#include "hooks/store/parity_layout.h"

#include <gtest/gtest.h>

namespace shadowib {
namespace {

TEST(ParityLayout, EachStripeHasOneElementOfEachHost) {
  for (int hosts = 2; hosts <= kMostGroupHosts; ++hosts)
    for (int losses = 1; losses < hosts; ++losses) {
      const ParityShape shape{hosts, losses};
      for (int stripe = 0; stripe < hosts; ++stripe) {
        std::set<int> rows;
        for (int host = 0; host < hosts; ++host) {
          const int row = shape.row(host, stripe);
          rows.insert(row);
          if (row < shape.segments()) {
            EXPECT_EQ(shape.stripe_of_segment(host, shape.segment_in(host, stripe)), stripe);
            EXPECT_LT(shape.segment_in(host, stripe), shape.segments());
          } else {
            EXPECT_EQ(shape.stripe_of_parity(host, row - shape.segments()), stripe);
          }
        }
        EXPECT_EQ(rows.size(), static_cast<std::size_t>(hosts));
      }
      for (int host = 0; host < hosts; ++host) {
        std::set<int> stripes;
        for (int s = 0; s < shape.segments(); ++s) stripes.insert(shape.stripe_of_segment(host, s));
        for (int p = 0; p < losses; ++p) stripes.insert(shape.stripe_of_parity(host, p));
        EXPECT_EQ(stripes.size(), static_cast<std::size_t>(hosts));
      }
    }
}

TEST(ParityLayout, SegmentsHoldTheLargestBlob) {
  EXPECT_EQ(segment_bytes({5, 1}, 100), 25u);
  EXPECT_EQ(segment_bytes({5, 1}, 101), 26u);
  EXPECT_EQ(segment_bytes({3, 2}, 101), 101u);
  EXPECT_EQ(segment_bytes({5, 2}, 0), 0u);
}

TEST(ParityLayout, GroupsAreEvenAndOfDifferentDomains) {
  for (int count = 2; count <= 40; ++count) {
    Domains domains;
    for (int i = 0; i < count; ++i) domains["h" + std::to_string(100 + i)] = "d" + std::to_string(i);
    std::vector<std::vector<std::string>> groups;
    ASSERT_TRUE(plan_groups(domains, 1, &groups).ok()) << count;
    std::size_t all = 0, least = 100, most = 0;
    for (const auto& group : groups) {
      all += group.size();
      least = std::min(least, group.size());
      most = std::max(most, group.size());
    }
    EXPECT_EQ(all, static_cast<std::size_t>(count));
    EXPECT_LE(most, static_cast<std::size_t>(kMostGroupHosts));
    EXPECT_LE(most - least, 1u);
  }
  // Three racks of two hosts: two groups with a host of each.
  const Domains racks{{"a", "1"}, {"b", "1"}, {"c", "2"}, {"d", "2"}, {"e", "3"}, {"f", "3"}};
  std::vector<std::vector<std::string>> groups;
  ASSERT_TRUE(plan_groups(racks, 2, &groups).ok());
  for (const auto& group : groups) {
    std::set<std::string> there;
    for (const std::string& host : group) there.insert(racks.at(host));
    EXPECT_EQ(there.size(), group.size());
  }
  const Status status = plan_groups(racks, 3, &groups);
  EXPECT_EQ(status.code(), Code::kUsage);
  EXPECT_NE(std::string(status.text()).find("6 hosts in 3 domains"), std::string::npos) << status.text();
}

}  // namespace
}  // namespace shadowib
