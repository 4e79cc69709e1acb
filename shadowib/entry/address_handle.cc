// Address handles: create, destroy, and from a received message.
#include <errno.h>
#include <string.h>

#include "hooks/threads/stop.h"
#include "shadowib/abi/handlers.h"
#include "shadowib/cr/peers.h"
#include "shadowib/cr/ports.h"
#include "shadowib/entry/errors.h"
#include "shadowib/objects/registry.h"
#include "shadowib/objects/route_header.h"

using namespace shadowib;

namespace {

// The index of a GID that the program was told of, if possible of that type, or -1.
int index_of(const ShadowPort& port, const ibv_gid& gid, int type) {
  int found = -1;
  for (int i = static_cast<int>(port.gids.size()) - 1; i >= 0; --i) {
    const RecordedGid& entry = port.gids[static_cast<std::size_t>(i)];
    if (::memcmp(&entry.gid, &gid, sizeof(gid)) != 0) continue;
    if (entry.type == type) return i;
    found = i;
  }
  return found;
}

}  // namespace

extern "C" {

ibv_ah* shadowib_ibv_create_ah(ibv_pd* program_pd, ibv_ah_attr* attr) {
  if (ShadowContext::is_foreign(program_pd->context)) return null_with(EPERM);
  Inside inside;
  if (g_backend.create_ah == nullptr) return null_with(EOPNOTSUPP);
  ShadowPd* pd = ShadowPd::of(program_pd);
  auto* ah = new ShadowAh{};
  ah->attr = *attr;
  ah->ah.context = program_pd->context;
  note_source(*ShadowContext::of(program_pd->context), *attr);
  ibv_ah_attr real = *attr;
  if (const Status status = turn_address(*ah, &real); !status.ok()) {
    delete ah;
    return null_with(errno_from(status, "ibv_create_ah"));
  }
  ah->real = g_backend.create_ah(pd->real, &real);
  if (ah->real == nullptr) {
    int saved = errno;
    delete ah;
    return null_of_backend("ibv_create_ah", saved);
  }
  ah->ah.pd = program_pd;
  ah->ah.handle = ah->real->handle;
  Registry& r = registry();
  SpinGuard guard(r.lock);
  ++pd->users;
  r.ahs.push_back(*ah);
  return &ah->ah;
}

int shadowib_ibv_destroy_ah(ibv_ah* program) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  Inside inside;
  ShadowAh* ah = ShadowAh::of(program);
  Registry& r = registry();
  SpinGuard guard(r.lock);
  if (int rc = ah->destroy_real(); rc != 0) return rc;
  r.note_destroyed(*ah);
  return 0;
}

// Back to where the message came from. Source: ibv_create_ah_from_wc(3).
int shadowib_ibv_init_ah_from_wc(ibv_context* context, std::uint8_t port_num, ibv_wc* wc, ibv_grh* grh,
                                 ibv_ah_attr* attr) {
  const ShadowContext& shadow = *ShadowContext::of(context);
  if (port_num < 1 || port_num > shadow.ports.size()) {
    errno = EINVAL;
    return -1;
  }
  *attr = {};
  attr->dlid = wc->slid;
  attr->sl = wc->sl;
  attr->src_path_bits = wc->dlid_path_bits;
  attr->port_num = port_num;
  if ((wc->wc_flags & IBV_WC_GRH) == 0) return 0;
  const RouteHeader header{*grh};
  const int index = index_of(shadow.ports[port_num - 1u], header.destination(), header.has_udp() ? 1 : 0);
  if (index < 0) {
    errno = EINVAL;
    return -1;
  }
  attr->is_global = 1;
  attr->grh.dgid = header.source();
  attr->grh.sgid_index = static_cast<std::uint8_t>(index);
  attr->grh.flow_label = header.flow_label();
  attr->grh.traffic_class = header.traffic_class();
  attr->grh.hop_limit = 0xff;
  return 0;
}

ibv_ah* shadowib_ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, std::uint8_t port_num) {
  ibv_ah_attr attr;
  if (shadowib_ibv_init_ah_from_wc(pd->context, port_num, wc, grh, &attr) != 0) return nullptr;
  return shadowib_ibv_create_ah(pd, &attr);
}

}  // extern "C"
