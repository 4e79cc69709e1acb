// Multicast groups: which queue pairs of this process take their datagrams, and which processes to send them to.
//
// A process that attaches a queue pair to a group takes a place in the group's list in the exchange before attaching
// returns, and keeps it: a place is an index, its value the process's LID. So a sender that looks for the next place
// with each datagram, and finds none almost always, knows everybody who had attached by then. A process that is gone
// drops copies, or does not answer.
#pragma once

#include <infiniband/verbs.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "ib2tcp/address_handle.h"
#include "ib2tcp/wire.h"

namespace shadowib::ib2tcp {

class Link;
class Qp;

inline constexpr std::uint16_t kFirstMulticastLid = 0xC000, kPermissiveLid = 0xFFFF;

// Named by GID if the datagram has a global route, else by LID.
struct GroupName {
  std::uint64_t prefix = 0, interface_id = 0;  // as they lie in memory
  std::uint16_t lid = 0;
  auto operator<=>(const GroupName&) const = default;
};

struct Group {
  GroupName name;
  std::vector<Qp*> attached;                          // of this process
  std::vector<std::unique_ptr<Destination>> members;  // by place
  bool joined = false;                                // this process has a place

  // Looks for members that are new. Under the engine's lock, as everything here.
  void look_for_members();
};

class Multicast {
 public:
  // 0 or an errno. Attaching twice to the same is no error; detaching from what is not attached is EINVAL.
  int attach(Qp& qp, const ibv_gid& gid, std::uint16_t lid);
  int detach(Qp& qp, const ibv_gid& gid, std::uint16_t lid);
  // Where datagrams by this address go; nullptr: it is no multicast address. Lives as long as the process.
  Group* group_of(const ibv_ah_attr& attr);
  // Gives a datagram that has come in to every queue pair attached, but not to its own sender.
  void deliver(const Link& from, const FrameHeader& header, const char* payload);

 private:
  Group& made(const GroupName& name);
  std::map<GroupName, std::unique_ptr<Group>> groups_;
};

// A group that a queue pair is attached to, as the program named it.
struct Attachment {
  ibv_gid gid;
  std::uint16_t lid;
};

// Slots of BackendOps.
int attach_mcast(ibv_qp* qp, const union ibv_gid* gid, std::uint16_t lid);
int detach_mcast(ibv_qp* qp, const union ibv_gid* gid, std::uint16_t lid);

}  // namespace shadowib::ib2tcp
