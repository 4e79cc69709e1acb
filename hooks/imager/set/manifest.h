// The bytes of a set's manifest: manifest.json, checked by manifest.xxh3.
//
// manifest.xxh3 is one line, "<XXH3-128 of manifest.json, 32 hex digits>  manifest.json\n", so that `xxh128sum -c
// manifest.xxh3` says the same as we do. Both files are compared byte by byte; nothing of manifest.json is believed
// before its checksum agrees.
#pragma once

#include <string>
#include <string_view>

#include "hooks/imager/checkpoint_set.h"

namespace shadowib {

inline constexpr char kManifestFile[] = "manifest.json";
inline constexpr char kManifestSumFile[] = "manifest.xxh3";
inline constexpr int kManifestFormat = 1;
inline constexpr int kNearManifestFormat = 2;  // the same of a near set, which shadowib without stores cannot read

std::string encode_manifest(const SetManifest& manifest);
// A set with packs: shadowib without incremental checkpoints cannot read it.
inline constexpr int kPackedManifestFormat = 3;
// A CLC: shadowib without clusters would take it for a whole job.
inline constexpr int kClusterManifestFormat = 4;
// A CLC that tells of connections to other clusters, or a set of members of several generations.
inline constexpr int kRecoveryManifestFormat = 5;
// Portable images (docs/internals/portable-images.md), which no imager restores. The manifest's backend says so.
inline constexpr int kPortableManifestFormat = 6;
inline constexpr int kLatestManifestFormat = kPortableManifestFormat;
inline constexpr char kPortableBackend[] = "portable";
inline bool is_portable(const SetManifest& manifest) { return manifest.backend == kPortableBackend; }

// The content of manifest.xxh3 for a manifest.json.
std::string manifest_sum(std::string_view json);
// `name` is what messages call the set. kCorrupt, kVersion. *is_near (may be null): it has a placement.
Status decode_manifest(std::string_view json, std::string_view sum, const std::string& name, SetManifest* manifest,
                       bool* is_near = nullptr);

// XXH3-128 of a file's bytes, as 32 hex digits. kIo.
Status sum_of_file(const std::string& path, std::string* sum);

std::string to_hex(const std::uint8_t* bytes, std::size_t count);

}  // namespace shadowib
