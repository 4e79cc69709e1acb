// The files of a near set, in its directory and outside.
#pragma once

#include <string>

#include "hooks/imager/checkpoint_set.h"

namespace shadowib {

// True if the member's image lies on hosts, false if in the set's directory.
bool lies_near(const SetManifest& manifest, const SetMember& member);
// The name of a member's descriptor table in the directory of a near set.
std::string table_file(std::uint32_t member);
// Its content: a line with the XXH3-128 of the table, then the table.
std::string encode_table(const std::string& table);

}  // namespace shadowib
