// Records are read as they were written; what is no record is refused by its field.
#include "hooks/federation/record_json.h"

#include <gtest/gtest.h>

#include <functional>

namespace shadowib::federation {
namespace {

ClcRecord some_record() {
  ClcRecord record{1, 0xffffffff, 3, PerCluster(2), PerCluster(2), true, ClcRecord::Claim::kUndecided};
  record.before[0] = 4;
  record.after[0] = 5;
  return record;
}

TEST(RecordJson, IsReadAsWritten) {
  const Json json = encode_record(some_record(), "B");
  EXPECT_EQ(json.dump(),
            "{\"name\":\"B\",\"index\":1,\"sn\":4294967295,\"incarnation\":3,\"before\":[4,0],\"after\":[5,0],"
            "\"forced\":true}");
  ClcRecord record;
  std::string name;
  ASSERT_TRUE(decode_record(json, &record, &name).ok());
  EXPECT_EQ(record, some_record());
  EXPECT_EQ(name, "B");
}

TEST(RecordJson, AClusterMayBeAlone) {
  ClcRecord record{0, 1, 0, PerCluster(1), PerCluster(1), false, ClcRecord::Claim::kUndecided}, read;
  std::string name;
  ASSERT_TRUE(decode_record(encode_record(record, "A"), &read, &name).ok());
  EXPECT_EQ(read, record);
}

TEST(RecordJson, WhatIsNoRecordIsRefusedByItsField) {
  const std::pair<const char*, std::function<void(Json*)>> cases[] = {
      {"before is no list", [](Json* j) { (*j)["before"] = Json::array(); }},
      {"after is no list", [](Json* j) { (*j)["after"] = nullptr; }},
      {"after is no list", [](Json* j) { (*j)["after"] = 5; }},
      {"before has an entry",
       [](Json* j) {
         (*j)["before"] = Json{1, -1};
       }},
      {"before has an entry",
       [](Json* j) {
         (*j)["before"] = Json{1, 1.5};
       }},
      {"after has an entry",
       [](Json* j) {
         (*j)["after"] = Json{1, 4294967296ull};
       }},
      {"after has another length",
       [](Json* j) {
         (*j)["after"] = Json{1, 0, 0};
       }},
      {"index is beyond", [](Json* j) { (*j)["index"] = 2; }},
      {"index is no whole number", [](Json* j) { (*j)["index"] = "1"; }},
      {"sn is no whole number", [](Json* j) { (*j)["sn"] = 4294967296ull; }},
      {"sn is no whole number", [](Json* j) { (*j)["sn"] = nullptr; }},
      {"sn is 0", [](Json* j) { (*j)["sn"] = 0; }},
      {"incarnation is no whole number", [](Json* j) { (*j)["incarnation"] = true; }},
      {"forced is neither", [](Json* j) { (*j)["forced"] = 1; }},
      {"name is no name", [](Json* j) { (*j)["name"] = ""; }},
      {"name is no name", [](Json* j) { (*j)["name"] = 7; }},
      {"field claim is unknown", [](Json* j) { (*j)["claim"] = 1; }},
  };
  for (const auto& [says, spoil] : cases) {
    Json json = encode_record(some_record(), "B");
    spoil(&json);
    ClcRecord record;
    std::string name;
    const Status status = decode_record(json, &record, &name);
    EXPECT_EQ(status.code(), Code::kCorrupt) << says;
    EXPECT_NE(std::string(status.text()).find(says), std::string::npos) << status.text();
  }
}

TEST(RecordJson, EachFieldMustBeThere) {
  const Json whole = encode_record(some_record(), "B");
  for (const auto& [left_out, value] : whole.items()) {
    Json json = Json::object();
    for (const auto& [field, entry] : whole.items())
      if (field != left_out) json[field] = entry;
    ClcRecord record;
    std::string name;
    const Status status = decode_record(json, &record, &name);
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_NE(std::string(status.text()).find(left_out + " is missing"), std::string::npos) << status.text();
  }
  ClcRecord record;
  std::string name;
  EXPECT_EQ(decode_record(Json::array(), &record, &name).code(), Code::kCorrupt);
  EXPECT_EQ(decode_record(Json(), &record, &name).code(), Code::kCorrupt);
}

TEST(RecordJson, AtMostThirtyTwoClusters) {
  Json list = Json::array();
  for (unsigned i = 0; i < kMaxClusters; ++i) list.push_back(0);
  Json json = encode_record(some_record(), "B");
  json["before"] = list;
  json["after"] = list;
  ClcRecord record;
  std::string name;
  EXPECT_TRUE(decode_record(json, &record, &name).ok());
  list.push_back(0);
  json["before"] = list;
  EXPECT_EQ(decode_record(json, &record, &name).code(), Code::kCorrupt);
}

}  // namespace
}  // namespace shadowib::federation
