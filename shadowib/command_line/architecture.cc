#include "shadowib/command_line/architecture.h"

#include <elf.h>

#include <cstring>
#include <fstream>

namespace command_line {
namespace {

constexpr struct {
  int machine;
  const char* name;
} kKnown[] = {
    {EM_X86_64, "x86_64"}, {EM_386, "i686"}, {EM_AARCH64, "aarch64"}, {EM_S390, "s390x"}, {EM_PPC, "powerpc"}};

}  // namespace

std::string architecture_of(const std::string& program) {
  unsigned char head[20] = {};
  std::ifstream file(program, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(head), sizeof(head)) || std::memcmp(head, ELFMAG, SELFMAG) != 0) return {};
  const int machine = head[EI_DATA] == ELFDATA2MSB ? head[18] << 8 | head[19] : head[19] << 8 | head[18];
  for (const auto& known : kKnown)
    if (known.machine == machine) return known.name;
  return "machine-" + std::to_string(machine);
}

std::string this_architecture() { return architecture_of("/proc/self/exe"); }

bool is_architecture(const std::string& name) {
  for (const auto& known : kKnown)
    if (name == known.name) return true;
  return false;
}

}  // namespace command_line
