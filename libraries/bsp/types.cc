#include "libraries/bsp/types.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "libraries/bsp/pattern.h"

namespace shadowib::bsp {

#if defined(__x86_64__)
const char kTarget[] = "x86_64";
#elif defined(__i386__)
const char kTarget[] = "i686";
#elif defined(__aarch64__)
const char kTarget[] = "aarch64";
#elif defined(__s390x__)
const char kTarget[] = "s390x";
#else
const char kTarget[] = "another";
#endif

namespace {

// 0: no such code.
std::size_t size_of(const std::string& target, char code) {
  switch (code) {
    case 'c':
    case 'b':
    case 'B':
      return 1;
    case 'h':
    case 'H':
      return 2;
    case 'i':
    case 'I':
    case 'f':
      return 4;
    case 'l':
    case 'L':
      return target == "i686" ? 4 : 8;
    case 'q':
    case 'Q':
    case 'd':
      return 8;
    default:
      return 0;
  }
}

bool is_big(const std::string& target) { return target == "s390x"; }

// A record is often sent by a pointer to its bytes, which says nothing of what is in it.
std::string may_be_anything(const std::string& whose) { return "has bytes" + whose + ", which may be anything"; }
std::string no_whole_numbers(std::size_t bytes) {
  return "has " + std::to_string(bytes) + " bytes, which are no whole numbers";
}

// The bytes of a number, lowest first, at its full width.
std::uint64_t read(const std::byte* at, std::size_t size, bool big, bool is_signed) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i) value |= static_cast<std::uint64_t>(at[big ? size - 1 - i : i]) << (8 * i);
  if (is_signed && size < 8 && (value >> (8 * size - 1) & 1) != 0) value |= ~std::uint64_t{0} << (8 * size);
  return value;
}

bool fits(std::uint64_t value, std::size_t size, bool is_signed) {
  if (size == 8) return true;
  if (!is_signed) return value >> (8 * size) == 0;
  const auto number = static_cast<std::int64_t>(value);
  const std::int64_t most = (std::int64_t{1} << (8 * size - 1)) - 1;
  return number <= most && number >= -most - 1;
}

}  // namespace

std::string turn(char code, std::byte* data, std::size_t bytes) {
  const std::size_t size = size_of(kTarget, code);
  if (bytes == 0) return {};
  if (size == 1) return may_be_anything("");
  if (size == 0) return "has values whose type is not known";
  if (bytes % size != 0) return no_whole_numbers(bytes);
  turn_numbers(data, size, bytes);
  return {};
}

std::string convert(const std::string& target, char code, const std::byte* data, std::size_t bytes,
                    std::vector<std::byte>* to) {
  if (target == kTarget || bytes == 0) {
    to->insert(to->end(), data, data + bytes);
    return {};
  }
  const std::size_t there = size_of(target, code), here = size_of(kTarget, code);
  const bool alike = is_big(target) == is_big(kTarget) && size_of(target, 'l') == size_of(kTarget, 'l');
  if (there == 1 && !alike) return may_be_anything(" of " + target);
  if (there == 0) return "has values of " + target + " whose type is not known";
  if (bytes % there != 0) return no_whole_numbers(bytes);
  const bool is_signed = std::strchr("bhilq", code) != nullptr;
  for (std::size_t i = 0; i < bytes; i += there) {
    const std::uint64_t value = read(data + i, there, is_big(target), is_signed);
    if (!fits(value, here, is_signed))
      return "holds " + (is_signed ? std::to_string(static_cast<std::int64_t>(value)) : std::to_string(value)) +
             ", which does not fit a long of this architecture";
    for (std::size_t k = 0; k < here; ++k)
      to->push_back(static_cast<std::byte>(value >> (8 * (is_big(kTarget) ? here - 1 - k : k))));
  }
  return {};
}

}  // namespace shadowib::bsp
