// A value that a rank has put for others, apart from the library's memory.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace shadowib {

struct StoredValue {
  std::uint16_t type = 0;  // pmix_data_type_t
  std::string bytes;       // the union of pmix_value_t, or what it points to
  bool operator==(const StoredValue&) const = default;
};
using StoredValues = std::map<std::string, StoredValue>;  // by key

// As others read them from the exchange. decode_values() believes nothing it reads; false: malformed.
std::string encode_values(const StoredValues& values);
bool decode_values(const std::string& text, StoredValues* values);

}  // namespace shadowib
