// Arrays of plain data as text, for the exchange: a count of 64 bits, then the items as they lie in memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace shadowib {

template <typename T>
void put_array(std::string* out, const std::vector<T>& items) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::uint64_t n = items.size();
  out->append(reinterpret_cast<const char*>(&n), sizeof(n));
  out->append(reinterpret_cast<const char*>(items.data()), n * sizeof(T));
}

// Takes one off the front of *in. False: there is none.
template <typename T>
bool take_array(std::string_view* in, std::vector<T>* items) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::uint64_t n = 0;
  if (in->size() < sizeof(n)) return false;
  std::memcpy(&n, in->data(), sizeof(n));
  in->remove_prefix(sizeof(n));
  if (n > in->size() / sizeof(T)) return false;
  items->resize(n);
  if (n != 0) std::memcpy(static_cast<void*>(items->data()), in->data(), n * sizeof(T));
  in->remove_prefix(n * sizeof(T));
  return true;
}

}  // namespace shadowib
