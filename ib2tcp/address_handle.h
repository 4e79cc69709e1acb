// Address handles: where datagrams go.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace shadowib::ib2tcp {

class Link;

// Lives until the program destroys it and no request refers to it any more. Under the engine's lock.
struct Ah {
  ibv_ah verbs{};  // first
  ibv_ah_attr attr{};
  Link* found = nullptr;
  std::int64_t silent_until_ns = 0;  // nobody answered there: until then datagrams to it are dropped at once
  int references = 1;                // the program's, and one per request

  // The connection to the process with that address, or nullptr: nobody has it yet.
  Link* link();
  void release() {
    if (--references == 0) delete this;
  }
};

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attr);
int destroy_ah(ibv_ah* ah);

}  // namespace shadowib::ib2tcp
