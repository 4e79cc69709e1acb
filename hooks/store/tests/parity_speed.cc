// parity_speed K M MEBIBYTES ROUNDS: how fast parities of K segments are made, by the store's code and by ISA-L
// alone. M parities are made one after the other, since each is made on a host of its own. Prints one line of MiB of
// segments a second: the store's, ISA-L's, and the median of their ratios over ROUNDS pairs.
#include <isa-l/erasure_code.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "hooks/store/erasure.h"
#include "hooks/store/parity_layout.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kBlock = 1 << 20;  // as much as the store computes at a time

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: parity_speed K M MEBIBYTES ROUNDS\n");
    return 2;
  }
  const int k = std::atoi(argv[1]), m = std::atoi(argv[2]), blocks = std::atoi(argv[3]), rounds = std::atoi(argv[4]);
  if (k < 1 || m < 1 || m > 2 || k + m > shadowib::kMostGroupHosts || blocks < 1 || rounds < 1) {
    std::fprintf(stderr, "parity_speed: K and MEBIBYTES from 1, M 1 or 2, K + M up to %d\n",
                 shadowib::kMostGroupHosts);
    return 2;
  }
  const auto segments = static_cast<std::size_t>(k), parities = static_cast<std::size_t>(m);
  std::vector<std::vector<std::uint8_t>> data(
      segments + parities, std::vector<std::uint8_t>(kBlock * static_cast<std::size_t>(blocks), 1));
  for (std::size_t i = 0; i < segments; ++i)
    for (std::size_t at = 0; at < data[i].size(); ++at) data[i][at] = static_cast<std::uint8_t>(at * 37 + i * 11);

  const shadowib::ParityShape shape{k + m, m};
  std::vector<int> rows;
  for (int row = 0; row < k; ++row) rows.push_back(row);
  std::vector<shadowib::ElementCode> codes;
  for (int row = k; row < k + m; ++row) codes.emplace_back(shape, rows, row);

  std::vector<std::uint8_t> matrix((segments + parities) * segments), tables(32 * segments * parities);  // by parity
  gf_gen_cauchy1_matrix(matrix.data(), k + m, k);
  ec_init_tables(k, m, matrix.data() + segments * segments, tables.data());

  std::vector<double> ours, bare, ratios;
  for (int round = 0; round < rounds; ++round) {
    auto began = Clock::now();
    for (std::size_t at = 0; at < data[0].size(); at += kBlock) {
      std::vector<const std::uint8_t*> sources;
      for (std::size_t i = 0; i < segments; ++i) sources.push_back(data[i].data() + at);
      for (std::size_t p = 0; p < parities; ++p) codes[p].compute(sources, kBlock, data[segments + p].data() + at);
    }
    ours.push_back(seconds_since(began));
    began = Clock::now();
    for (std::size_t at = 0; at < data[0].size(); at += kBlock) {
      std::vector<std::uint8_t*> from;
      for (std::size_t i = 0; i < segments; ++i) from.push_back(data[i].data() + at);
      for (std::size_t p = 0; p < parities; ++p) {
        std::uint8_t* to = data[segments + p].data() + at;
        ec_encode_data(kBlock, k, 1, tables.data() + 32 * segments * p, from.data(), &to);
      }
    }
    bare.push_back(seconds_since(began));
    ratios.push_back(bare.back() / ours.back());
  }
  const auto median = [](std::vector<double> of) {
    std::sort(of.begin(), of.end());
    return of[of.size() / 2];
  };
  const double mebibytes = static_cast<double>(k) * blocks;
  std::printf("%.0f %.0f %.3f\n", mebibytes / median(ours), mebibytes / median(bare), median(ratios));
  return 0;
}
