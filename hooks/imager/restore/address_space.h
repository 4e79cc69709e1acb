// Where things lie in an address space: ours now, and the image's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hooks/imager/restore/image_file.h"

namespace shadowib {

struct AddressRange {
  std::uint64_t start, end;
};

struct CurrentMapping {
  AddressRange range;
  std::string name;
};

// /proc/self/maps, ascending.
Status read_current_mappings(std::vector<CurrentMapping>* mappings);

// A start address of `bytes` (whole pages) that neither the image nor this process uses, with a distance to both that
// a growing stack does not bridge. 0 if there is none.
std::uint64_t find_hole(const LoadedImage& image, const std::vector<CurrentMapping>& current, std::uint64_t bytes);

}  // namespace shadowib
