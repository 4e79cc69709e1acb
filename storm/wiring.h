// The common parts of the two directions of an end in an epoch: its queue pairs, its memory, and the way to the peer.
#pragma once

#include "storm/adapter.h"
#include "storm/control.h"
#include "storm/plan.h"

namespace storm {

// The words that the receiver of a direction writes to its sender.
struct Credits {
  std::uint64_t released, receives;
};

// Where things are in an end's memory; both ends compute both.
struct Layout {
  Layout(const ConnectionPlan& plan, int side);
  static constexpr std::uint32_t kMirrors = 4, kLibraryBytes = 8192;
  // Offsets for the direction that arrives here.
  std::size_t ring, mirrors, library, counter, swapped, receives;
  // Offsets for the direction that leaves from here.
  std::size_t credits, credit_sources, outgoing;
  std::size_t end;
  std::uint32_t receive_bytes;  // of a place, with a datagram's route header
};

struct Wiring {
  Wiring(const ConnectionPlan& its_plan, int its_side)
      : plan(its_plan), side(its_side), mine(plan, side), theirs(plan, 1 - side) {}
  const DirectionPlan& out() const { return plan.directions[side]; }
  const DirectionPlan& in() const { return plan.directions[1 - side]; }
  bool reliable() const { return plan.transport == Transport::kRc || plan.transport == Transport::kXrc; }
  std::uint64_t address(std::size_t offset) const { return reinterpret_cast<std::uintptr_t>(memory) + offset; }
  const char* name() const { return label.c_str(); }

  const ConnectionPlan plan;
  const int side;
  const Layout mine, theirs;
  std::string label;
  std::uint32_t epoch = 0;
  std::uint8_t* memory = nullptr;
  std::uint32_t lkeys[2] = {0, 0};
  ibv_pd* domain = nullptr;
  ibv_qp* sending = nullptr;     // of XRC the initiator
  ibv_qp_ex* builder = nullptr;  // the same, if requests are built by ibv_wr_*
  ibv_qp* receiving = nullptr;   // the same but of XRC: the target
  std::uint32_t max_inline = 0;
  Address peer{};
  Adapter* adapter = nullptr;
  Control* control = nullptr;
};

}  // namespace storm
