#include "shadowib/base/json_writer.h"

#include <gtest/gtest.h>

namespace shadowib {
namespace {

TEST(JsonWriter, ValuesAreSeparatedAtEveryDepth) {
  std::string text;
  JsonWriter json(&text);
  json.begin_object().member("a", 1).member("b", -2L).member("c", true).key("list").begin_array();
  json.value("x").begin_object().end_object().begin_array().value(1u).value(2u).end_array().end_array();
  json.member("last", 18446744073709551615ull).end_object();
  EXPECT_EQ(text, R"({"a":1,"b":-2,"c":true,"list":["x",{},[1,2]],"last":18446744073709551615})");
}

TEST(JsonWriter, AWriterGoesOnWhereAnObjectStandsOpen) {
  std::string text = "{\"a\":{}";
  JsonWriter(&text).key("b").raw("[1]").member("c:", "{").end_object();
  EXPECT_EQ(text, "{\"a\":{},\"b\":[1],\"c:\":\"{\"}");
}

TEST(JsonWriter, StringsAreEscaped) {
  std::string text;
  append_json_string(&text, std::string_view("a\"b\\c\n\t\x01\x7f/\0z", 12));
  EXPECT_EQ(text, R"("a\"b\\c\n\t\u0001\u007f/\u0000z")");
}

TEST(JsonWriter, BytesThatAreNotUtf8AreReplaced) {
  const char* const kFine[] = {"\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"};
  for (const char* fine : kFine) {
    std::string text;
    append_json_string(&text, fine);
    EXPECT_EQ(text, "\"" + std::string(fine) + "\"");
  }
  const char* const kWrong[] = {"\x80",         "\xc0\x80",         "\xc3", "\xe0\x80\x80",
                                "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"};
  for (const char* wrong : kWrong) {
    std::string text, expected;
    append_json_string(&text, wrong);
    for (std::size_t i = 0; i < std::string_view(wrong).size(); ++i) expected += "\xef\xbf\xbd";
    EXPECT_EQ(text, "\"" + expected + "\"");
  }
}

}  // namespace
}  // namespace shadowib
