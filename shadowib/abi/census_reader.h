// For tests: what an ELF file exports or imports, and which function slots a header declares.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace shadowib::census {

struct Symbol {
  std::string name, version;  // version empty: none
  bool is_default = false, defined = false, is_data = false;
  std::string text() const { return version.empty() ? name : name + (is_default ? "@@" : "@") + version; }
};

// The dynamic symbols of `file` as readelf lists them. Fails (empty) if readelf does.
std::vector<Symbol> dynamic_symbols(const std::string& file);

// "struct.member" of every function pointer in the structs of verbs.h that inlines call through.
std::set<std::string> function_slots(const std::string& header_text);

std::string read_text(const std::string& path);

// The census as generated for the installed library: "name@@VERSION" and "name@VERSION", and "struct.member".
std::set<std::string> census_symbols();
std::set<std::string> census_slots();

}  // namespace shadowib::census
