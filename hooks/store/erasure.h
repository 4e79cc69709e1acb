// Reed-Solomon codes over the elements of a stripe, by ISA-L. Linear in each byte: any range of an element is
// computed from the same range of others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hooks/store/parity_layout.h"

namespace shadowib {

// Computes one element of a stripe from as many others as there are segments.
class ElementCode {
 public:
  // `rows`: of the elements given, n - M different ones. `wanted`: the row of the element that is computed.
  ElementCode(const ParityShape& shape, const std::vector<int>& rows, int wanted);
  // sources[i] has `bytes` bytes of the element in rows[i].
  void compute(const std::vector<const std::uint8_t*>& sources, std::size_t bytes, std::uint8_t* to);

 private:
  std::vector<std::uint8_t> tables_;
};

}  // namespace shadowib
