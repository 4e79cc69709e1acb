#include "hooks/imager/restore/address_space.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>

namespace shadowib {
namespace {

constexpr std::uint64_t kLowest = 0x100000000, kHighest = 0x7fff00000000;
constexpr std::uint64_t kMargin = 16 << 20;  // the kernel's stack guard gap is 1 MiB

}  // namespace

Status read_current_mappings(std::vector<CurrentMapping>* mappings) {
  std::ifstream file("/proc/self/maps");
  std::string line;
  while (std::getline(file, line)) {
    CurrentMapping m;
    int name = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %*s %n", &m.range.start, &m.range.end, &name) <
        2)
      continue;
    if (name > 0 && static_cast<std::size_t>(name) <= line.size())
      m.name = line.substr(static_cast<std::size_t>(name));
    mappings->push_back(std::move(m));
  }
  if (mappings->empty()) return Status(Code::kIo, errno, "cannot read /proc/self/maps; mount /proc");
  return {};
}

std::uint64_t find_hole(const LoadedImage& image, const std::vector<CurrentMapping>& current, std::uint64_t bytes) {
  std::vector<AddressRange> used;
  for (const MappingRecord& m : image.mappings) used.push_back({m.start, m.start + m.length});
  for (std::uint32_t i = 0; i < image.vdso.piece_count; ++i)
    used.push_back({image.vdso.pieces[i].start, image.vdso.pieces[i].start + image.vdso.pieces[i].length});
  for (const CurrentMapping& m : current) used.push_back(m.range);
  std::sort(used.begin(), used.end(), [](const AddressRange& a, const AddressRange& b) { return a.start < b.start; });
  std::uint64_t at = kLowest;
  for (const AddressRange& range : used) {
    if (range.start >= at && range.start - at >= bytes + 2 * kMargin) break;
    if (range.end > at) at = range.end;
  }
  return at + bytes + 2 * kMargin <= kHighest ? at + kMargin : 0;
}

}  // namespace shadowib
