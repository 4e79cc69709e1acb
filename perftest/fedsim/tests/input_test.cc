// The input files: what is read, and what is refused by its field.
#include "perftest/fedsim/input.h"

#include <gtest/gtest.h>

namespace shadowib::fedsim {
namespace {

Json parsed(const std::string& text) {
  Json json;
  std::string why;
  EXPECT_TRUE(Json::parse(text, &json, &why)) << why << ": " << text;
  return json;
}

constexpr char kTopology[] = R"({"clusters": [{"nodes": 2, "network": {"latency_us": 10, "megabytes_per_s": 80}},
  {"nodes": 3, "network": {"latency_us": 20, "megabytes_per_s": 40}}],
  "between": [[{"latency_us": 150, "megabytes_per_s": 100}]], "mtbf_s": null})";

TEST(FedsimInput, Topology) {
  Topology topology;
  ASSERT_TRUE(read_topology(parsed(kTopology), &topology).ok());
  EXPECT_EQ(topology.nodes, (std::vector<unsigned>{2, 3}));
  EXPECT_EQ(topology.inside[1].takes(0), 20);
  EXPECT_EQ(topology.between[0][1].takes(1000), 160);
  EXPECT_EQ(topology.between[1][0].takes(100), 151);
  EXPECT_EQ(topology.mtbf, kNever);
}

TEST(FedsimInput, Application) {
  ApplicationPattern counted, random;
  ASSERT_TRUE(
      read_application(parsed(R"({"total_s": 1.5, "message_bytes": 8, "messages": [[1, 2], [3, 4]]})"), 2, &counted)
          .ok());
  EXPECT_TRUE(counted.counted());
  EXPECT_EQ(counted.total, 1'500'000);
  EXPECT_EQ(counted.messages[1][0], 3u);
  EXPECT_EQ(counted.bursts[1][0], 0u);
  ASSERT_TRUE(read_application(parsed(R"({"total_s": 1, "message_bytes": 8, "clusters": [
    {"mean_computation_s": 2, "sends": [0.5, 0.25]}, {"mean_computation_s": 3, "sends": [0, 1]}]})"),
                               2, &random)
                  .ok());
  EXPECT_FALSE(random.counted());
  EXPECT_EQ(random.mean_computation_us[1], 3e6);
  EXPECT_EQ(random.sends[0][1], 0.25);
}

TEST(FedsimInput, Timers) {
  ProtocolTimers timers;
  ASSERT_TRUE(
      read_timers(parsed(R"({"clc_s": [60, null], "in_step": false, "clc_takes_s": 0.5, "collection_s": 7200})"), 2,
                  &timers)
          .ok());
  EXPECT_EQ(timers.clc, (std::vector<Time>{60'000'000, kNever}));
  EXPECT_FALSE(timers.in_step);
  EXPECT_EQ(timers.clc_takes, 500'000);
  EXPECT_EQ(timers.collection, 7200'000'000ll);
}

TEST(FedsimInput, WhatMakesNoSenseIsRefusedByItsField) {
  const auto topology = [](const std::string& text) {
    Topology read;
    return read_topology(parsed(text), &read);
  };
  const auto application = [](const std::string& text) {
    ApplicationPattern read;
    return read_application(parsed(text), 2, &read);
  };
  const auto timers = [](const std::string& text) {
    ProtocolTimers read;
    return read_timers(parsed(text), 2, &read);
  };
  const std::pair<const char*, Status> cases[] = {
      {"the file is no object", topology("[]")},
      {"field clusters is no list", topology("{}")},
      {"field clusters is no list", topology(R"({"clusters": []})")},
      {"field color is unknown", topology(R"({"color": 1})")},
      {"field nodes is out of range", topology(R"({"clusters": [{"nodes": 0}]})")},
      {"field nodes is no whole number", topology(R"({"clusters": [{"nodes": 1.5}]})")},
      {"field network.latency_us is no number", topology(R"({"clusters": [{"nodes": 1, "network": {}}]})")},
      {"field network.megabytes_per_s is out of range",
       topology(R"({"clusters": [{"nodes": 1, "network": {"latency_us": 0, "megabytes_per_s": 0}}]})")},
      {"field between is no triangle",
       topology(
           R"({"clusters": [{"nodes": 1, "network": {"latency_us": 0, "megabytes_per_s": 1}}], "between": [[]]})")},
      {"field mtbf_s is out of range",
       topology(
           R"({"clusters": [{"nodes": 1, "network": {"latency_us": 0, "megabytes_per_s": 1}}], "between": [], "mtbf_s": 0})")},
      {"field total_s is no number", application(R"({})")},
      {"either field clusters or field messages", application(R"({"total_s": 1, "message_bytes": 1})")},
      {"either field clusters or field messages",
       application(R"({"total_s": 1, "message_bytes": 1, "messages": [[1,1],[1,1]], "clusters": []})")},
      {"field messages has not one entry", application(R"({"total_s": 1, "message_bytes": 1, "messages": [[1,1]]})")},
      {"field messages is no whole number",
       application(R"({"total_s": 1, "message_bytes": 1, "messages": [[1,1],[1,-1]]})")},
      {"field bursts needs field messages",
       application(R"({"total_s": 1, "message_bytes": 1, "clusters": [], "bursts": []})")},
      {"field sends has probabilities of more than 1", application(R"({"total_s": 1, "message_bytes": 1, "clusters": [
         {"mean_computation_s": 2, "sends": [0.6, 0.6]}, {"mean_computation_s": 2, "sends": [0, 0]}]})")},
      {"field clc_s has not one entry", timers(R"({"clc_s": [1]})")},
      {"field clc_s is out of range", timers(R"({"clc_s": [1, 0]})")},
      {"field clc_takes_s is no number", timers(R"({"clc_s": [1, null], "in_step": true})")},
      {"field in_step is neither", timers(R"({"clc_s": [1, null]})")},
      {"field collection_s is out of range",
       timers(R"({"clc_s": [1, 1], "in_step": true, "clc_takes_s": 0, "collection_s": -1})")},
  };
  for (const auto& [says, status] : cases) {
    EXPECT_EQ(status.code(), Code::kCorrupt) << says;
    EXPECT_NE(std::string(status.text()).find(says), std::string::npos) << says << ": " << status.text();
  }
}

TEST(FedsimInput, ThePapersFilesAreRead) {
  const std::string paper = FEDSIM_PAPER;
  Input input;
  for (const char* application : {"/application.json", "/application_random.json"}) {
    Input read;
    const Status status = read_input(paper + "/topology.json", paper + application, paper + "/timers.json", &read);
    EXPECT_TRUE(status.ok()) << status.text();
  }
  EXPECT_TRUE(read_input(paper + "/three_clusters.json", paper + "/application_three.json",
                         paper + "/timers_three.json", &input)
                  .ok());
  EXPECT_EQ(input.topology.clusters(), 3u);
  const Status missing =
      read_input(paper + "/none.json", paper + "/application.json", paper + "/timers.json", &input);
  EXPECT_EQ(missing.code(), Code::kIo);
  Input other;
  const Status mixed =
      read_input(paper + "/topology.json", paper + "/application_three.json", paper + "/timers.json", &other);
  EXPECT_NE(std::string(mixed.text()).find("application_three.json: field messages"), std::string::npos)
      << mixed.text();
}

}  // namespace
}  // namespace shadowib::fedsim
