#include "storm/wiring.h"

namespace storm {
namespace {

std::size_t take(std::size_t* at, std::size_t bytes) {
  const std::size_t from = *at;
  *at += (bytes + 63) & ~std::size_t{63};
  return from;
}

}  // namespace

Layout::Layout(const ConnectionPlan& plan, int side) {
  const DirectionPlan &in = plan.directions[1 - side], &out = plan.directions[side];
  receive_bytes = in.slot_bytes + (plan.transport == Transport::kUd ? kRouteHeader : 0);
  std::size_t at = 0;
  ring = take(&at, static_cast<std::size_t>(in.ring) * in.slot_bytes);
  mirrors = take(&at, static_cast<std::size_t>(kMirrors) * in.slot_bytes);
  library = take(&at, kLibraryBytes + in.slot_bytes);
  counter = take(&at, 8);
  swapped = take(&at, 8);
  credits = take(&at, sizeof(Credits));
  // A credit or a flush may be in flight with every request of the plan.
  credit_sources = take(&at, sizeof(Credits) * out.send_depth);
  outgoing = take(&at, static_cast<std::size_t>(out.send_depth) * out.slot_bytes);
  receives = take(
      &at, static_cast<std::size_t>(in.receive_depth) * receive_bytes * (plan.transport == Transport::kXrc ? 2 : 1));
  end = at;
}

}  // namespace storm
