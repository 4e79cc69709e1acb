// Shadow address handles.
#pragma once

#include <infiniband/verbs.h>

#include "shadowib/objects/queue_pair.h"

namespace shadowib {

struct ShadowAh {
  ibv_ah ah;  // first: the program's
  ListHook hook;
  ibv_ah* real = nullptr;
  ibv_ah_attr attr{};      // as the program gave it
  RemoteEnd remote;        // where it leads; no queue pair
  bool destroyed = false;  // by the program; kept while a request that has not run names it
  // After a restart: real numbers of the queue pairs that were sent to.
  SpinLock lock;
  QpNumTable qp_nums;
  static ShadowAh* of(ibv_ah* ah) { return reinterpret_cast<ShadowAh*>(ah); }
};

}  // namespace shadowib
