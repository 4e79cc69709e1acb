// Bringing the kernel's vdso to where the image expects it.
#pragma once

#include "hooks/imager/restore/address_space.h"
#include "hooks/imager/restorer/restorer_args.h"

namespace shadowib {

struct VdsoPlan {
  std::uint32_t piece_count = 0;
  // `staging` is an offset within the staging area. `to` is 0 for a vdso that stays in the region.
  RestorerVdsoPiece pieces[kMaxVdsoPieces] = {};
  std::uint64_t staging_bytes = 0;
};

// kVersion names the kernels if this kernel's vdso is not the recorded one.
Status plan_vdso(const LoadedImage& image, const std::vector<CurrentMapping>& current, VdsoPlan* plan);

}  // namespace shadowib
