// verify_set with the real image reader and descriptor tables; alone here, so that only who calls it links those.
#include "hooks/imager/descriptors.h"
#include "hooks/imager/set/verify.h"

namespace shadowib {

Status verify_set(const std::string& set_path, SetManifest* manifest, void (*progress)(std::uint64_t, std::uint64_t),
                  const std::set<std::uint32_t>& members, VerifyDepth depth) {
  SetVerifier verifier{[depth](const std::string& path, ImageInfo* info) {
                         return depth == VerifyDepth::kForRestart ? read_image_tables(path, info)
                                                                  : read_image(path, info);
                       },
                       match_descriptors};
  return verify_set_with(verifier, set_path, manifest, progress, members);
}

}  // namespace shadowib
