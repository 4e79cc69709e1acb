// Shadow protection domains and memory regions.
#pragma once

#include <infiniband/verbs.h>

#include "shadowib/objects/context.h"

namespace shadowib {

struct ShadowPd {
  ibv_pd pd;
  ListHook hook;
  ibv_pd* real = nullptr;
  std::uint32_t id = 0;     // unique in the member for good: part of (PD, rkey) as peers know it
  std::uint32_t users = 0;  // MRs and QPs; deallocation answers EBUSY while there are any
  ibv_mw* fence = nullptr;  // what fences bind to nothing (objects/fence.h); of this life of the backend
  static ShadowPd* of(ibv_pd* pd) { return reinterpret_cast<ShadowPd*>(pd); }
};

struct ShadowMr {
  ibv_mr mr;  // keys virtual
  ListHook hook;
  ibv_mr* real = nullptr;
  std::uint64_t iova = 0;
  int access = 0;
  std::uint32_t windows = 0;  // bound or to be bound to it; under the lock of its context's WindowTable
  bool unmapped = false;      // at the checkpoint: whatever lies there after a restart is not the program's region
  static ShadowMr* of(ibv_mr* mr) { return reinterpret_cast<ShadowMr*>(mr); }
};

}  // namespace shadowib
