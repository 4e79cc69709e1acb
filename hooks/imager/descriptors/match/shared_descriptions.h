// Which files of several members are one open file description, with one offset for all of them.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <utility>

#include "hooks/imager/descriptors/file_likeness.h"
#include "hooks/imager/descriptors/match/match.h"

namespace shadowib::descriptors {

// The kernel has told (Table::shared_files). Where it has not, in sets from before and where kcmp(2) is denied, those
// that look alike are taken for one.
class SharedDescriptions {
 public:
  // Objects of one description have equal names.
  struct Name {
    bool told = false;                          // by the kernel
    std::uint32_t member = 0, description = 0;  // then: who has compared, and the number it gave
    FileLikeness likeness;
    int nth = 0;  // of the member's objects that look so
    auto operator<=>(const Name&) const = default;
  };

  // Takes in the answers of the kernel that this table's member has for others, too. First, for all tables.
  void add(const Table& table);
  // Ask once for each object that has_shared_offset(), in their order.
  Name name_of(const Table& table, std::uint32_t object);

 private:
  using Numbers = std::pair<std::uint32_t, std::uint32_t>;
  std::map<Numbers, Numbers> told_;  // by member and object
  std::map<std::pair<std::uint32_t, FileLikeness>, int> seen_;
};

}  // namespace shadowib::descriptors
