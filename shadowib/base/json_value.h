// A JSON document: built by commands, printed, and read back from files and members.
//
// Objects keep the order of their names. nlohmann-json reads and writes the text. Its headers take seconds to
// compile, so json_value.cc alone includes them. For commands: uses the heap and exceptions.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace shadowib {

class Json {
 public:
  struct Member;  // name, value
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;
  enum class Kind : std::uint8_t { kNull, kBoolean, kInteger, kUnsigned, kReal, kString, kArray, kObject };

  Json() noexcept;
  Json(std::nullptr_t) noexcept : Json() {}
  Json(std::string text);
  Json(std::string_view text);
  Json(const char* text);
  Json(double number);
  // One constructor for bool and all integers: no pointer converts to it.
  template <std::integral T>
  Json(T number) : Json() {
    if constexpr (std::same_as<T, bool>)
      set(Kind::kBoolean, number ? 1 : 0);
    else if constexpr (std::signed_integral<T>)
      set(number < 0 ? Kind::kInteger : Kind::kUnsigned,
          static_cast<std::uint64_t>(static_cast<std::int64_t>(number)));
    else
      set(Kind::kUnsigned, number);
  }
  // An object if each element is a pair that begins with a string, else an array.
  Json(std::initializer_list<Json> elements);
  Json(const std::vector<std::string>& texts);

  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  static Json array();
  static Json object();

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_boolean() const { return kind_ == Kind::kBoolean; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }
  bool is_number() const { return kind_ == Kind::kInteger || kind_ == Kind::kUnsigned || kind_ == Kind::kReal; }
  bool is_number_unsigned() const { return kind_ == Kind::kUnsigned; }  // a whole number, not negative
  bool is_number_integer() const { return kind_ == Kind::kInteger || kind_ == Kind::kUnsigned; }

  // Elements of an array or object; 0 for all else.
  std::size_t size() const;
  bool empty() const { return size() == 0; }
  // Elements of an array; of what is no array, none.
  Array::const_iterator begin() const;
  Array::const_iterator end() const;
  // Members of an object; of what is no object, none.
  const Object& items() const;

  // The member `name`; creates it, as null, where it is missing. A null becomes an object.
  Json& operator[](std::string_view name);
  // The member `name`, or null.
  const Json& operator[](std::string_view name) const;
  // std::out_of_range if this is no object or has no such member.
  const Json& at(std::string_view name) const;
  bool contains(std::string_view name) const;
  // A null becomes an array.
  void push_back(Json element);

  // The value as T: bool, an integer or real number, std::string. std::domain_error if it is of another kind. A
  // number is converted as by static_cast.
  template <typename T>
  T get() const {
    if constexpr (std::same_as<T, std::string>)
      return text();
    else if constexpr (std::same_as<T, bool>)
      return boolean();
    else
      return kind_ == Kind::kReal       ? static_cast<T>(real())
             : kind_ == Kind::kUnsigned ? static_cast<T>(bits())
                                        : static_cast<T>(static_cast<std::int64_t>(bits()));
  }
  template <typename T>
  void get_to(T& to) const {
    to = get<T>();
  }
  // The member `name` as T, or `otherwise` where it is missing.
  template <typename T>
  T value(std::string_view name, T otherwise) const {
    return contains(name) ? (*this)[name].get<T>() : otherwise;
  }
  std::string value(std::string_view name, const char* otherwise) const {
    return value(name, std::string(otherwise));
  }

  // The document as text: on one line, or a line for each element, `indent` blanks deeper at each level. Bytes that
  // are not UTF-8 are replaced by U+FFFD.
  std::string dump(int indent = -1) const;

  // Reads one document of at most 512 levels. False, with the reason and its place in *why, if `text` is none.
  static bool parse(std::string_view text, Json* to, std::string* why = nullptr);

  bool operator==(const Json& other) const;

 private:
  void set(Kind kind, std::uint64_t bits);
  void become(Kind kind);
  std::uint64_t bits() const;
  double real() const;
  bool boolean() const;
  const std::string& text() const;

  Kind kind_;
  std::uint64_t bits_;  // of a boolean or number
  std::string text_;
  Array array_;
  Object object_;
};

struct Json::Member {
  std::string name;
  Json value;
  bool operator==(const Member& other) const = default;
};

}  // namespace shadowib
