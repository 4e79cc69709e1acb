// What members report, as the manifest of a set.
#include "hooks/command/coordinator_manifest.h"

#include <gtest/gtest.h>

#include "hooks/job/protocol.h"

namespace shadowib {
namespace {

class ManifestTest : public testing::Test {
 protected:
  void add(std::uint32_t index, int generation, const char* files) {
    MemberStatus member{};
    member.index = index;
    member.pid = 100 + static_cast<int>(index);
    member.comm = "program";
    members.push_back(member);
    results.saved[index] = encode_fields({{"generation", std::to_string(generation)},
                                          {"backend", "ib2tcp"},
                                          {"image", std::to_string(index) + ".img"},
                                          {"bytes", "4096"},
                                          {"phases", "join=7 save=9000000000"},
                                          {"objects", "contexts=1 queue_pairs=20"},
                                          {"xxh3", "00"}});
    results.files[index] = files;
  }
  std::vector<MemberStatus> members;
  MemberResults results;
  SetManifest manifest{};
  CheckpointReport report;
};

TEST_F(ManifestTest, MembersAndTheirFiles) {
  add(0, 2, "aa /lib/one\n- /lib/two\n");
  add(1, 2, "aa /lib/one\nbb /lib/three\n");
  ASSERT_TRUE(describe_results(members, results, &manifest, &report).ok());
  EXPECT_EQ(manifest.generation, 2u);
  EXPECT_EQ(manifest.backend, "ib2tcp");
  ASSERT_EQ(manifest.members.size(), 2u);
  EXPECT_EQ(report.members.size(), 2u);
  EXPECT_EQ(manifest.files.size(), 3u);
  using Numbers = std::vector<std::pair<std::string, std::uint64_t>>;
  EXPECT_EQ(manifest.members[1].objects, (Numbers{{"contexts", 1}, {"queue_pairs", 20}}));
  EXPECT_EQ(report.members[0].phases, (Numbers{{"join", 7}, {"save", 9000000000}}));
}

// Members of two generations do not belong to one set: ids of the later one mean nothing to the earlier.
TEST_F(ManifestTest, MixedGenerationsAreRefused) {
  add(0, 2, "");
  add(1, 1, "");
  const Status status = describe_results(members, results, &manifest, &report);
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_NE(std::string(status.text()).find("generation 1"), std::string::npos) << status.text();
}

// A cluster that has gone back alone is of a later generation than the others.
TEST_F(ManifestTest, ClustersMayBeOfSeveralGenerations) {
  add(0, 1, "");
  add(1, 2, "");
  add(2, 2, "");
  members[0].cluster = "A";
  members[1].cluster = members[2].cluster = "B";
  ASSERT_TRUE(describe_results(members, results, &manifest, &report).ok());
  EXPECT_EQ(manifest.generation, 2u) << "a restart comes behind all";
  EXPECT_EQ(manifest.members[0].generation, 1u);
  EXPECT_FALSE(manifest.members[1].generation) << "it is the set's";
  manifest = {};
  members[0].cluster = "B";  // it has joined since
  ASSERT_TRUE(describe_results(members, results, &manifest, &report).ok());
  EXPECT_EQ(manifest.members[0].generation, 1u);
}

TEST_F(ManifestTest, AnotherProtocolIsNamedSo) {
  add(0, 1, "");
  results.saved[0] = "no fields";
  EXPECT_EQ(describe_results(members, results, &manifest, &report).code(), Code::kVersion);
}

}  // namespace
}  // namespace shadowib
