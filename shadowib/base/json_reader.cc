// Reading JSON (RFC 8259). Input comes from files that may be damaged: depth is bounded, every byte is looked at
// once.
#include <charconv>
#include <utility>

#include "shadowib/base/json_value.h"

namespace shadowib {
namespace {

constexpr int kMostLevels = 512;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool read_document(Json* to) {
    if (!read_value(to, 0)) return false;
    skip_blanks();
    return at_ == text_.size() || fail("text after the document");
  }

  std::string why() const { return "byte " + std::to_string(at_) + ": " + why_; }

 private:
  bool fail(const char* why) {
    if (why_ == nullptr) why_ = why;
    return false;
  }
  bool skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
    return true;
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  // Takes `token` if it comes next.
  bool take(std::string_view token) {
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  bool expect(std::string_view token, const char* why) { return (skip_blanks() && take(token)) || fail(why); }

  bool read_value(Json* to, int level) {
    if (level > kMostLevels) return fail("too many levels");
    skip_blanks();
    switch (peek()) {
      case '{':
        return read_object(to, level);
      case '[':
        return read_array(to, level);
      case '"': {
        std::string text;
        if (!read_string(&text)) return false;
        *to = Json(std::move(text));
        return true;
      }
      case 't':
        return read_word("true", true, to);
      case 'f':
        return read_word("false", false, to);
      case 'n':
        return read_word("null", nullptr, to);
      default:
        return read_number(to);
    }
  }

  bool read_word(std::string_view word, Json value, Json* to) {
    if (!take(word)) return fail("unknown word");
    *to = std::move(value);
    return true;
  }

  bool read_array(Json* to, int level) {
    *to = Json::array();
    take("[");
    skip_blanks();
    if (take("]")) return true;
    do {
      Json element;
      if (!read_value(&element, level + 1)) return false;
      to->push_back(std::move(element));
      skip_blanks();
    } while (take(","));
    return expect("]", "no , or ] after an element");
  }

  bool read_object(Json* to, int level) {
    *to = Json::object();
    take("{");
    skip_blanks();
    if (take("}")) return true;
    do {
      std::string name;
      skip_blanks();
      if (peek() != '"') return fail("no name of a member");
      if (!read_string(&name) || !expect(":", "no : after a name")) return false;
      Json value;
      if (!read_value(&value, level + 1)) return false;
      (*to)[name] = std::move(value);
      skip_blanks();
    } while (take(","));
    return expect("}", "no , or } after a member");
  }

  bool read_string(std::string* to) {
    take("\"");
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return fail("a control character in a string");
      if (c != '\\')
        *to += c;
      else if (!read_escape(to))
        return false;
    }
    return fail("a string without end");
  }

  bool read_escape(std::string* to) {
    static constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const char letter = peek();
    if (const std::size_t i = kLetters.find(letter); i != std::string_view::npos && at_ < text_.size()) {
      *to += kMeanings[i];
      ++at_;
      return true;
    }
    std::uint32_t code = 0, low = 0;
    if (!read_unit(&code)) return false;
    if (code >= 0xdc00 && code < 0xe000) return fail("half of a surrogate pair");
    if (code >= 0xd800 && code < 0xdc00) {
      if (!take("\\") || !read_unit(&low) || low < 0xdc00 || low >= 0xe000) return fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(to, code);
    return true;
  }

  // uXXXX
  bool read_unit(std::uint32_t* code) {
    const char* begin = text_.data() + at_ + 1;
    if (peek() != 'u' || text_.size() - at_ < 5) return fail("an unknown escape");
    const auto [end, error] = std::from_chars(begin, begin + 4, *code, 16);
    if (error != std::errc() || end != begin + 4) return fail("an unknown escape");
    at_ += 5;
    return true;
  }

  static void append_utf8(std::string* to, std::uint32_t code) {
    const auto put = [to](std::uint32_t byte) { *to += static_cast<char>(byte); };
    const auto follow = [&put, code](int shift) { put(0x80 | ((code >> shift) & 0x3f)); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xc0 | (code >> 6));
      follow(0);
    } else if (code < 0x10000) {
      put(0xe0 | (code >> 12));
      follow(6);
      follow(0);
    } else {
      put(0xf0 | (code >> 18));
      follow(12);
      follow(6);
      follow(0);
    }
  }

  std::size_t digits() {
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ - begin;
  }

  // A whole number that 64 bits hold stays one; all others become real.
  bool read_number(Json* to) {
    const std::size_t begin = at_;
    const bool negative = take("-");
    const bool zero = peek() == '0';
    const std::size_t count = digits();
    if (count == 0) return fail("no value");
    if (zero && count > 1) return fail("a number that begins with 0");
    bool whole = true;
    if (take(".")) {
      whole = false;
      if (digits() == 0) return fail("no digit after the point");
    }
    if (take("e") || take("E")) {
      whole = false;
      if (!take("+")) take("-");
      if (digits() == 0) return fail("no digit of the exponent");
    }
    const char *first = text_.data() + begin, *last = text_.data() + at_;
    std::int64_t integer = 0;
    std::uint64_t natural = 0;
    if (whole && negative && std::from_chars(first, last, integer).ec == std::errc()) {
      *to = Json(integer);
    } else if (whole && !negative && std::from_chars(first, last, natural).ec == std::errc()) {
      *to = Json(natural);
    } else {
      double real = 0;
      if (std::from_chars(first, last, real).ec != std::errc()) return fail("a number out of range");
      *to = Json(real);
    }
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  const char* why_ = nullptr;
};

}  // namespace

bool Json::parse(std::string_view text, Json* to, std::string* why) {
  Reader reader(text);
  if (reader.read_document(to)) return true;
  if (why != nullptr) *why = reader.why();
  return false;
}

}  // namespace shadowib
