// Shadow address handles.
#pragma once

#include <infiniband/verbs.h>

#include <vector>

#include "shadowib/objects/backend.h"
#include "shadowib/objects/queue_pair.h"

namespace shadowib {

// Where a datagram really goes.
struct RealDestination {
  ibv_ah* ah = nullptr;
  RealQpNum number;
};

// A place that an address handle leads to.
struct AhRoute {
  ibv_ah_attr attr;
  ibv_ah* real;
};

struct ShadowAh {
  ibv_ah ah;  // first: the program's
  ListHook hook;
  ibv_ah* real = nullptr;   // to whoever is at that address,
  ibv_ah_attr real_attr{};  // made with this, after a restart
  ibv_ah_attr attr{};       // as the program gave it
  RemoteEnd remote;         // where it leads; no queue pair
  // After a restart the queue pairs that were sent to. Members that had one address, that of their adapter, may be
  // apart now: those who are not where `real` leads have routes of their own.
  SpinLock lock;
  DestinationTable destination_of;
  std::vector<RealDestination> destinations;
  std::vector<AhRoute> routes;

  // In a restarted process the handles of the generation before are gone.
  void forget_destinations() {
    destination_of.clear();
    destinations.clear();
    routes.clear();
  }
  // 0 or an errno of the first, with which nothing has changed.
  int destroy_real() {
    if (real != nullptr)
      if (int rc = g_backend.destroy_ah(real); rc != 0) return rc;
    real = nullptr;
    for (const AhRoute& route : routes) g_backend.destroy_ah(route.real);
    forget_destinations();
    return 0;
  }
  static ShadowAh* of(ibv_ah* ah) { return reinterpret_cast<ShadowAh*>(ah); }
};

}  // namespace shadowib
