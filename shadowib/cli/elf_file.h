// The few facts about an ELF file that decide whether a library can be preloaded into it, and what it asks of others.
#pragma once

#include <string>
#include <vector>

namespace shadowib::cli {

struct ElfFacts {
  bool is_elf = false;
  bool is_64_bit = false;
  int machine = 0;          // EM_...
  bool is_program = false;  // ET_EXEC or ET_DYN
  std::string interpreter;  // PT_INTERP; empty: static, or a shared library
  std::string soname;
  std::vector<std::string> needed;     // DT_NEEDED, in order
  std::vector<std::string> undefined;  // symbols that another library has to have, in the file's order
};

// False if the file cannot be read (errno); a file that is no ELF has is_elf false. Never trusts an offset in it.
bool read_elf(const std::string& path, ElfFacts* facts);

}  // namespace shadowib::cli
