// Where the images of a set lie: placement.json beside the manifest. Central sets have none.
//
// The manifest never changes; a placement is replaced as a whole. It is a hint: an image is believed by its hash,
// which the manifest has. Format: docs/reference/formats.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hooks/store/parity_group.h"
#include "hooks/store/store_spec.h"
#include "shadowib/base/status.h"

namespace shadowib {

inline constexpr char kPlacementFile[] = "placement.json";
// 2 has groups of parities; sets without are written as 1.
inline constexpr int kPlacementFormat = 2;

struct PlacedPiece {
  std::string file;
  std::vector<PieceHost> hosts;  // none: it lies in the set's own directory
};

struct SetPlacement {
  StoreSpec store;
  std::string place;                // the directory PLACE on each host; job/near_directory.h has the rest of the path
  std::vector<PlacedPiece> pieces;  // parities, too
  std::vector<ParityGroup> groups;  // of a store with parity: each image is in one

  const PlacedPiece* find(std::string_view file) const;
  // The group that a piece is in; nullptr: in none.
  const ParityGroup* group_of(std::string_view file) const;
};

std::string encode_placement(const SetPlacement& placement);
// `name` is what messages call the set. kCorrupt, kVersion.
Status decode_placement(std::string_view json, const std::string& name, SetPlacement* placement);

}  // namespace shadowib
