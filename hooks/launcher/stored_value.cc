#include "hooks/launcher/stored_value.h"

#include <cstring>

namespace shadowib {
namespace {

constexpr char kMagic[] = "SIBPUTS1";
constexpr std::size_t kMagicBytes = sizeof(kMagic) - 1;

void append(std::string* text, std::uint32_t number) {
  text->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

bool take_number(const std::string& text, std::size_t* at, std::uint32_t* number) {
  if (text.size() - *at < sizeof(*number)) return false;
  std::memcpy(number, text.data() + *at, sizeof(*number));
  *at += sizeof(*number);
  return true;
}

bool take_text(const std::string& text, std::size_t* at, std::string* taken) {
  std::uint32_t bytes = 0;
  if (!take_number(text, at, &bytes) || bytes > text.size() - *at) return false;
  taken->assign(text, *at, bytes);
  *at += bytes;
  return true;
}

}  // namespace

std::string encode_values(const StoredValues& values) {
  std::string text = kMagic;
  append(&text, static_cast<std::uint32_t>(values.size()));
  for (const auto& [key, value] : values) {
    append(&text, static_cast<std::uint32_t>(key.size()));
    text += key;
    append(&text, value.type);
    append(&text, static_cast<std::uint32_t>(value.bytes.size()));
    text += value.bytes;
  }
  return text;
}

bool decode_values(const std::string& text, StoredValues* values) {
  values->clear();
  std::size_t at = kMagicBytes;
  std::uint32_t count = 0;
  if (text.compare(0, kMagicBytes, kMagic) != 0 || !take_number(text, &at, &count)) return false;
  for (; count > 0; --count) {
    std::string key;
    StoredValue value;
    std::uint32_t type = 0;
    if (!take_text(text, &at, &key) || !take_number(text, &at, &type) || type > UINT16_MAX ||
        !take_text(text, &at, &value.bytes))
      return false;
    value.type = static_cast<std::uint16_t>(type);
    (*values)[key] = std::move(value);
  }
  return at == text.size();
}

}  // namespace shadowib
