// Multicast groups of RoCE v2 at the IP layer of this host, which RoCE's own datagrams pass through.
//
// The kernel's connection manager joins there when a program joins by rdma_cm. Otherwise a host's messages never come
// back to its own members (Soft-RoCE), and a switch may keep back those of others. Ours does not come by the kernel,
// and ibv_attach_mcast joins nothing; so who attaches a queue pair joins, and a restart joins with what it attaches
// again.
#pragma once

#include <infiniband/verbs.h>

#include <span>
#include <vector>

#include "shadowib/base/lock.h"

namespace shadowib {

// Whether it is the GID of a multicast group: of InfiniBand and of IPv6, or a mapped IPv4 address.
bool is_multicast_gid(const ibv_gid& gid);

class IpGroups {
 public:
  // `qp` has been attached on an adapter with the GIDs `table`: joins on the network devices under those of the
  // group's family. Where that fails, the group works without, as far as it does; a line in the log says so.
  void join(const ibv_qp* qp, const ibv_gid& group, std::span<const ibv_gid_entry> table);
  void leave(const ibv_qp* qp, const ibv_gid& group);
  // After a restart and in a forked child: nothing of it is there any more.
  void forget();

 private:
  struct Group {
    ibv_gid gid;
    int fd;  // a socket of ours
    std::vector<const ibv_qp*> attached;
  };
  std::vector<Group>::iterator find(const ibv_gid& group) SHADOWIB_REQUIRES(lock_);
  SpinLock lock_;
  std::vector<Group> groups_ SHADOWIB_GUARDED_BY(lock_);
};

}  // namespace shadowib
