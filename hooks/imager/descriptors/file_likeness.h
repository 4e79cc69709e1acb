// Files of two members that may be one open file description.
//
// A description that processes inherited has one offset for all of them, and the kernel's files of /proc do not tell.
// Descriptions that differ in anything of this are different ones. Those that do not are told apart by kcmp(2), in
// the member (compare_files() in descriptors.h), and else guessed.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "hooks/imager/descriptors/table.h"

namespace shadowib::descriptors {

struct FileLikeness {
  std::string kernel, path;
  std::uint64_t device = 0, inode = 0, offset = 0;
  int flags = 0;
  std::vector<std::tuple<int, int, std::uint64_t, std::uint64_t>> locks;  // those of the description
  bool has_flock = false;

  auto operator<=>(const FileLikeness&) const = default;
};

// Whether `object` has an offset that processes may share; others share what their own kinds tell.
bool has_shared_offset(const Object& object);
FileLikeness likeness_of(const Table& table, const Object& object);

}  // namespace shadowib::descriptors
