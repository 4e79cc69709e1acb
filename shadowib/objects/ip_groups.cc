#include "shadowib/objects/ip_groups.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <new>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/log.h"
#include "shadowib/base/unowned_descriptors.h"
#include "shadowib/objects/route_header.h"

namespace shadowib {
namespace {

bool same(const ibv_gid& a, const ibv_gid& b) { return ::memcmp(a.raw, b.raw, sizeof(a.raw)) == 0; }

// 0 or an errno.
int join_on(int fd, const ibv_gid& group, unsigned interface) {
  int rc;
  if (is_ipv4(group)) {
    ip_mreqn request{};
    ::memcpy(&request.imr_multiaddr, group.raw + 12, 4);
    request.imr_ifindex = static_cast<int>(interface);
    rc = ::setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof(request));
  } else {
    ipv6_mreq request{};
    ::memcpy(&request.ipv6mr_multiaddr, group.raw, sizeof(group.raw));
    request.ipv6mr_interface = interface;
    rc = ::setsockopt(fd, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, &request, sizeof(request));
  }
  return rc == 0 || errno == EADDRINUSE ? 0 : errno;  // in use: joined there already
}

// -1: there is none; errno says why.
int open_socket(const ibv_gid& group) {
  UnownedDescriptors unowned;
  const int fd = ::socket(is_ipv4(group) ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int owned = unowned.own(fd);
  if (owned < 0) raw_close(fd);
  return owned;
}

}  // namespace

bool is_multicast_gid(const ibv_gid& gid) { return gid.raw[0] == 0xff || (is_ipv4(gid) && gid.raw[12] >> 4 == 0xe); }

std::vector<IpGroups::Group>::iterator IpGroups::find(const ibv_gid& group) {
  return std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return same(g.gid, group); });
}

void IpGroups::join(const ibv_qp* qp, const ibv_gid& group, std::span<const ibv_gid_entry> table) {
  std::vector<unsigned> interfaces;
  for (const ibv_gid_entry& entry : table)
    if (entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.ndev_ifindex != 0 && is_ipv4(entry.gid) == is_ipv4(group) &&
        std::find(interfaces.begin(), interfaces.end(), entry.ndev_ifindex) == interfaces.end())
      interfaces.push_back(entry.ndev_ifindex);
  if (interfaces.empty()) return;
  SpinGuard guard(lock_);
  auto it = find(group);
  if (it == groups_.end()) {
    const int fd = open_socket(group);
    if (fd < 0) return log_line(LogLevel::kWarn, "a multicast group is not joined by IP: %s", ::strerror(errno));
    it = groups_.insert(it, {group, fd, {}});
  }
  for (unsigned interface : interfaces)
    if (int rc = join_on(it->fd, group, interface); rc != 0)
      log_line(LogLevel::kWarn, "a multicast group is not joined by IP on interface %u: %s", interface,
               ::strerror(rc));
  if (std::find(it->attached.begin(), it->attached.end(), qp) == it->attached.end()) it->attached.push_back(qp);
}

void IpGroups::leave(const ibv_qp* qp, const ibv_gid& group) {
  SpinGuard guard(lock_);
  auto it = find(group);
  if (it == groups_.end()) return;
  std::erase(it->attached, qp);
  if (!it->attached.empty()) return;
  close_owned_descriptor(it->fd);
  groups_.erase(it);
}

void IpGroups::forget() {
  lock_.reset();
  new (&groups_) std::vector<Group>;  // another thread of the parent may have been changing it
}

}  // namespace shadowib
