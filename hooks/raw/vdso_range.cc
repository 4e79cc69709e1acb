#include "hooks/raw/vdso_range.h"

#include <cstring>

#include "shadowib/base/mappings.h"

namespace shadowib {

VdsoRange find_vdso() {
  VdsoRange found;
  for_each_mapping(MappingsOf::kExecutable, kOwnMaps, [&](const Mapping& mapping) {
    if (std::strcmp(mapping.name, "[vdso]") != 0) return true;
    found = {mapping.start, mapping.end};
    return false;
  });
  return found;
}

}  // namespace shadowib
