#include "ib2tcp/address_handle.h"

#include <errno.h>

#include <atomic>

#include "ib2tcp/device.h"
#include "ib2tcp/engine.h"
#include "ib2tcp/host.h"
#include "ib2tcp/memory.h"
#include "ib2tcp/rendezvous.h"

namespace shadowib::ib2tcp {

Link* Ah::link(Destination& where) {
  if (where.found != nullptr) return where.found;
  // An exchange that does not answer may cost datagrams, as nobody at the address does.
  if (group != nullptr)
    (void)g_engine->rendezvous->find(where.lid, false, nullptr, &where.found);
  else
    (void)g_engine->rendezvous->find(attr.dlid, attr.is_global != 0, attr.grh.dgid.raw, &where.found);
  return where.found;
}

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  static std::atomic<std::uint32_t> next_handle{1};
  const int ports = reinterpret_cast<Context*>(pd->context)->device->port_count;
  if (attr->port_num < 1 || attr->port_num > ports || (attr->is_global != 0 && attr->grh.sgid_index != 0) ||
      (attr->is_global == 0 && attr->dlid == 0))
    return fail_null<ibv_ah>(EINVAL);
  auto* ah = new Ah;
  ah->verbs.context = pd->context;
  ah->verbs.pd = pd;
  ah->verbs.handle = next_handle.fetch_add(1);
  ah->attr = *attr;
  {
    EngineGuard guard;
    ah->group = g_engine->multicast.group_of(*attr);
  }
  ++reinterpret_cast<Pd*>(pd)->users;
  ++g_engine->objects;
  return &ah->verbs;
}

int destroy_ah(ibv_ah* verbs) {
  EngineGuard guard;
  --reinterpret_cast<Pd*>(verbs->pd)->users;
  --g_engine->objects;
  reinterpret_cast<Ah*>(verbs)->release();
  return 0;
}

}  // namespace shadowib::ib2tcp
