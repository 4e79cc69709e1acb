// Facts that the AST half of the plugin finds for its IR half, in one run of the compiler on one file.
//
// Both halves are in one shared object, loaded twice by clang under one name, so they share these variables.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace shadowib::portable::compiler {

struct Facts {
  // Options of the driver.
  bool report = false;
  bool strip_debug = false;
  bool everywhere = false;
  std::uint64_t everywhere_seed = 0;
  bool cplusplus = false;
  // Functions by the names that the linker sees.
  std::set<std::string> no_site;    // of system headers, or marked SHADOWIB_NO_SITE
  std::set<std::string> may_site;   // marked SHADOWIB_MAY_SITE
  std::set<std::string> in_system;  // defined in a system header; of C++ also those that it only declares
  // Hashes of sources: tokens as they are spelled, so equal on every architecture. Not of system headers.
  std::map<std::string, std::uint64_t> function_hash;
  std::map<std::string, std::uint64_t> global_hash;
  // For C++, templates too, as "name=hash": without the linker's names, which are others where size_t is another.
  std::set<std::string> source_hash;
};

Facts& facts();

}  // namespace shadowib::portable::compiler
