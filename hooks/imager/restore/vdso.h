// Bringing the kernel's vdso to where the image expects it.
#pragma once

#include "hooks/imager/restore/address_space.h"
#include "hooks/imager/restorer/restorer_args.h"

namespace shadowib {

// If this kernel's vdso is the recorded one it goes to its place. Else it goes where nothing is, and the recorded
// one's place gets a copy of it whose every function leads to the one of the same name here: the image's libc holds
// their addresses. No thread of an image stands in a vdso (hooks/threads/stop.cc).
struct VdsoPlan {
  std::uint32_t piece_count = 0;
  RestorerVdsoPiece pieces[kMaxVdsoPieces] = {};  // `staging` is an offset within the staging area
  std::uint64_t staging_bytes = 0;
  AddressRange taken{0, 0};  // where this kernel's goes, if that is not the recorded one's place
  std::uint64_t copy_at = 0;
  std::vector<std::uint8_t> copy;  // with its functions diverted; empty: none is needed
};

// kVersion names the kernels if one's vdso cannot stand for the other's.
Status plan_vdso(const LoadedImage& image, const std::vector<CurrentMapping>& current, VdsoPlan* plan);

}  // namespace shadowib
