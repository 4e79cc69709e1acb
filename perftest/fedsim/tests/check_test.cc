// The judge of traces accepts what happened, and complains about each thing that did not.
#include "perftest/fedsim/check.h"

#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "perftest/fedsim/simulation.h"

namespace shadowib::fedsim {
namespace {

// Two messages of cluster 0 to 1, of flows 7 and 8; 1 goes back, and the second one comes again.
const std::vector<std::string> kTrace = {
    R"({"event":"start","at_us":0,"job":"J","policy":"paper","clusters":3,"incarnation":0})",
    R"({"event":"commit","at_us":1,"job":"J","cluster":0,"incarnation":0,"sn":1,"forced":false,"before":[0,0,0],"after":[0,0,0],"member":3})",
    R"({"event":"post","at_us":2,"job":"J","cluster":0,"incarnation":0,"sn":1,"to":1,"flow":7,"number":0,"member":3})",
    R"({"event":"hold","at_us":3,"job":"J","cluster":1,"incarnation":0,"sn":0,"from":0,"flow":7,"number":0})",
    R"({"event":"commit","at_us":4,"job":"J","cluster":1,"incarnation":0,"sn":1,"forced":true,"before":[0,0,0],"after":[1,0,0],"member":3})",
    R"({"event":"deliver","at_us":4,"job":"J","cluster":1,"incarnation":0,"sn":1,"from":0,"flow":7,"number":0})",
    R"({"event":"commit","at_us":5,"job":"J","cluster":1,"incarnation":0,"sn":2,"forced":false,"before":[1,0,0],"after":[1,0,0],"member":3})",
    R"({"event":"post","at_us":6,"job":"J","cluster":0,"incarnation":0,"sn":1,"to":1,"flow":8,"number":0,"member":3})",
    R"({"event":"deliver","at_us":7,"job":"J","cluster":1,"incarnation":0,"sn":2,"from":0,"flow":8,"number":0})",
    R"({"event":"resume","at_us":8,"job":"J","failed":[1],"stays":[true,false,true],"sns":[1,2,0],"incarnations":[0,1,0],"running":[[0,0,0],null,[0,0,0]]})",
    R"({"event":"deliver","at_us":9,"job":"J","cluster":1,"incarnation":1,"sn":2,"from":0,"flow":8,"number":0})",
};

std::vector<std::string> complaints_about(const std::vector<std::string>& lines, TraceChecker* checker = nullptr) {
  std::stringstream text;
  for (const std::string& line : lines) text << line << '\n';
  std::vector<std::string> complaints;
  TraceChecker own;
  const std::uint64_t wrong = check_trace(text, 1000, &complaints, checker ? checker : &own);
  EXPECT_EQ(wrong, complaints.size());
  return complaints;
}

std::vector<std::string> with(std::size_t line, const std::string& old, const std::string& replacement) {
  std::vector<std::string> lines = kTrace;
  const std::size_t at = lines[line].find(old);
  EXPECT_NE(at, std::string::npos) << old;
  lines[line].replace(at, old.size(), replacement);
  return lines;
}

TEST(TraceCheck, AcceptsWhatHappened) {
  TraceChecker checker;
  EXPECT_EQ(complaints_about(kTrace, &checker), std::vector<std::string>());
  EXPECT_EQ(checker.posts(), 2u);
  EXPECT_EQ(checker.deliveries(), 3u);
  EXPECT_EQ(checker.forced(), 1u);
  EXPECT_EQ(checker.recoveries(), 1u);
}

TEST(TraceCheck, ComplainsOfEachThing) {
  struct Case {
    std::size_t line;
    const char *old, *replacement, *says;
  };
  const Case cases[] = {
      {0, "paper", "papers", "policy is none of ours"},
      {0, ":3,", ":33,", "too great"},
      {0, ":3,", ":0,", "clusters is 0"},
      {2, "\"J\"", "\"K\"", "job K is not the job of this trace, J"},
      {5, "\"J\"", "\"K\"", "job K is not"},
      {9, "\"J\"", "\"K\"", "job K is not"},
      {2, "\"sn\":1", "\"sn\":2", "the cluster is at SN 1"},
      {2, "\"sn\":1", "\"sn\":4294967297", "sn is no whole number, or too great"},
      {2, "\"member\":3", "\"member\":3,\"vector\":[1,0,0]", "which the policy does not carry"},
      {2, "\"to\":1", "\"to\":0", "does not leave its cluster"},
      {2, "\"to\":1", "\"to\":3", "there is no cluster 3"},
      {2, "\"cluster\":0", "\"cluster\":3", "there is no cluster 3"},
      {2, "\"incarnation\":0", "\"incarnation\":1", "is of incarnation 0"},
      {3, "\"number\":0", "\"number\":1", "the message was not posted"},
      {3, "\"flow\":7", "\"flow\":9", "nothing was posted in the flow"},
      {3, "\"from\":0", "\"from\":2", "nothing was posted in the flow"},
      {4, "\"forced\":true", "\"forced\":false", "is not called forced"},
      {4, "\"sn\":1", "\"sn\":2", "the next CLC is 1"},
      {4, "\"after\":[1,", "\"after\":[2,", "after is not D"},
      {4, "\"before\":[0,", "\"before\":[1,", "before is not D"},
      {4, "\"forced\":true", "\"forced\":1", "neither true nor false"},
      {5, "\"cluster\":1", "\"cluster\":2", "is at SN 0"},
      {5, "\"flow\":7", "\"flow\":8", "nothing was posted in the flow"},
      {6, "\"forced\":false", "\"forced\":true", "called forced, and nothing is held"},
      {7, "\"flow\":8", "\"flow\":7", "the numbers of the flow are beyond 0"},
      {8, "\"number\":0", "\"number\":1", "the message was not posted"},
      {1, "\"incarnation\":0", "\"incarnation\":1", "is of incarnation 0"},
      {9, "\"stays\":[true,false,true]", "\"stays\":[true,true,true]", "the line takes back cluster 1"},
      {9, "\"stays\":[true", "\"stays\":[false", "the line need not take back cluster 0"},
      {9, "\"sns\":[1,2,0]", "\"sns\":[1,1,0]", "sns are not those"},
      {9, "\"incarnations\":[0,1,0]", "\"incarnations\":[0,2,0]", "an incarnation is not the next one"},
      {9, "\"incarnations\":[0,1,0]", "\"incarnations\":[1,1,0]", "an incarnation is not the next one"},
      {9, "[[0,0,0],null", "[null,null", "running tells or lacks D of cluster 0"},
      {9, "[[0,0,0],null", "[[0,1,0],null", "running is not D of cluster 0"},
      {9, "\"failed\":[1]", "\"failed\":[5]", "there is no cluster 5"},
      {9, "\"failed\":[1]", "\"failed\":[]", "failed is no list"},
      {9, "\"sns\":[1,2,0]", "\"sns\":[1,2]", "a list has not one entry"},
      {10, "\"incarnation\":1", "\"incarnation\":0", "is of incarnation 1"},
      {10, "\"event\":\"deliver\"", "\"event\":\"hold\"", "nothing demands that it is held"},
      {10, "\"event\":\"deliver\"", "\"event\":\"lost\"", "event names no event"},
      {10, "\"number\":0", "\"number\":0,\"more\":1", "field more is unknown"},
      {10, "\"number\":0", "\"numbers\":0", "field numbers is unknown"},
      {10, ",\"number\":0", "", "field number is missing"},
      {10, "{", "", "is no JSON"},
  };
  for (const Case& c : cases) {
    const std::vector<std::string> found = complaints_about(with(c.line, c.old, c.replacement));
    ASSERT_FALSE(found.empty()) << c.replacement << " in line " << c.line + 1;
    EXPECT_EQ(found[0].find("line " + std::to_string(c.line + 1) + ": "), 0u) << found[0];
    EXPECT_NE(found[0].find(c.says), std::string::npos) << c.replacement << ": " << found[0];
  }
}

// The flow is known, and leads to cluster 1: a third cluster gets nothing of it.
TEST(TraceCheck, ADeliveryToAThirdCluster) {
  std::vector<std::string> lines(kTrace.begin(), kTrace.begin() + 3);
  lines.push_back(
      R"({"event":"hold","at_us":3,"job":"J","cluster":2,"incarnation":0,"sn":0,"from":0,"flow":7,"number":0})");
  lines.push_back(
      R"({"event":"deliver","at_us":3,"job":"J","cluster":2,"incarnation":0,"sn":0,"from":0,"flow":7,"number":0})");
  lines.push_back(
      R"({"event":"post","at_us":4,"job":"J","cluster":0,"incarnation":0,"sn":1,"to":2,"flow":7,"number":1,"member":3})");
  EXPECT_EQ(complaints_about(lines),
            (std::vector<std::string>{"line 4: the flow leads to cluster 1", "line 5: the flow leads to cluster 1",
                                      "line 6: the flow leads to cluster 1"}));
}

TEST(TraceCheck, OneLineMoreOrLess) {
  for (std::size_t line = 0; line < kTrace.size(); ++line) {
    std::vector<std::string> lines = kTrace;
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(line), kTrace[line]);
    // An unforced CLC may come at any time, and shows by its number only.
    EXPECT_NE(complaints_about(lines).size(), 0u) << "twice: " << kTrace[line];
    lines = kTrace;
    lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(line));
    if (kTrace[line].find("deliver") != std::string::npos) continue;  // it may be under way
    EXPECT_NE(complaints_about(lines).size(), 0u) << "left out: " << kTrace[line];
  }
  EXPECT_EQ(complaints_about({}), std::vector<std::string>{"the trace is empty"});
}

TEST(TraceCheck, AFlowHasNoGaps) {
  std::vector<std::string> lines(kTrace.begin(), kTrace.begin() + 6);
  lines.push_back(
      R"({"event":"post","at_us":6,"job":"J","cluster":0,"incarnation":0,"sn":1,"to":1,"flow":7,"number":1,"member":3})");
  lines.push_back(
      R"({"event":"deliver","at_us":7,"job":"J","cluster":1,"incarnation":0,"sn":1,"from":0,"flow":7,"number":1})");
  EXPECT_EQ(complaints_about(lines), std::vector<std::string>());
  lines.erase(lines.begin() + 5);
  EXPECT_EQ(complaints_about(lines), std::vector<std::string>{"line 7: the next number of the flow is 0"});
}

TEST(TraceCheck, UnderPolicyVectorAPostCarriesD) {
  struct {
    const char *vector, *says;
  } const cases[] = {{"[1,0,0]", ""},
                     {"[4294967297,0,0]", "vector is no whole number, or too great"},
                     {"[1,0]", "the vector is not D"},
                     {"[]", "vector is no list"},
                     {"[1,1,0]", "the vector is not D"},
                     {nullptr, "the vector is not D"}};
  for (const auto& c : cases) {
    std::vector<std::string> lines = with(0, "paper", "vector");
    lines.resize(3);
    if (c.vector != nullptr) lines[2].insert(lines[2].size() - 1, ",\"vector\":" + std::string(c.vector));
    const std::vector<std::string> found = complaints_about(lines);
    if (*c.says == '\0') {
      EXPECT_EQ(found, std::vector<std::string>());
      continue;
    }
    ASSERT_EQ(found.size(), 1u) << c.says;
    EXPECT_NE(found[0].find(c.says), std::string::npos) << found[0];
  }
}

// A job's requests share their numbers with READs, which are no messages.
TEST(TraceCheck, NumbersAscend) {
  std::vector<std::string> lines(kTrace.begin(), kTrace.begin() + 6);
  lines.push_back(
      R"({"event":"post","at_us":6,"job":"J","cluster":0,"incarnation":0,"sn":1,"to":1,"flow":7,"number":4,"member":3})");
  lines.push_back(
      R"({"event":"post","at_us":6,"job":"J","cluster":0,"incarnation":0,"sn":1,"to":1,"flow":7,"number":6,"member":3})");
  lines.push_back(
      R"({"event":"deliver","at_us":7,"job":"J","cluster":1,"incarnation":0,"sn":1,"from":0,"flow":7,"number":6})");
  EXPECT_EQ(complaints_about(lines), std::vector<std::string>{"line 9: the next number of the flow is 4"});
  lines[8].replace(lines[8].find("\"number\":6"), 10, "\"number\":5");
  EXPECT_EQ(complaints_about(lines), std::vector<std::string>{"line 9: the message was not posted"});
}

// Members adopt a CLC one after the other, and each tells of it.
TEST(TraceCheck, EachMemberTellsOfACommit) {
  std::vector<std::string> lines = kTrace;
  std::string other = kTrace[4];
  other.replace(other.find("\"member\":3"), 10, "\"member\":4");
  lines.insert(lines.begin() + 6, other);
  TraceChecker checker;
  EXPECT_EQ(complaints_about(lines, &checker), std::vector<std::string>());
  EXPECT_EQ(checker.forced(), 1u);
  lines.insert(lines.begin() + 7, other);
  EXPECT_EQ(complaints_about(lines), std::vector<std::string>{"line 8: the CLC was told before by member 4"});
  lines[7].replace(lines[7].find("\"after\":[1"), 10, "\"after\":[0");
  EXPECT_NE(complaints_about(lines), std::vector<std::string>()) << "the two tell of two CLCs";
}

// A receiver that is not ready refuses messages. The link stops at one behind them.
TEST(TraceCheck, AMessageIsHeldBeforeThoseThatCameFirst) {
  std::vector<std::string> lines(kTrace.begin(), kTrace.begin() + 6);
  for (
      const char* event :
      {R"({"event":"post","at_us":6,"job":"J","cluster":0,"incarnation":0,"sn":1,"to":1,"flow":7,"number":1,"member":3})",
       R"({"event":"commit","at_us":6,"job":"J","cluster":0,"incarnation":0,"sn":2,"forced":false,"before":[0,0,0],"after":[0,0,0],"member":3})",
       R"({"event":"post","at_us":6,"job":"J","cluster":0,"incarnation":0,"sn":2,"to":1,"flow":7,"number":2,"member":3})",
       R"({"event":"hold","at_us":7,"job":"J","cluster":1,"incarnation":0,"sn":1,"from":0,"flow":7,"number":2})",
       R"({"event":"commit","at_us":8,"job":"J","cluster":1,"incarnation":0,"sn":2,"forced":true,"before":[1,0,0],"after":[2,0,0],"member":3})",
       R"({"event":"deliver","at_us":9,"job":"J","cluster":1,"incarnation":0,"sn":2,"from":0,"flow":7,"number":1})",
       R"({"event":"deliver","at_us":9,"job":"J","cluster":1,"incarnation":0,"sn":2,"from":0,"flow":7,"number":2})"})
    lines.push_back(event);
  EXPECT_EQ(complaints_about(lines), std::vector<std::string>());
}

TEST(TraceCheck, DeadMessagesStayDead) {
  std::vector<std::string> lines = kTrace;
  lines[9] =
      R"({"event":"resume","at_us":8,"job":"J","failed":[0],"stays":[false,false,true],"sns":[1,1,0],"incarnations":[1,1,0],"running":[null,null,[0,0,0]]})";
  lines[10] =
      R"({"event":"deliver","at_us":9,"job":"J","cluster":1,"incarnation":1,"sn":1,"from":0,"flow":7,"number":0})";
  EXPECT_EQ(complaints_about(lines), std::vector<std::string>{"line 11: the message was not posted"});
}

// Whatever is changed in one line of a whole simulation is told.
TEST(TraceCheck, ChangesOfASimulationsTrace) {
  Input input;
  input.topology.nodes.assign(2, 4);
  input.topology.inside.assign(2, {10, 80});
  input.topology.between.assign(2, std::vector<NetworkLink>(2, {150, 100}));
  input.application.total = 2000 * kSecond;
  input.application.messages.assign(2, {30, 30});
  input.application.bursts.assign(2, {0, 0});
  input.timers.clc.assign(2, 150 * kSecond);
  std::vector<TraceEvent> events;
  SimulationResult result;
  ASSERT_TRUE(
      simulate(input, {.failures = 3, .trace = 3, .sink = [&](const TraceEvent& e) { events.push_back(e); }}, &result)
          .ok());
  std::vector<std::string> lines;
  for (const TraceEvent& event : events) lines.push_back(encode_event(event));
  EXPECT_EQ(complaints_about(lines), std::vector<std::string>());
  const std::pair<const char*, std::function<void(TraceEvent*)>> changes[] = {
      {"sn", [](TraceEvent* e) { ++e->sn, ++e->record.sn; }},
      {"incarnation", [](TraceEvent* e) { ++e->incarnation; }},
      {"cluster", [](TraceEvent* e) { e->cluster ^= 1; }},
      {"peer", [](TraceEvent* e) { e->peer ^= 1; }},
      {"number", [](TraceEvent* e) { e->number += e->kind != TraceEvent::Kind::kPost; }},
      {"job", [](TraceEvent* e) { e->job += "2"; }},
      {"before", [](TraceEvent* e) { ++e->record.before[e->cluster ^ 1]; }},
      {"after", [](TraceEvent* e) { ++e->record.after[e->cluster ^ 1]; }},
      {"forced", [](TraceEvent* e) { e->record.forced ^= true; }},
      {"vector",
       [](TraceEvent* e) { e->vector = e->kind == TraceEvent::Kind::kPost ? federation::PerCluster(2) : e->vector; }},
      {"sns", [](TraceEvent* e) { ++e->sns[0]; }},
  };
  TraceChecker before;
  EXPECT_EQ(before.take(lines[0]), "");
  for (std::size_t i = 1; i < events.size(); ++i) {
    for (const auto& [name, change] : changes) {
      TraceEvent event = events[i];
      change(&event);
      const std::string changed = encode_event(event);
      if (changed == lines[i]) continue;
      // It may show later only: two clusters may each begin with their CLC 1.
      TraceChecker checker = before;
      std::string complaint = checker.take(changed);
      for (std::size_t k = i + 1; k < lines.size() && complaint.empty(); ++k) complaint = checker.take(lines[k]);
      EXPECT_NE(complaint, "") << name << " of line " << i + 1 << ": " << changed;
    }
    EXPECT_EQ(before.take(lines[i]), "");
  }
}

}  // namespace
}  // namespace shadowib::fedsim
