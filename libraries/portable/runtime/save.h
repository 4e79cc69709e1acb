// Writes the image of this process.
#pragma once

#include <string>

namespace shadowib::portable {

// Writes DIRECTORY/member-N.psi, by another name first: the old one stays until the new one is whole. Call with the
// stack left. Throws Refused; nothing has changed then.
void save_image(const std::string& directory, std::uint32_t member, std::uint64_t visits);

}  // namespace shadowib::portable
