// Which libraries a member has, for its set's manifest.
#pragma once

#include <string>

namespace shadowib {

// Lines "<build-id hex or -> <path>\n" of the regular files mapped here.
std::string describe_mapped_files();

}  // namespace shadowib
