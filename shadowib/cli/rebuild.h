// Rebuilding sets with parity.
#pragma once

#include <cstddef>
#include <string>

#include "hooks/imager/checkpoint_set.h"
#include "shadowib/base/status.h"

namespace shadowib::cli {

struct Rebuilt {
  std::size_t copied = 0, whole = 0;  // pieces made again, and all there are
};

// Has keepers make what is lost of a set, each piece on a host of a domain that its group has not, and replaces the
// placement. A host that is lost meanwhile costs another try. kNotFound: too little is left, or there is no host.
Status rebuild_parity(const std::string& directory, SetManifest* manifest, Rebuilt* rebuilt);

}  // namespace shadowib::cli
