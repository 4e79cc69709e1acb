// Committing: a set exists whole or not at all (P3).
#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/set/manifest.h"
#include "hooks/imager/set/near_images.h"

namespace shadowib {

Status commit_set(Store& store, const std::string& staging, const SetManifest& manifest, std::string* set_path,
                  const MemberTables& tables) {
  const std::string json = encode_manifest(manifest);
  for (const SetMember& member : manifest.members)
    if (!lies_near(manifest, member)) SHADOWIB_TRY(store.sync(staging, member.file, member.bytes));
  if (manifest.placement.store.is_near()) {
    for (const auto& [member, table] : tables)
      SHADOWIB_TRY(store.write(staging, table_file(member), encode_table(table)));
    SHADOWIB_TRY(store.write(staging, kPlacementFile, encode_placement(manifest.placement)));
  }
  SHADOWIB_TRY(store.write(staging, kManifestFile, json));
  SHADOWIB_TRY(store.write(staging, kManifestSumFile, manifest_sum(json)));
  return store.commit(staging, owner_of(manifest), manifest.number, set_path);
}

}  // namespace shadowib
