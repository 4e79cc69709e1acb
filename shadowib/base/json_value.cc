// The only unit that includes nlohmann-json: it reads text and writes it.
#include "shadowib/base/json_value.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace shadowib {
namespace {

const char* kind_text(Json::Kind kind) {
  static const char* const kTexts[] = {"null",     "a boolean", "a number", "a number",
                                       "a number", "a string",  "an array", "an object"};
  return kTexts[static_cast<int>(kind)];
}

[[noreturn]] void complain(Json::Kind kind, const char* wanted) {
  throw std::domain_error(std::string("is ") + kind_text(kind) + ", not " + wanted);
}

using Library = nlohmann::ordered_json;

constexpr int kMostLevels = 512;

Library to_library(const Json& json) {
  switch (json.kind()) {
    case Json::Kind::kNull:
      break;
    case Json::Kind::kBoolean:
      return json.get<bool>();
    case Json::Kind::kInteger:
      return json.get<std::int64_t>();
    case Json::Kind::kUnsigned:
      return json.get<std::uint64_t>();
    case Json::Kind::kReal:
      return json.get<double>();
    case Json::Kind::kString:
      return json.get<std::string>();
    case Json::Kind::kArray: {
      Library list = Library::array();
      for (const Json& element : json) list.push_back(to_library(element));
      return list;
    }
    case Json::Kind::kObject: {
      Library object = Library::object();
      for (const auto& [name, value] : json.items()) object[name] = to_library(value);
      return object;
    }
  }
  return nullptr;
}

Json from_library(const Library& value) {
  switch (value.type()) {
    case Library::value_t::boolean:
      return value.get<bool>();
    case Library::value_t::number_integer:
      return value.get<std::int64_t>();
    case Library::value_t::number_unsigned:
      return value.get<std::uint64_t>();
    case Library::value_t::number_float:
      return value.get<double>();
    case Library::value_t::string:
      return value.get<std::string>();
    case Library::value_t::array: {
      Json list = Json::array();
      for (const Library& element : value) list.push_back(from_library(element));
      return list;
    }
    case Library::value_t::object: {
      Json object = Json::object();
      for (const auto& [name, member] : value.items()) object[name] = from_library(member);
      return object;
    }
    default:
      return nullptr;
  }
}

// The library's parser for damaged files: it does not recurse, but all that reads its result does.
bool check_depth(int depth, nlohmann::ordered_json::parse_event_t event, Library&) {
  using Event = nlohmann::ordered_json::parse_event_t;
  if ((event == Event::array_start || event == Event::object_start) && depth >= kMostLevels)
    throw std::runtime_error("more than " + std::to_string(kMostLevels) + " levels");
  return true;
}

}  // namespace

Json::Json() noexcept : kind_(Kind::kNull), bits_(0) {}
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json::Json(std::string text) : kind_(Kind::kString), bits_(0), text_(std::move(text)) {}
Json::Json(std::string_view text) : Json(std::string(text)) {}
Json::Json(const char* text) : Json(std::string(text)) {}
Json::Json(double number) : kind_(Kind::kReal), bits_(std::bit_cast<std::uint64_t>(number)) {}

Json::Json(std::initializer_list<Json> elements) : Json() {
  const auto is_member = [](const Json& e) {
    return e.kind_ == Kind::kArray && e.array_.size() == 2 && e.array_[0].is_string();
  };
  if (std::all_of(elements.begin(), elements.end(), is_member)) {
    kind_ = Kind::kObject;
    for (const Json& e : elements) object_.push_back({e.array_[0].text_, e.array_[1]});
  } else {
    kind_ = Kind::kArray;
    array_ = elements;
  }
}

Json::Json(const std::vector<std::string>& texts) : Json(array()) {
  for (const std::string& text : texts) array_.emplace_back(text);
}

Json Json::array() {
  Json json;
  json.kind_ = Kind::kArray;
  return json;
}

Json Json::object() {
  Json json;
  json.kind_ = Kind::kObject;
  return json;
}

void Json::set(Kind kind, std::uint64_t bits) {
  kind_ = kind;
  bits_ = bits;
}

void Json::become(Kind kind) {
  if (kind_ == Kind::kNull) kind_ = kind;
  if (kind_ != kind) complain(kind_, kind_text(kind));
}

std::size_t Json::size() const { return array_.size() + object_.size(); }
Json::Array::const_iterator Json::begin() const { return array_.begin(); }
Json::Array::const_iterator Json::end() const { return array_.end(); }
const Json::Object& Json::items() const { return object_; }

Json& Json::operator[](std::string_view name) {
  become(Kind::kObject);
  for (Member& member : object_)
    if (member.name == name) return member.value;
  object_.push_back({std::string(name), {}});
  return object_.back().value;
}

const Json& Json::operator[](std::string_view name) const {
  static const Json kMissing;
  for (const Member& member : object_)
    if (member.name == name) return member.value;
  return kMissing;
}

const Json& Json::at(std::string_view name) const {
  for (const Member& member : object_)
    if (member.name == name) return member.value;
  throw std::out_of_range("there is no \"" + std::string(name) + "\"");
}

bool Json::contains(std::string_view name) const {
  return std::any_of(object_.begin(), object_.end(), [name](const Member& member) { return member.name == name; });
}

void Json::push_back(Json element) {
  become(Kind::kArray);
  array_.push_back(std::move(element));
}

std::uint64_t Json::bits() const {
  if (kind_ != Kind::kInteger && kind_ != Kind::kUnsigned) complain(kind_, "a number");
  return bits_;
}
double Json::real() const { return std::bit_cast<double>(bits_); }
bool Json::boolean() const {
  if (kind_ != Kind::kBoolean) complain(kind_, "a boolean");
  return bits_ != 0;
}
const std::string& Json::text() const {
  if (kind_ != Kind::kString) complain(kind_, "a string");
  return text_;
}

std::string Json::dump(int indent) const {
  return to_library(*this).dump(indent, ' ', false, Library::error_handler_t::replace);
}

bool Json::parse(std::string_view text, Json* to, std::string* why) {
  try {
    *to = from_library(Library::parse(text, check_depth));
    return true;
  } catch (const std::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: ..."
    const std::string_view words = error.what();
    const std::size_t end_of_name = words[0] == '[' ? words.find("] ") : std::string_view::npos;
    if (why != nullptr) *why = end_of_name == std::string_view::npos ? words : words.substr(end_of_name + 2);
    return false;
  }
}

bool Json::operator==(const Json& other) const {
  return kind_ == other.kind_ && bits_ == other.bits_ && text_ == other.text_ && array_ == other.array_ &&
         object_ == other.object_;
}

}  // namespace shadowib
