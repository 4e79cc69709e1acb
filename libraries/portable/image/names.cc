#include "libraries/portable/image/names.h"

#include <cxxabi.h>

#include <cctype>
#include <cstdlib>

namespace shadowib::portable {
namespace {

bool of_cplusplus(const std::string& name) { return name.compare(0, 2, "_Z") == 0; }

char letter_of_size(char letter) { return letter == 'm' || letter == 'y' ? 'j' : letter; }
char letter_of_all(char letter) { return letter == 'l' || letter == 'x' ? 'i' : letter_of_size(letter); }

// Names of the source, which have their lengths in front, stay. Other letters for types of whole numbers of 32 and 64
// bits become one; those that mean something else there mean it on each architecture.
std::string with_letters(const std::string& name, char (*common)(char)) {
  if (!of_cplusplus(name)) return name;
  std::string result;
  for (std::size_t i = 0; i < name.size();) {
    std::size_t length = 0;
    const std::size_t digits = i;
    while (i < name.size() && std::isdigit(static_cast<unsigned char>(name[i])) && length < name.size())
      length = length * 10 + static_cast<std::size_t>(name[i++] - '0');
    // A digit behind S, T or a literal's type is no length.
    const char before = digits ? name[digits - 1] : '_';
    const bool spelled = i > digits && before != 'S' && before != 'T' && !(digits > 1 && name[digits - 2] == 'L') &&
                         length <= name.size() - i && length > 0;
    if (i > digits) {
      result.append(name, digits, i - digits);
      if (spelled) {
        result.append(name, i, length);
        i += length;
      }
      continue;
    }
    result += common(name[i++]);
  }
  return result;
}

}  // namespace

std::string canonical_name(const std::string& name) { return with_letters(name, letter_of_all); }
std::string unsigned_name(const std::string& name) { return with_letters(name, letter_of_size); }

std::string readable_name(const std::string& name) {
  if (!of_cplusplus(name)) return name;
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  const std::string result = status == 0 && text ? text : name;
  std::free(text);
  return result;
}

}  // namespace shadowib::portable
