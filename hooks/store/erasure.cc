#include "hooks/store/erasure.h"

#include <isa-l/erasure_code.h>

#include <cstdio>
#include <cstdlib>

namespace shadowib {

ElementCode::ElementCode(const ParityShape& shape, const std::vector<int>& rows, int wanted) {
  const int segments = shape.segments();
  const auto k = static_cast<std::size_t>(segments);
  // Each square part of either matrix can be inverted, so any M elements may be missing. Placements of format 2 mean
  // these: one parity is the plain sum.
  std::vector<std::uint8_t> all(static_cast<std::size_t>(shape.hosts) * k), given(k * k), inverse(k * k),
      coefficients(k);
  if (shape.losses == 1)
    gf_gen_rs_matrix(all.data(), shape.hosts, segments);
  else
    gf_gen_cauchy1_matrix(all.data(), shape.hosts, segments);
  for (std::size_t i = 0; i < k; ++i)
    for (std::size_t j = 0; j < k; ++j) given[i * k + j] = all[static_cast<std::size_t>(rows[i]) * k + j];
  if (rows.size() != k || gf_invert_matrix(given.data(), inverse.data(), segments) != 0) {
    std::fprintf(stderr, "shadowib: rows of a stripe that are not different\n");
    std::abort();
  }
  for (std::size_t j = 0; j < k; ++j)
    for (std::size_t i = 0; i < k; ++i)
      coefficients[j] = static_cast<std::uint8_t>(
          coefficients[j] ^ gf_mul(all[static_cast<std::size_t>(wanted) * k + i], inverse[i * k + j]));
  tables_.resize(32 * k);
  ec_init_tables(segments, 1, coefficients.data(), tables_.data());
}

void ElementCode::compute(const std::vector<const std::uint8_t*>& sources, std::size_t bytes, std::uint8_t* to) {
  std::vector<std::uint8_t*> inputs;
  for (const std::uint8_t* source : sources) inputs.push_back(const_cast<std::uint8_t*>(source));
  ec_encode_data(static_cast<int>(bytes), static_cast<int>(inputs.size()), 1, tables_.data(), inputs.data(), &to);
}

}  // namespace shadowib
