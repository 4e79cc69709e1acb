// Verbs objects that destroy themselves; a destruction that fails is a fault.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "storm/ledger.h"

namespace storm {

template <typename T, int (*destroy)(T*)>
struct Destroyer {
  void operator()(T* object) const { zero(destroy(object), __PRETTY_FUNCTION__); }
};
template <typename T, int (*destroy)(T*)>
using Owned = std::unique_ptr<T, Destroyer<T, destroy>>;

using Device = Owned<ibv_context, ibv_close_device>;
using Domain = Owned<ibv_pd, ibv_dealloc_pd>;
using Region = Owned<ibv_mr, ibv_dereg_mr>;
inline int dealloc_window(ibv_mw* mw) { return ibv_dealloc_mw(mw); }
using Window = Owned<ibv_mw, dealloc_window>;
using Channel = Owned<ibv_comp_channel, ibv_destroy_comp_channel>;
using Queue = Owned<ibv_cq, ibv_destroy_cq>;
using QueuePair = Owned<ibv_qp, ibv_destroy_qp>;
using SharedQueue = Owned<ibv_srq, ibv_destroy_srq>;
using AddressHandle = Owned<ibv_ah, ibv_destroy_ah>;
inline int close_xrc_domain(ibv_xrcd* domain) { return ibv_close_xrcd(domain); }
using XrcDomain = Owned<ibv_xrcd, close_xrc_domain>;

}  // namespace storm
