// Open file descriptions in the order that kcmp(2) gives them.
#pragma once

#include <cstddef>
#include <vector>

#include "hooks/raw/proc.h"

namespace shadowib::descriptors {

// Where a description belongs in `ascending`. compare(other) is compare_descriptions() of `other` and that one.
// *same: the one at *place is the same. False: the kernel does not compare.
template <typename T, typename Compare>
bool find_in_order(const std::vector<T>& ascending, Compare compare, std::size_t* place, bool* same) {
  std::size_t low = 0, high = ascending.size();
  *same = false;
  while (low < high && !*same) {
    const std::size_t middle = (low + high) / 2;
    const int order = compare(ascending[middle]);
    if (order < 0) return false;
    *same = order == kSameDescription;
    (order == kLessDescription ? low : high) = order == kLessDescription ? middle + 1 : middle;
  }
  *place = high;
  return true;
}

}  // namespace shadowib::descriptors
