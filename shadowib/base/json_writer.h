// Writes small JSON objects: what a member tells of itself.
//
// Appends to a string and keeps no state: a writer goes on wherever an object or array stands open. Uses no heap but
// the string's. Commands, which also read JSON, have base/json_value.h.
#pragma once

#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>

namespace shadowib {
namespace json_writer {

// How many bytes of UTF-8 begin the text; 0 if none are well-formed.
inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xc2 && first <= 0xdf   ? 2
                             : first >= 0xe0 && first <= 0xef ? 3
                             : first >= 0xf0 && first <= 0xf4 ? 4
                                                              : 0;
  if (length == 0 || text.size() < length) return 0;
  // Overlong forms, surrogates and what lies above U+10FFFF show in the second byte.
  const unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  return length;
}

inline void append_escaped(std::string* to, char c) {
  switch (c) {
    case '"':
    case '\\':
      *to += '\\', *to += c;
      return;
    case '\n':
      *to += "\\n";
      return;
    case '\t':
      *to += "\\t";
      return;
    default:
      break;
  }
  if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) {
    *to += c;
    return;
  }
  char text[8];
  std::snprintf(text, sizeof(text), "\\u%04x", static_cast<unsigned char>(c));
  *to += text;
}

}  // namespace json_writer

// Appends `text` in quotes. Escapes what JSON wants escaped; replaces each byte that is not UTF-8 by U+FFFD.
inline void append_json_string(std::string* to, std::string_view text) {
  *to += '"';
  while (!text.empty()) {
    const std::size_t length = json_writer::utf8_length(text);
    if (length == 0)
      *to += "\xef\xbf\xbd";
    else if (length == 1)
      json_writer::append_escaped(to, text[0]);
    else
      to->append(text.substr(0, length));
    text.remove_prefix(length == 0 ? 1 : length);
  }
  *to += '"';
}

class JsonWriter {
 public:
  // Appends to *to, which outlives this object.
  explicit JsonWriter(std::string* to) : to_(to) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  // The name of the next value. Objects only.
  JsonWriter& key(std::string_view name) {
    separate();
    append_json_string(to_, name);
    *to_ += ':';
    return *this;
  }
  JsonWriter& value(std::string_view text) {
    separate();
    append_json_string(to_, text);
    return *this;
  }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  template <std::integral T>
  JsonWriter& value(T number) {
    if constexpr (std::same_as<T, bool>)
      return raw(number ? "true" : "false");
    else
      return raw(std::to_string(number));
  }
  // Text that is JSON already.
  JsonWriter& raw(std::string_view json) {
    separate();
    to_->append(json);
    return *this;
  }
  template <typename T>
  JsonWriter& member(std::string_view name, const T& of) {
    return key(name).value(of);
  }

 private:
  JsonWriter& open(char bracket) {
    separate();
    *to_ += bracket;
    return *this;
  }
  JsonWriter& close(char bracket) {
    *to_ += bracket;
    return *this;
  }
  // A comma, unless this is the first value of its object or array. Text ends with a quote, whatever it says.
  void separate() {
    if (!to_->empty() && to_->back() != '{' && to_->back() != '[' && to_->back() != ':') *to_ += ',';
  }

  std::string* to_;
};

}  // namespace shadowib
