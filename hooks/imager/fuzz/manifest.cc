// Fuzz target: the manifest of a set, with the checksum that fits it.
#include "hooks/imager/set/manifest.h"

#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  shadowib::SetManifest manifest;
  if (shadowib::decode_manifest(json, shadowib::manifest_sum(json), "set", &manifest).ok()) {
    // What was understood can be said again, and is the same then.
    const std::string again = shadowib::encode_manifest(manifest);
    shadowib::SetManifest second;
    if (!shadowib::decode_manifest(again, shadowib::manifest_sum(again), "set", &second).ok() ||
        shadowib::encode_manifest(second) != again)
      __builtin_trap();
  }
  return 0;
}
