// Where segments and parities of a group of hosts lie. Pure.
//
// The images of a host in a row are its blob. It is cut into n - M segments of equal size, padded by zeros. Stripe j
// has M parities, at hosts j, j+1, ..., j+M-1 (round the ring). Each other host has one segment in it. So any M hosts
// may be lost. Each host keeps M / (n - M) of the size besides its own images.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "hooks/store/mirror.h"
#include "shadowib/base/status.h"

namespace shadowib {

inline constexpr int kMostGroupHosts = 8;

struct ParityShape {
  int hosts = 0;   // n
  int losses = 0;  // M
  int segments() const { return hosts - losses; }

  // The row of a host's element in a stripe: [0..n-M) segments, [n-M..n) parities.
  int row(int host, int stripe) const;
  // The stripe of a host's segment, and of its p-th parity [0..M).
  int stripe_of_segment(int host, int segment) const { return (host + 1 + segment) % hosts; }
  int stripe_of_parity(int host, int parity) const { return (host - parity + hosts) % hosts; }
  // The host has a segment in the stripe, not a parity.
  int segment_in(int host, int stripe) const { return (stripe - host - 1 + 2 * hosts) % hosts; }
};

// Bytes of a segment, for the largest blob of a group.
std::uint64_t segment_bytes(const ParityShape& shape, std::uint64_t largest_blob);

// Groups of hosts of different domains, as even as can be, each larger than `losses` and of kMostGroupHosts at most.
// kUsage with what is missing.
Status plan_groups(const Domains& domains, int losses, std::vector<std::vector<std::string>>* groups);

}  // namespace shadowib
