// The judgement of a recovery, by tables: each row changes one fact of a recovery that is allowed.
#include "hooks/federation/recovery_judge.h"

#include <gtest/gtest.h>

#include <functional>

namespace shadowib::federation {
namespace {

constexpr unsigned kA = 0, kB = 1, kC = 2;
constexpr std::int64_t kAskedMs = 100'000;
constexpr std::uint64_t kMs = 1'000'000, kBefore = 50'000 * kMs;  // nanoseconds; long before the CLC

PerCluster numbers(std::initializer_list<std::uint32_t> list) {
  PerCluster result;
  for (std::uint32_t n : list) result[result.clusters++] = n;
  return result;
}

ClcRecord clc(unsigned cluster, Sn sn, std::initializer_list<std::uint32_t> before) {
  ClcRecord record;
  record.cluster = cluster;
  record.sn = sn;
  record.before = record.after = numbers(before);
  record.claim = ClcRecord::Claim::kCommitted;
  return record;
}

MemberFacts member(std::uint32_t index, unsigned cluster) {
  MemberFacts facts{index, "member " + std::to_string(index), "host", cluster};
  facts.logged_since = {kBefore, kBefore, kBefore};
  facts.logged_since[cluster] = 0;
  return facts;
}
// Two members of each cluster: 0 and 1 of A, 2 and 3 of B, 4 and 5 of C.
MemberFacts member(std::uint32_t index) { return member(index, index / 2); }

BackFacts back(unsigned cluster, Sn sn, std::vector<unsigned> wired) {
  BackFacts facts;
  facts.cluster = cluster;
  facts.sn = sn;
  facts.set = "demo." + std::string(1, static_cast<char>('A' + cluster)) + ".000" + std::to_string(sn);
  facts.members = {{2 * cluster, "host"}, {2 * cluster + 1, "host"}};
  facts.wired = std::move(wired);
  facts.asked_ms = kAskedMs;
  facts.logged_since = {kBefore, kBefore, kBefore};
  facts.logged_since[cluster] = 0;
  return facts;
}

// A - B - C: B has talked to both others, and those have not talked to each other.
RecoveryFacts chain() {
  RecoveryFacts facts;
  facts.clusters = {{"A", {clc(kA, 2, {0, 1, 0})}},
                    {"B", {clc(kB, 2, {1, 0, 1}), clc(kB, 3, {2, 0, 2})}},
                    {"C", {clc(kC, 2, {0, 2, 0})}}};
  for (std::uint32_t index = 0; index < 6; ++index) facts.members.push_back(member(index));
  for (const std::uint32_t index : {0u, 1u}) facts.members[index].logged_since[kC] = 0;
  for (const std::uint32_t index : {4u, 5u}) facts.members[index].logged_since[kA] = 0;
  facts.wired = {{kA, kB}, {kB, kC}};
  return facts;
}

// B goes back to its last CLC, and the others stay.
RecoveryFacts alone() {
  RecoveryFacts facts = chain();
  facts.back = {back(kB, 3, {kA, kC})};
  return facts;
}

// B goes back to CLC 2, though it has another one, and takes C along to its CLC 2. A stays, and has no connection.
RecoveryFacts together() {
  RecoveryFacts facts = chain();
  facts.back = {back(kB, 2, {kC}), back(kC, 2, {kB})};
  facts.wired = {{kB, kC}};
  for (MemberFacts& m : facts.members)
    if (m.cluster == kA) m.logged_since = {0, 0, 0};
  return facts;
}

struct Row {
  const char* what;
  std::function<void(RecoveryFacts&)> change;
  const char* refusal;  // a part of it; nullptr: it is allowed
};

void judge(RecoveryFacts (*make)(), const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    RecoveryFacts facts = make();
    row.change(facts);
    const Status status = judge_recovery(facts);
    if (row.refusal == nullptr) {
      EXPECT_TRUE(status.ok()) << status.text();
      continue;
    }
    EXPECT_EQ(status.code(), Code::kRefused);
    EXPECT_NE(std::string(status.text()).find(row.refusal), std::string::npos) << status.text();
  }
}

TEST(RecoveryJudge, AClusterGoesBackAlone) {
  judge(alone,
        {
            {"all is logged", [](RecoveryFacts&) {}, nullptr},
            {"its set does not tell of connections", [](RecoveryFacts& f) { f.back[0].wired.reset(); },
             "did not record connections"},
            {"its set does not tell when it was asked", [](RecoveryFacts& f) { f.back[0].asked_ms = 0; },
             "member 0 of cluster A cannot tell"},
            {"a member of another cluster has ended", [](RecoveryFacts& f) { f.members[4].gone = true; },
             "member 4 of cluster C has ended"},
            {"a member of another cluster does not answer", [](RecoveryFacts& f) { f.members[5].logged_since = {}; },
             "member 5 of cluster C does not say"},
            {"or not of this cluster", [](RecoveryFacts& f) { f.members[5].logged_since[kB].reset(); },
             "member 5 of cluster C does not say"},
            {"a connection is newer than the CLC",
             [](RecoveryFacts& f) { f.members[1].logged_since[kB] = (kAskedMs + 1) * kMs; },
             "member 1 of cluster A has newer connections"},
            {"or may be, since clocks differ",
             [](RecoveryFacts& f) { f.members[1].logged_since[kB] = (kAskedMs - 1000) * kMs; },
             "member 1 of cluster A has newer connections"},
            {"it is older by more", [](RecoveryFacts& f) { f.members[1].logged_since[kB] = (kAskedMs - 1001) * kMs; },
             nullptr},
            {"members of two clusters send from two hosts", [](RecoveryFacts& f) { f.members[4].host = "other"; },
             "member 4 of cluster C has sent from another host"},
            {"the one on the other host has no connection",
             [](RecoveryFacts& f) {
               f.members[4].host = "other";
               f.members[4].logged_since[kB] = 0;
             },
             nullptr},
            {"there is a later CLC",
             [](RecoveryFacts& f) {
               f.clusters[kB].clcs.push_back(clc(kB, 4, {2, 0, 2}));
             },
             "member 0 of cluster A keeps only what is not in a later CLC of it"},
            {"there is, and nobody has trimmed a log for it",
             [](RecoveryFacts& f) {
               f.clusters[kB].clcs.push_back(clc(kB, 4, {2, 0, 2}));
               for (MemberFacts& m : f.members) m.trimmed = {9, 3, 9};
             },
             nullptr},
            {"one has",
             [](RecoveryFacts& f) {
               f.clusters[kB].clcs.push_back(clc(kB, 4, {2, 0, 2}));
               for (MemberFacts& m : f.members) m.trimmed = {0, 3, 0};
               f.members[5].trimmed[kB] = 4;
             },
             "member 5 of cluster C keeps only"},
            {"nobody has, and one came back since",
             [](RecoveryFacts& f) {
               f.clusters[kB].clcs.push_back(clc(kB, 4, {2, 0, 2}));
               for (MemberFacts& m : f.members) m.trimmed = {0, 3, 0};
               f.earlier = {{{kC}, numbers({2, 4, 2})}};
             },
             "member 4 of cluster C keeps only"},
            {"a member that does not come back has ended",
             [](RecoveryFacts& f) {
               f.members.push_back(member(6, kB));
               f.members.back().gone = true;
             },
             "member 6 has ended before"},
            {"one that comes back has ended", [](RecoveryFacts& f) { f.members[2].gone = true; }, nullptr},
            {"a member in no cluster has ended",
             [](RecoveryFacts& f) {
               f.members.push_back(member(6, kB));
               f.members.back().cluster.reset();
               f.members.back().gone = true;
             },
             nullptr},
            {"the other cluster was never connected",
             [](RecoveryFacts& f) {
               f.members[4].gone = true;
               f.wired.erase({kB, kC});
             },
             nullptr},
            {"or nobody tells",
             [](RecoveryFacts& f) {
               f.members[4].gone = true;
               f.wired.erase({kB, kC});
               f.tells_wiring = false;
             },
             "member 4 of cluster C has ended"},
        });
}

TEST(RecoveryJudge, TwoClustersGoBack) {
  judge(together,
        {
            {"C's CLC is before B's later one", [](RecoveryFacts&) {}, nullptr},
            {"C has known of B's later CLC", [](RecoveryFacts& f) { f.clusters[kB].clcs[1].before[kC] = 1; },
             "cluster B cannot go back to demo.B.0002: cluster C, which goes back to demo.C.0002, keeps only"},
            {"B has known of a later CLC of C",
             [](RecoveryFacts& f) {
               f.clusters[kC].clcs.push_back(clc(kC, 3, {0, 1, 0}));
             },
             "cluster C cannot go back to demo.C.0002: cluster B, which goes back to demo.B.0002, keeps only"},
            {"B has not, though it is there",
             [](RecoveryFacts& f) {
               f.clusters[kC].clcs.push_back(clc(kC, 3, {0, 2, 0}));
             },
             nullptr},
            {"the later CLC is of a time without C",
             [](RecoveryFacts& f) {
               f.clusters[kB].clcs[1].before = numbers({2, 0});
             },
             "keeps only what is not in a later CLC of it"},
            {"C has known, and has trimmed nothing for it",
             [](RecoveryFacts& f) {
               f.clusters[kB].clcs[1].before[kC] = 1;
               f.back[1].trimmed = {0, 2, 0};
             },
             nullptr},
            {"C has trimmed, though B's later CLC does not tell that C has known",
             [](RecoveryFacts& f) {
               f.back[1].trimmed = {0, 3, 0};
             },
             "cluster B cannot go back to demo.B.0002: cluster C, which goes back to demo.C.0002, keeps only"},
            {"C has known, and has no connection",
             [](RecoveryFacts& f) {
               f.clusters[kB].clcs[1].before[kC] = 1;
               f.back[1].logged_since[kB] = 0;
             },
             nullptr},
            {"neither was connected at its CLC",
             [](RecoveryFacts& f) {
               f.clusters[kB].clcs[1].before[kC] = 1;
               f.back[0].wired = f.back[1].wired = std::vector<unsigned>();
             },
             nullptr},
            {"C's set does not tell of logs", [](RecoveryFacts& f) { f.back[1].logged_since = {0}; },
             "cluster B cannot go back to demo.B.0002: cluster C, which goes back to demo.C.0002, does not say"},
            {"B's set does not tell when it was asked", [](RecoveryFacts& f) { f.back[0].asked_ms = 0; },
             "cluster B cannot go back to demo.B.0002: cluster C, which goes back to demo.C.0002, does not say"},
            {"C's log is newer than B's CLC", [](RecoveryFacts& f) { f.back[1].logged_since[kB] = kAskedMs * kMs; },
             "cluster B cannot go back to demo.B.0002: cluster C, which goes back to demo.C.0002, has newer"},
            {"C's members were on two hosts", [](RecoveryFacts& f) { f.back[1].members[1].host = "other"; },
             "cluster C, which goes back to demo.C.0002, has sent from another host"},
            {"a member of C that does not come back has ended",
             [](RecoveryFacts& f) {
               f.members.push_back(member(6, kC));
               f.members.back().gone = true;
             },
             "cluster C cannot go back to demo.C.0002: member 6 has ended before"},
        });
}

// C came back while B was at a CLC. What C had sent before is in no log that C has now.
TEST(RecoveryJudge, EarlierLines) {
  judge(together,
        {
            {"C came back while B was further",
             [](RecoveryFacts& f) {
               f.earlier = {{{kC}, numbers({2, 3, 2})}};
             },
             "cluster B cannot go back to demo.B.0002: cluster C, which goes back to demo.C.0002, keeps only"},
            {"C came back while B was where it goes",
             [](RecoveryFacts& f) {
               f.earlier = {{{kC}, numbers({2, 2, 2})}};
             },
             nullptr},
            {"A came back while B was further",
             [](RecoveryFacts& f) {
               f.earlier = {{{kA}, numbers({2, 3, 2})}};
             },
             nullptr},
            {"the second of them counts, too",
             [](RecoveryFacts& f) {
               f.earlier = {{{kC}, numbers({2, 2, 2})}, {{kA, kC}, numbers({2, 3, 2})}};
             },
             "cluster B cannot go back to demo.B.0002"},
            {"B was not there",
             [](RecoveryFacts& f) {
               f.earlier = {{{kA}, numbers({2})}};
             },
             nullptr},
            {"C came back, and had no connection",
             [](RecoveryFacts& f) {
               f.earlier = {{{kC}, numbers({2, 3, 2})}};
               f.back[1].logged_since[kB] = 0;
             },
             nullptr},
            {"B came back while C was further",
             [](RecoveryFacts& f) {
               f.earlier = {{{kB}, numbers({2, 2, 3})}};
             },
             "cluster C cannot go back to demo.C.0002: cluster B, which goes back to demo.B.0002, keeps only"},
        });
}

// A - B - C, all connected. B fails and takes C along; A stays, and has to send to both.
TEST(RecoveryJudge, ThreeClusters) {
  const auto make = +[] {
    RecoveryFacts facts = chain();
    facts.clusters[kB].clcs.pop_back();
    facts.back = {back(kB, 2, {kA, kC}), back(kC, 2, {kA, kB})};
    facts.wired = {{kA, kB}, {kB, kC}, {kA, kC}};
    for (const std::uint32_t index : {0u, 1u}) facts.members[index].logged_since[kC] = kBefore;
    return facts;
  };
  judge(make, {
                  {"all is logged", [](RecoveryFacts&) {}, nullptr},
                  {"C knows of a later CLC of B, of which A does not matter",
                   [](RecoveryFacts& f) {
                     f.clusters[kB].clcs.push_back(clc(kB, 3, {2, 0, 1}));
                   },
                   "cluster B cannot go back to demo.B.0002: member 0 of cluster A keeps only"},
                  {"C does, and A has no connection to B",
                   [](RecoveryFacts& f) {
                     f.clusters[kB].clcs.push_back(clc(kB, 3, {2, 0, 1}));
                     f.wired.erase({kA, kB});
                   },
                   "cluster B cannot go back to demo.B.0002: cluster C, which goes back to demo.C.0002, keeps only"},
                  {"C does not, and A has no connection to B",
                   [](RecoveryFacts& f) {
                     f.clusters[kB].clcs.push_back(clc(kB, 3, {2, 0, 2}));
                     f.wired.erase({kA, kB});
                   },
                   nullptr},
                  {"A has not all for C", [](RecoveryFacts& f) { f.members[0].logged_since[kC] = kAskedMs * kMs; },
                   "cluster C cannot go back to demo.C.0002: member 0 of cluster A has newer"},
                  // C's images were made where B's messages to A were not ordered with its own.
                  {"A and C send to B from two hosts",
                   [](RecoveryFacts& f) {
                     for (BackFacts::Member& m : f.back[1].members) m.host = "other";
                   },
                   "cluster B cannot go back to demo.B.0002: cluster C, which goes back to demo.C.0002, has sent"},
              });
}

TEST(RecoveryJudge, HasKnownOf) {
  struct {
    const char* what;
    std::vector<ClcRecord> clcs;  // of B, which goes back to CLC 2
    bool known;                   // by C at its CLC 5
  } const rows[] = {
      {"none is later", {clc(kB, 1, {0, 0, 0}), clc(kB, 2, {0, 0, 0})}, false},
      {"the later one has messages from behind C's", {clc(kB, 2, {0, 0, 4}), clc(kB, 3, {0, 0, 5})}, false},
      {"it has none", {clc(kB, 2, {0, 0, 4}), clc(kB, 3, {0, 0, 4})}, true},
      {"the first later one counts", {clc(kB, 2, {0, 0, 4}), clc(kB, 3, {0, 0, 4}), clc(kB, 4, {0, 0, 5})}, true},
      {"its set is gone, and the record is there", {clc(kB, 4, {0, 0, 5})}, false},
      {"C joined later", {clc(kB, 3, {0, 0})}, true},
  };
  for (const auto& row : rows) {
    RecoveryFacts facts;
    facts.clusters = {{"A"}, {"B", row.clcs}, {"C"}};
    EXPECT_EQ(has_known_of(facts, back(kB, 2, {}), back(kC, 5, {})), row.known) << row.what;
  }
}

TEST(RecoveryJudge, WhoSendsAgain) {
  using Members = std::vector<std::uint32_t>;
  struct {
    const char* what;
    RecoveryFacts (*make)();
    std::function<void(RecoveryFacts&)> change;
    Members members;
  } const rows[] = {
      {"who is connected", alone, [](RecoveryFacts&) {}, {0, 1, 4, 5}},
      {"not who has no connection", alone, [](RecoveryFacts& f) { f.members[4].logged_since[kB] = 0; }, {0, 1, 5}},
      {"nor who does not say", alone, [](RecoveryFacts& f) { f.members[4].logged_since = {}; }, {0, 1, 5}},
      {"nor who has ended", alone, [](RecoveryFacts& f) { f.members[0].gone = true; }, {1, 4, 5}},
      {"who is of an earlier line",
       alone,
       [](RecoveryFacts& f) {
         f.members[4].logged_since[kB] = 0;
         f.earlier = {{{kA}, numbers({1, 2, 2}), {4}}};
         f.back[0].logged_since = {0, 0, 0};
       },
       {0, 1, 4, 5}},
      {"not if it has ended since",
       alone,
       [](RecoveryFacts& f) {
         f.members[4].logged_since[kB] = 0;
         f.members[4].gone = true;
         f.earlier = {{{kA}, numbers({1, 2, 2}), {4}}};
         f.back[0].logged_since = {0, 0, 0};
       },
       {0, 1, 5}},
      {"nor of its own cluster: that one has forgotten",
       alone,
       [](RecoveryFacts& f) {
         f.earlier = {{{kC}, numbers({1, 2, 2}), {0, 1, 2, 3}}};
         f.back[0].logged_since = {0, 0, 0};
       },
       {0, 1, 4, 5}},
      // What B's images have for A, which came back by an earlier line and may not have got all of it.
      {"who goes back, if an earlier one went to where it was connected",
       alone,
       [](RecoveryFacts& f) {
         f.earlier = {{{kA}, numbers({1, 2, 2})}};
       },
       {0, 1, 2, 3, 4, 5}},
      {"two that go back together", together, [](RecoveryFacts&) {}, {2, 3, 4, 5}},
      {"one of the two has logged nothing",
       together,
       [](RecoveryFacts& f) { f.back[1].logged_since[kB] = 0; },
       {2, 3}},
  };
  for (const auto& row : rows) {
    RecoveryFacts facts = row.make();
    row.change(facts);
    EXPECT_EQ(list_replaying(facts), row.members) << row.what;
  }
}

}  // namespace
}  // namespace shadowib::federation
