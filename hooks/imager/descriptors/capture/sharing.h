// Which numbers share an open file description.
//
// kcmp(2) orders descriptions, so it sorts numbers: some 14 calls for each of 10,000. Many numbers are sorted before
// the stop. In the stop one call each shows that the order still holds; numbers out of order are sorted in anew.
#pragma once

#include <cstdint>
#include <vector>

#include "hooks/imager/descriptors/table.h"

namespace shadowib::descriptors {

class Sharing {
 public:
  // `fds` ascend, and stay as they are.
  explicit Sharing(const std::vector<int>& fds);

  // Index into objects of the description behind fds[i], or -1 after noting that it will be `next`. For ascending i.
  int find_or_add(std::size_t i, const Object& object, const std::vector<Object>& objects, std::uint32_t next);

 private:
  int find_without_kcmp(int fd, const Object& object, const std::vector<Object>& objects, std::uint32_t next);

  struct Seen {
    int fd;
    std::uint32_t object;
  };

  const std::vector<int>& fds_;
  std::vector<std::uint32_t> groups_;  // by index in fds: numbers of one group share a description; empty: no kcmp
  std::vector<int> objects_;           // by group; -1: not there yet
  std::vector<Seen> seen_;             // without kcmp
};

// Before the stop, while the program runs: sorts its descriptors, if they are many.
void sort_descriptors();
// The order is forgotten.
void forget_sorted_descriptors();

}  // namespace shadowib::descriptors
