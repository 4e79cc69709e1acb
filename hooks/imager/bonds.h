// Bonds between members of a set: one command has to restart them together, on one machine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "shadowib/base/status.h"

namespace shadowib {

struct Bond {
  std::uint32_t one, other;         // members
  std::function<Status()> refusal;  // of a restart of one without the other: kRefused, names both and what it is
};
using BondSink = std::function<void(const Bond&)>;

// For the bonds between a member `here` and one that is not: *refusal is the first one's, and as it was if there is
// none.
inline BondSink first_parted(const std::set<std::uint32_t>& here, Status* refusal) {
  return [&here, refusal](const Bond& bond) {
    if (refusal->ok() && here.contains(bond.one) != here.contains(bond.other)) *refusal = bond.refusal();
  };
}

// Each names bonds that connect all whom it is about, though not every two of them. kCorrupt: a table cannot be read.
// Bonds of open descriptors: all that several members hold, and connections other than TCP.
Status find_descriptor_bonds(const std::map<std::uint32_t, std::string>& tables, const BondSink& sink);
// Those of files that members write to by one offset, without O_APPEND: apart they would write over each other.
// `streams` tells what members get whose standard stream is such a file. With kOwn it is this command's stream, and
// one that appends to the file binds nobody. With kOfOthers it is that of a command on another host.
enum class Streams { kOwn, kOfOthers };
Status find_offset_bonds(const std::map<std::uint32_t, std::string>& tables, Streams streams, const BondSink& sink);
// Bonds of parents and children.
Status find_family_bonds(const std::map<std::uint32_t, std::string>& tables, const BondSink& sink);

}  // namespace shadowib
