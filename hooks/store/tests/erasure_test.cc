// Every element of a stripe comes back from any others that are enough.
#include "hooks/store/erasure.h"

#include <gtest/gtest.h>

#include <random>

namespace shadowib {
namespace {

TEST(Erasure, AnyElementComesFromAnyOthers) {
  std::mt19937 random(1);
  for (int hosts = 2; hosts <= 6; ++hosts)
    for (int losses = 1; losses < hosts; ++losses) {
      const ParityShape shape{hosts, losses};
      const std::size_t bytes = 1000 + static_cast<std::size_t>(hosts);
      std::vector<std::vector<std::uint8_t>> elements(static_cast<std::size_t>(hosts),
                                                      std::vector<std::uint8_t>(bytes));
      std::vector<int> data;
      for (int row = 0; row < shape.segments(); ++row) {
        data.push_back(row);
        for (std::uint8_t& byte : elements[static_cast<std::size_t>(row)]) byte = static_cast<std::uint8_t>(random());
      }
      const auto compute = [&](const std::vector<int>& rows, int wanted) {
        std::vector<const std::uint8_t*> sources;
        for (const int row : rows) sources.push_back(elements[static_cast<std::size_t>(row)].data());
        std::vector<std::uint8_t> out(bytes);
        ElementCode(shape, rows, wanted).compute(sources, bytes, out.data());
        return out;
      };
      for (int row = shape.segments(); row < hosts; ++row)
        elements[static_cast<std::size_t>(row)] = compute(data, row);
      for (int mask = 0; mask < 1 << hosts; ++mask) {
        std::vector<int> rows;
        for (int row = 0; row < hosts; ++row)
          if ((mask >> row & 1) != 0) rows.push_back(row);
        if (rows.size() != data.size()) continue;
        for (int wanted = 0; wanted < hosts; ++wanted)
          EXPECT_EQ(compute(rows, wanted), elements[static_cast<std::size_t>(wanted)])
              << hosts << " hosts, " << losses << " losses, of " << mask << " row " << wanted;
      }
    }
}

}  // namespace
}  // namespace shadowib
