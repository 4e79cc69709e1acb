// Address handles: where datagrams go.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace shadowib::ib2tcp {

class Link;
struct Group;

// A process that datagrams go to.
struct Destination {
  std::uint16_t lid = 0;  // of a group's member; 0: not known yet
  Link* found = nullptr;
  std::int64_t silent_until_ns = 0;  // nobody answered there: until then datagrams to it are dropped at once
  std::int64_t silence_ns = 0;       // for how long the next time
};

// Lives until the program destroys it and no request refers to it any more. Under the engine's lock.
struct Ah {
  ibv_ah verbs{};  // first
  ibv_ah_attr attr{};
  Destination to;
  Group* group = nullptr;  // instead of `to`: multicast
  int references = 1;      // the program's, and one per request

  // Finds the connection to the process at `where`, which is `to` or a member of the group; nullptr: nobody has that
  // address yet.
  Link* link(Destination& where);
  void release() {
    if (--references == 0) delete this;
  }
};

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attr);
int destroy_ah(ibv_ah* ah);

}  // namespace shadowib::ib2tcp
