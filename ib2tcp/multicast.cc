#include "ib2tcp/multicast.h"

#include <errno.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "ib2tcp/device.h"
#include "ib2tcp/engine.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/queue_pair.h"
#include "ib2tcp/rendezvous.h"

namespace shadowib::ib2tcp {
namespace {

// Of InfiniBand, or of RoCE, whose groups are IP's.
bool is_multicast(const ibv_gid& gid) {
  constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return gid.raw[0] == 0xff || (std::memcmp(gid.raw, kMapped, sizeof(kMapped)) == 0 && gid.raw[12] >> 4 == 0xe);
}
bool is_multicast(std::uint16_t lid) { return lid >= kFirstMulticastLid && lid != kPermissiveLid; }

GroupName name_of(const ibv_gid& gid) { return {gid.global.subnet_prefix, gid.global.interface_id, 0}; }
GroupName name_of(std::uint16_t lid) { return {0, 0, lid}; }

struct PlaceKey {
  char text[80];
  PlaceKey(const GroupName& name, std::size_t place) {
    char group[33];
    if (name.lid != 0) {
      std::snprintf(group, sizeof(group), "%u", name.lid);
    } else {
      std::uint8_t raw[16];
      std::memcpy(raw, &name.prefix, 8);
      std::memcpy(raw + 8, &name.interface_id, 8);
      for (std::size_t i = 0; i < sizeof(raw); ++i) std::snprintf(group + 2 * i, 3, "%02x", raw[i]);
    }
    std::snprintf(text, sizeof(text), "ib2tcp/mcast/%s/%zu", group, place);
  }
};

// Takes the first free place. A claimed one without a LID is somebody's who is just doing this, or has died in it.
int join(Group& group) {
  if (group.joined) return 0;
  for (std::size_t place = group.members.size();; ++place) {
    const PlaceKey key(group.name, place);
    int rc = exchange_claim(key.text);
    if (rc == EEXIST) continue;
    const std::uint16_t lid = g_engine->rendezvous->self().lid;
    if (rc == 0) rc = exchange_publish(key.text, &lid, sizeof(lid));
    if (rc != 0) {
      log_message(LogLevel::kError, "the job's exchange refused %s (errno %d)", key.text, rc);
      return rc;
    }
    group.joined = true;
    return 0;
  }
}

bool same(const Attachment& attachment, const ibv_gid& gid, std::uint16_t lid) {
  return attachment.lid == lid && std::memcmp(&attachment.gid, &gid, sizeof(gid)) == 0;
}

}  // namespace

void Group::look_for_members() {
  for (std::size_t place = 0;; ++place) {
    if (place < members.size() && members[place]->lid != 0) continue;
    std::uint16_t lid = 0;
    std::size_t bytes = 0;
    const int rc = exchange_lookup(PlaceKey(name, place).text, &lid, sizeof(lid), &bytes);
    if (rc != 0 && rc != EOVERFLOW) return;
    if (place == members.size()) members.push_back(std::make_unique<Destination>());
    members[place]->lid = rc == 0 && bytes == sizeof(lid) ? lid : 0;
  }
}

Group& Multicast::made(const GroupName& name) {
  std::unique_ptr<Group>& group = groups_[name];
  if (group == nullptr) {
    group = std::make_unique<Group>();
    group->name = name;
  }
  return *group;
}

Group* Multicast::group_of(const ibv_ah_attr& attr) {
  if (attr.is_global != 0) return is_multicast(attr.grh.dgid) ? &made(name_of(attr.grh.dgid)) : nullptr;
  return is_multicast(attr.dlid) ? &made(name_of(attr.dlid)) : nullptr;
}

int Multicast::attach(Qp& qp, const ibv_gid& gid, std::uint16_t lid) {
  if (qp.has_peer() || !is_multicast(gid) || (lid != 0 && !is_multicast(lid))) return EINVAL;
  auto& to = qp.attachments;
  if (std::any_of(to.begin(), to.end(), [&](const Attachment& a) { return same(a, gid, lid); })) return 0;
  if (to.size() >= kMaxMulticastAttach) return ENOMEM;
  Group& by_gid = made(name_of(gid));
  Group* by_lid = lid != 0 ? &made(name_of(lid)) : nullptr;
  for (Group* group : {&by_gid, by_lid}) {
    if (group == nullptr) continue;
    if (int rc = join(*group); rc != 0) return rc;
    if (std::find(group->attached.begin(), group->attached.end(), &qp) == group->attached.end())
      group->attached.push_back(&qp);
  }
  to.push_back({gid, lid});
  return 0;
}

int Multicast::detach(Qp& qp, const ibv_gid& gid, std::uint16_t lid) {
  auto& to = qp.attachments;
  auto it = std::find_if(to.begin(), to.end(), [&](const Attachment& a) { return same(a, gid, lid); });
  if (it == to.end()) return EINVAL;
  to.erase(it);
  // One queue pair may be attached to a group by several names.
  if (std::none_of(to.begin(), to.end(), [&](const Attachment& a) { return name_of(a.gid) == name_of(gid); }))
    std::erase(made(name_of(gid)).attached, &qp);
  if (lid != 0 && std::none_of(to.begin(), to.end(), [&](const Attachment& a) { return a.lid == lid; }))
    std::erase(made(name_of(lid)).attached, &qp);
  return 0;
}

void Multicast::deliver(const Link& from, const FrameHeader& header, const char* payload) {
  DatagramPath path;
  std::memcpy(&path, &header.raddr, sizeof(path));
  GroupName name;
  if (path.global)
    name = {header.operand2, header.dgid_end, 0};
  else
    name.lid = static_cast<std::uint16_t>(header.operand2);
  auto it = groups_.find(name);
  if (it == groups_.end()) return;
  for (Qp* qp : it->second->attached) {
    if (from.self() && qp->verbs.qp_num == header.src_qpn) continue;
    qp->take_datagram(header, payload);
  }
}

int attach_mcast(ibv_qp* qp, const union ibv_gid* gid, std::uint16_t lid) {
  EngineGuard guard;
  return g_engine->multicast.attach(*reinterpret_cast<Qp*>(qp), *gid, lid);
}

int detach_mcast(ibv_qp* qp, const union ibv_gid* gid, std::uint16_t lid) {
  EngineGuard guard;
  return g_engine->multicast.detach(*reinterpret_cast<Qp*>(qp), *gid, lid);
}

}  // namespace shadowib::ib2tcp
