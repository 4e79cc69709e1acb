// What is written is read back the same; what is no JSON is refused with its place.
#include "shadowib/base/json_value.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <stdexcept>

namespace shadowib {
namespace {

Json read(std::string_view text) {
  Json json;
  std::string why;
  EXPECT_TRUE(Json::parse(text, &json, &why)) << text << ": " << why;
  return json;
}

std::string refusal(std::string_view text) {
  Json json;
  std::string why;
  EXPECT_FALSE(Json::parse(text, &json, &why)) << text;
  return why;
}

TEST(JsonValue, IsWrittenInTheOrderItWasBuilt) {
  Json json{{"z", 1}, {"a", {1, -2, 2.5}}, {"text", "a\"\\\n\x01\xc3\xa9"}, {"none", nullptr}, {"yes", true}};
  json["more"]["deep"] = 1.0;
  json["list"].push_back({{"x", "y"}});
  EXPECT_EQ(json.dump(),
            "{\"z\":1,\"a\":[1,-2,2.5],\"text\":\"a\\\"\\\\\\n\\u0001\xc3\xa9\",\"none\":null,\"yes\":true,"
            "\"more\":{\"deep\":1.0},\"list\":[{\"x\":\"y\"}]}");
  EXPECT_EQ(Json({{"a", Json::array()}, {"b", {1}}}).dump(2), "{\n  \"a\": [],\n  \"b\": [\n    1\n  ]\n}");
  EXPECT_EQ(read(json.dump()), json);
  EXPECT_EQ(read(json.dump(2)), json);
}

TEST(JsonValue, WholeNumbersStayExact) {
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const std::int64_t least = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(Json(most).dump(), "18446744073709551615");
  EXPECT_EQ(read("18446744073709551615").get<std::uint64_t>(), most);
  EXPECT_EQ(read("-9223372036854775808").get<std::int64_t>(), least);
  EXPECT_FALSE(read("18446744073709551616").is_number_integer());
  EXPECT_EQ(read("1e3").get<double>(), 1000);
  EXPECT_EQ(read("0.1").dump(), "0.1");
  EXPECT_TRUE(read("-7").is_number_integer());
  EXPECT_FALSE(read("-7").is_number_unsigned());
}

TEST(JsonValue, BytesThatAreNotUtf8AreReplaced) {
  EXPECT_EQ(
      Json("\xff.\xc3(\xed\xa0\x80\xf0\x9f\x98\x80\xc0\x80").dump(),
      "\"\xef\xbf\xbd.\xef\xbf\xbd(\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbd\"");
}

TEST(JsonValue, EscapesAreRead) {
  EXPECT_EQ(read("\"\\u0041\\/\\ud83d\\ude00\\u00e9\\u20ac\\t\"").get<std::string>(),
            "A/\xf0\x9f\x98\x80\xc3\xa9\xe2\x82\xac\t");
  for (const char* bad :
       {"\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83dA\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\x\"", "\"\\"})
    EXPECT_NE(refusal(bad), "") << bad;
}

TEST(JsonValue, WhatIsNoJsonIsRefused) {
  for (const char* bad : {"", " ", "{", "[1,]", "[1 2]", "{\"a\"}", "{\"a\":1,}", "{a:1}", "01", "1.", "1e", "-",
                          "+1", "nul", "true false", "\"\n\"", "\"", "'a'", "1e999"})
    EXPECT_NE(refusal(bad), "") << bad;
  EXPECT_EQ(refusal("[1, x]").find("parse error at line 1, column 5: "), 0u) << refusal("[1, x]");
  EXPECT_EQ(refusal("1e999"), "number overflow parsing '1e999'");
  EXPECT_EQ(refusal("\"\xff\"").find("parse error at line 1, column 2: "), 0u) << refusal("\"\xff\"");
  for (const char* opening : {"[", "{\"a\":", "[{\"a\":"}) {
    std::string deep;
    for (int i = 0; i < 100000; ++i) deep += opening;
    EXPECT_EQ(refusal(deep), "more than 512 levels");
  }
  EXPECT_EQ(refusal(std::string(513, '[') + std::string(513, ']')), "more than 512 levels");
  EXPECT_TRUE(read(std::string(512, '[') + std::string(512, ']')).is_array());
}

TEST(JsonValue, WrongKindsAndMissingNamesAreTold) {
  const Json json = read("{\"a\": \"text\", \"b\": 3}");
  EXPECT_THROW((void)json.at("c"), std::out_of_range);
  EXPECT_THROW((void)Json(3).at("c"), std::out_of_range);
  EXPECT_THROW((void)json.at("a").get<int>(), std::domain_error);
  EXPECT_THROW((void)json.at("b").get<std::string>(), std::domain_error);
  EXPECT_THROW(Json(3).push_back(1), std::domain_error);
  EXPECT_TRUE(json["c"].is_null());
  EXPECT_EQ(json.value("c", 7), 7);
  EXPECT_EQ(json.value("b", 7), 3);
  EXPECT_EQ(json.value("a", "x"), "text");
}

Json random_document(std::mt19937& random, int depth) {
  switch (random() % (depth > 4 ? 6 : 8)) {
    case 0:
      return {};
    case 1:
      return random() % 2 == 0;
    case 2:
      return static_cast<std::int64_t>(random()) - (std::int64_t{1} << 31);
    case 3:
      return static_cast<double>(random()) / 1024 - 1e6;
    case 4:
    case 5: {
      std::string text;
      for (auto n = random() % 20; n > 0; --n) text += static_cast<char>(random() % 0x80);
      return text;
    }
    case 6: {
      Json list = Json::array();
      for (auto n = random() % 5; n > 0; --n) list.push_back(random_document(random, depth + 1));
      return list;
    }
    default: {
      Json object = Json::object();
      for (auto n = random() % 5; n > 0; --n)
        object[std::to_string(random() % 100)] = random_document(random, depth + 1);
      return object;
    }
  }
}

TEST(JsonValue, RandomDocumentsAreReadAsTheyWereWritten) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const Json json = random_document(random, 0);
    ASSERT_EQ(read(json.dump()), json) << json.dump();
    ASSERT_EQ(read(json.dump(3)), json) << json.dump(3);
  }
}

}  // namespace
}  // namespace shadowib
