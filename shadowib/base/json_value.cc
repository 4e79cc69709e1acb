#include "shadowib/base/json_value.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
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

// The length of the UTF-8 sequence at the beginning of `text`; 0: there is none.
std::size_t utf8_length(std::string_view text) {
  const auto at = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((at(i) & 0xc0) != 0x80) return 0;
  // No longer form of a shorter sequence, no surrogate, nothing above U+10FFFF.
  if ((first == 0xe0 && at(1) < 0xa0) || (first == 0xed && at(1) > 0x9f) || (first == 0xf0 && at(1) < 0x90) ||
      (first == 0xf4 && at(1) > 0x8f))
    return 0;
  return length;
}

void append_quoted(std::string* to, std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  static constexpr std::string_view kShort = "\"\"\\\\\bb\ff\nn\rr\tt";  // pairs: the character, its letter
  *to += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text[0];
    std::size_t shorthand = 0;
    while (shorthand < kShort.size() && kShort[shorthand] != c) shorthand += 2;
    if (length == 0)
      *to += "\xef\xbf\xbd";
    else if (shorthand < kShort.size())
      (*to += '\\') += kShort[shorthand + 1];
    else if (static_cast<unsigned char>(c) < 0x20)
      ((*to += "\\u00") += kDigits[c >> 4]) += kDigits[c & 15];
    else
      *to += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  *to += '"';
}

void append_real(std::string* to, double number) {
  if (!std::isfinite(number)) {
    *to += "null";  // JSON has no other word for it
    return;
  }
  char text[32];
  const std::string_view shortest(
      text, static_cast<std::size_t>(std::to_chars(text, text + sizeof(text), number).ptr - text));
  *to += shortest;
  if (shortest.find_first_of(".e") == std::string_view::npos) *to += ".0";  // and stays a real number when it is read
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
  std::string text;
  append_to(&text, indent, 0);
  return text;
}

void Json::append_to(std::string* text, int indent, int depth) const {
  const auto separate = [text, indent](int level) {
    if (indent < 0) return;
    *text += '\n';
    text->append(static_cast<std::size_t>(indent * level), ' ');
  };
  bool first = true;
  const auto next = [&] {
    if (!first) *text += ',';
    first = false;
    separate(depth + 1);
  };
  switch (kind_) {
    case Kind::kNull:
      *text += "null";
      return;
    case Kind::kBoolean:
      *text += bits_ != 0 ? "true" : "false";
      return;
    case Kind::kInteger:
      *text += std::to_string(static_cast<std::int64_t>(bits_));
      return;
    case Kind::kUnsigned:
      *text += std::to_string(bits_);
      return;
    case Kind::kReal:
      append_real(text, real());
      return;
    case Kind::kString:
      append_quoted(text, text_);
      return;
    case Kind::kArray:
      *text += '[';
      for (const Json& element : array_) {
        next();
        element.append_to(text, indent, depth + 1);
      }
      if (!first) separate(depth);
      *text += ']';
      return;
    case Kind::kObject:
      *text += '{';
      for (const Member& member : object_) {
        next();
        append_quoted(text, member.name);
        *text += indent < 0 ? ":" : ": ";
        member.value.append_to(text, indent, depth + 1);
      }
      if (!first) separate(depth);
      *text += '}';
      return;
  }
}

bool Json::operator==(const Json& other) const {
  return kind_ == other.kind_ && bits_ == other.bits_ && text_ == other.text_ && array_ == other.array_ &&
         object_ == other.object_;
}

}  // namespace shadowib
