// The images of a set, opened for a restart.
#pragma once

#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/restore/image_file.h"
#include "hooks/imager/restore/namespaces.h"

namespace shadowib {

struct MemberImage {
  LoadedImage image;
  int fd;
  std::string path;
};

// All images of the set, in the manifest's order; their tables, not their pages. kNotFound, kCorrupt, kVersion. What
// was opened is in *members also on failure.
Status open_members(const SetManifest& manifest, std::vector<MemberImage>* members);
void close_members(const std::vector<MemberImage>& members);

// The latest that any member's clocks have shown.
ClockFloor clock_floor(const std::vector<MemberImage>& members);

}  // namespace shadowib
