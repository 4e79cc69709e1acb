#include "hooks/imager/descriptors/match/shared_descriptions.h"

namespace shadowib::descriptors {

void SharedDescriptions::add(const Table& table) {
  for (const SharedFile& f : table.shared_files) told_[{f.member, f.object}] = {table.member, f.description};
}

SharedDescriptions::Name SharedDescriptions::name_of(const Table& table, std::uint32_t object) {
  FileLikeness likeness = likeness_of(table, table.objects[object]);
  if (const auto at = told_.find({table.member, object}); at != told_.end())
    return {true, at->second.first, at->second.second, std::move(likeness), 0};
  const int nth = seen_[{table.member, likeness}]++;
  return {false, 0, 0, std::move(likeness), nth};
}

}  // namespace shadowib::descriptors
