// Extended reliable connections (XRC): domains, and what a target does differently from other queue pairs.
//
// An initiator's requests name a shared receive queue, from which the target takes the receive, in whose protection
// domain it finds the memory, and where the receive completes. Queue and target must be of one domain.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

namespace shadowib::ib2tcp {

struct Device;

// A handle of a domain. Under the engine's lock.
struct Xrcd {
  struct Domain {
    const Device* device;
  };
  ibv_xrcd verbs{};                // first
  std::shared_ptr<Domain> domain;  // of all its handles
  std::uint32_t users = 0;         // queue pairs and shared receive queues made by this handle
};

// Slots of BackendOps; see backend.h. A domain is of this process: a descriptor says nothing that `shared` does not.
ibv_xrcd* open_xrcd(ibv_context* context, int fd, int oflags, ibv_xrcd* shared);
int close_xrcd(ibv_xrcd* xrcd);
ibv_qp* create_xrc_target(ibv_xrcd* xrcd, ibv_qp_init_attr* init);

}  // namespace shadowib::ib2tcp
