// Which members have files that may be one open file description, and who is to find out.
#include <map>
#include <utility>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/file_likeness.h"
#include "hooks/imager/descriptors/match/match.h"

namespace shadowib {

Status assign_comparisons(const std::map<std::uint32_t, std::string>& encoded,
                          std::map<std::uint32_t, std::string>* duties) {
  using namespace descriptors;
  Tables tables;
  SHADOWIB_TRY(decode_tables(encoded, &tables));
  // kcmp(2) takes numbers of one pid namespace.
  std::map<std::pair<std::uint64_t, FileLikeness>, std::vector<Holder>> alike;
  for (const auto& [member, table] : tables)
    for (std::uint32_t i = 0; i < table.objects.size(); ++i)
      if (const Object& o = table.objects[i]; has_shared_offset(o))
        alike[{table.processes, likeness_of(table, o)}].push_back({&table, i});
  std::uint32_t group = 0;
  for (const auto& [likeness, holders] : alike) {
    const Table& first = *holders.front().table;  // members ascend
    if (holders.back().table == &first) continue;
    std::string& duty = (*duties)[first.member];
    for (const Holder& h : holders) {
      duty += "c";
      for (const std::uint32_t number :
           {group, static_cast<std::uint32_t>(h.table->pid), static_cast<std::uint32_t>(h.table->first_fd(h.index)),
            h.table->member, h.index})
        duty += " " + std::to_string(number);
      duty += "\n";
    }
    ++group;
  }
  return {};
}

}  // namespace shadowib
