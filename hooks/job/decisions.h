// The decisions over the CLCs of a cluster, as the exchange has them (cluster.h). For agents and commands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hooks/job/cluster.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

// All decisions of the epoch over CLCs of `cluster`, by SN; of one SN the committed one comes last. kCorrupt names
// the key that cannot be read.
[[nodiscard]] Status read_decisions(Exchange& exchange, std::string_view epoch, unsigned cluster,
                                    std::vector<Decision>* decisions);

// Claims a decision. *decided is what counts afterwards: `mine`, or what another one has claimed before.
[[nodiscard]] Status decide(Exchange& exchange, std::string_view epoch, std::uint64_t attempt, const Decision& mine,
                            Decision* decided);

}  // namespace shadowib
