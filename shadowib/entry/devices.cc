// Devices and contexts: ibv_get_device_list ... ibv_close_device, queries.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "hooks/agent/agent.h"
#include "hooks/threads/stop.h"
#include "shadowib/abi/handlers.h"
#include "shadowib/abi/slots.h"
#include "shadowib/cr/announce.h"
#include "shadowib/cr/fences.h"
#include "shadowib/cr/helper.h"
#include "shadowib/cr/identity.h"
#include "shadowib/cr/participant.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/entry/errors.h"
#include "shadowib/entry/extended.h"
#include "shadowib/entry/imports.h"
#include "shadowib/entry/memory_window.h"
#include "shadowib/objects/border.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

const char kForeignOps[] = "shadowib";

Status ensure_backend() {
  set_participant(verbs_participant());
  const bool restarted = is_in_job() && job_info().generation > 0;  // by a command that may have chosen anew
  return load_backend(restarted ? job_info().backend : ::getenv("SHADOWIB_BACKEND"));
}

// The one that the program knows by that name; after a restart whichever it knows at that place. Null: none yet.
ShadowDevice* known_device(const char* name, int ordinal, bool restarted) {
  ShadowDevice* known = nullptr;
  for (ShadowDevice* d : registry().devices) {
    if (d->ordinal != ordinal) continue;
    if (::strcmp(d->device.name, name) == 0) return d;
    if (restarted && (known == nullptr || d->identity != nullptr)) known = d;
  }
  return known;
}

ShadowDevice* new_device(ibv_device* real, int ordinal) {
  auto* d = new ShadowDevice{};
  d->device = *real;
  ::memset(&d->device._ops, 0, sizeof(d->device._ops));
  d->guid = g_backend.get_device_guid(real);
  d->index = g_backend.get_device_index != nullptr ? g_backend.get_device_index(real) : -1;
  d->ordinal = ordinal;
  return d;
}

// After a restart: by the name that the program may have been told by its user, unless another has it here. One whose
// own name is another's, which stands at that other's place by then, gets what that one would have been called.
void name_as_before(ShadowDevice& device, ibv_device** list, int count) {
  std::string name = name_at_the_beginning(device.ordinal);
  for (int i = 0; i < count; ++i)
    if (name == g_backend.get_device_name(list[i])) name.clear();
  for (const ShadowDevice* other : registry().devices)
    if (other->ordinal != device.ordinal && other->ordinal < count &&
        ::strcmp(other->device.name, device.device.name) == 0)
      name = g_backend.get_device_name(list[other->ordinal]);
  if (!name.empty()) ::snprintf(device.device.name, sizeof(device.device.name), "%s", name.c_str());
}

// False with errno.
bool list_devices(std::vector<ibv_device*>* devices) {
  Inside inside;
  Registry& r = registry();
  {
    SpinGuard guard(r.lock);
    if (Status status = ensure_backend(); !status.ok()) {
      errno = errno_from(status, "ibv_get_device_list");
      return false;
    }
  }
  int n = 0;
  ibv_device** real = g_backend.get_device_list(&n);
  if (real == nullptr) {
    const int error = errno;
    log_line(LogLevel::kWarn, "ibv_get_device_list: backend %s has no list of devices: %s", g_backend.name,
             ::strerror(error));
    errno = error;
    return false;
  }
  const bool restarted = is_in_job() && job_info().generation > 0;
  for (int i = 0; i < n; ++i) {
    const auto known = [&] { return known_device(g_backend.get_device_name(real[i]), i, restarted); };
    std::unique_ptr<ShadowDevice> found;  // before the lock: fellows are asked through the exchange
    {
      SpinGuard guard(r.lock);
      if (ShadowDevice* d = known(); d != nullptr) {
        devices->push_back(&d->device);
        continue;
      }
    }
    if (restarted) found = device_of_fellows(i);
    const bool is_known_to_fellows = found != nullptr;
    if (found == nullptr) found.reset(new_device(real[i], i));
    found->foreign_ops = kForeignOps;
    SpinGuard guard(r.lock);
    if (restarted && !is_known_to_fellows) name_as_before(*found, real, n);
    ShadowDevice* d = known();  // another thread was faster
    if (d == nullptr) r.devices.push_back(d = found.release());
    devices->push_back(&d->device);
  }
  g_backend.free_device_list(real);
  return true;
}

void fill_operations(ShadowContext& context) {
  fill_refusing_slots(&context.newest);
  ibv_context& program = context.program();
  program.device = &context.device->device;
  program.cmd_fd = -1;
  program.num_comp_vectors = context.real->num_comp_vectors;
  ::pthread_mutex_init(&program.mutex, nullptr);
  program.ops.alloc_mw = alloc_mw;
  program.ops.bind_mw = bind_mw;
  program.ops.dealloc_mw = dealloc_mw;
  program.ops.poll_cq = g_backend.needs_signals ? poll_cq : poll_cq_unforced;
  program.ops.req_notify_cq = req_notify_cq;
  program.ops.post_send = g_backend.needs_signals ? post_send : post_send_unforced;
  program.ops.post_recv = g_backend.needs_signals ? post_recv : post_recv_unforced;
  program.ops.post_srq_recv = post_srq_recv;
  context.verbs().create_cq_ex = create_cq_ex;
  context.verbs().create_qp_ex = create_qp_ex;
  context.verbs().create_srq_ex = create_srq_ex;
  context.verbs().open_xrcd = open_xrcd;
  context.verbs().close_xrcd = close_xrcd;
  context.verbs().get_srq_num = get_srq_num;
  context.verbs().open_qp = open_qp;
}

ShadowPort* port_of(ibv_context* context, std::uint8_t number) {
  ShadowContext* shadow = ShadowContext::of(context);
  return number >= 1 && number <= shadow->ports.size() ? &shadow->ports[number - 1] : nullptr;
}

// Closing a device takes what the program left on it along, as the kernel does (perftest leaves completion queues).
// Each kind before what it uses; the objects themselves are the program's no more, so nobody waits for
// acknowledgements.
void destroy_leftovers(ibv_context* program) {
  auto each = [program](auto& list, auto destroy, auto context_of) {
    for (auto it = list.begin(); it != list.end();) {
      auto& object = *it;
      if (context_of(object) != program) {
        ++it;
        continue;
      }
      it = list.erase(it);
      destroy(object);
    }
  };
  Registry& r = registry();
  each(
      r.opened, [](ShadowQp&) {}, [](ShadowQp& qp) { return qp.qp.qp_base.context; });
  each(
      r.qps,
      [&r](ShadowQp& qp) {
        for (const MulticastAttachment& group : qp.groups) g_backend.detach_mcast(qp.real, &group.gid, group.lid);
        r.unnumber(qp, {qp.real->qp_num});
        g_backend.destroy_qp(qp.real);
      },
      [](ShadowQp& qp) { return qp.qp.qp_base.context; });
  for (auto* handles : {&r.ahs, &r.destroyed_ahs})
    each(
        *handles, [](ShadowAh& ah) { ah.destroy_real(); }, [](ShadowAh& ah) { return ah.ah.context; });
  each(
      r.srqs, [](ShadowSrq& srq) { g_backend.destroy_srq(srq.real); },
      [](ShadowSrq& srq) { return srq.srq.context; });
  each(
      r.xrcds, [](ShadowXrcd& xrcd) { g_backend.close_xrcd(xrcd.real); },
      [](ShadowXrcd& xrcd) { return xrcd.xrcd.context; });
  each(
      r.cqs, [](ShadowCq& cq) { g_backend.destroy_cq(cq.real); }, [](ShadowCq& cq) { return cq.cq.context; });
  each(
      r.mws, [](ShadowMw& mw) { g_backend.dealloc_mw(mw.real); }, [](ShadowMw& mw) { return mw.mw.context; });
  each(
      r.mrs, [](ShadowMr& mr) { g_backend.dereg_mr(mr.real); }, [](ShadowMr& mr) { return mr.mr.context; });
  each(
      r.pds, [](ShadowPd& pd) { drop_fence(pd), g_backend.dealloc_pd(pd.real); },
      [](ShadowPd& pd) { return pd.pd.context; });
  each(
      r.channels,
      [](ShadowChannel& c) {
        g_backend.destroy_comp_channel(c.real);
        c.events.close(c.channel.fd);
      },
      [](ShadowChannel& c) { return c.channel.context; });
}

int query_port_slot(ibv_context* context, std::uint8_t number, ibv_port_attr* attr, std::size_t bytes);
int query_device_ex_slot(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attr,
                         std::size_t bytes);

}  // namespace
}  // namespace shadowib

using namespace shadowib;

extern "C" {

ibv_device** shadowib_ibv_get_device_list(int* count) {
  turn_program_imports();
  if (count != nullptr) *count = 0;
  std::vector<ibv_device*> found;
  if (!list_devices(&found)) return nullptr;
  // Of the program's heap, and so outside of any Inside: some free it themselves (qperf does).
  auto** list = static_cast<ibv_device**>(::calloc(found.size() + 1, sizeof(ibv_device*)));
  Inside inside;
  if (list != nullptr) std::copy(found.begin(), found.end(), list);
  if (list != nullptr && count != nullptr) *count = static_cast<int>(found.size());
  std::vector<ibv_device*>().swap(found);  // of shadowib's heap, and so given back inside
  return list;
}

void shadowib_ibv_free_device_list(ibv_device** list) { ::free(list); }

const char* shadowib_ibv_get_device_name(ibv_device* device) { return device->name; }

__be64 shadowib_ibv_get_device_guid(ibv_device* device) { return reinterpret_cast<ShadowDevice*>(device)->guid; }

int shadowib_ibv_get_device_index(ibv_device* device) { return reinterpret_cast<ShadowDevice*>(device)->index; }

ibv_context* shadowib_ibv_open_device(ibv_device* device) {
  Inside inside;
  // Joining comes first: a backend names its ports through the job's exchange.
  if (Status status = join_job(); !status.ok()) return null_with(errno_from(status, "ibv_open_device"));
  auto* shadow_device = reinterpret_cast<ShadowDevice*>(device);
  int n = 0;
  ibv_device** real_list = g_backend.get_device_list(&n);
  if (real_list == nullptr) {
    const int error = errno;
    log_line(LogLevel::kError, "ibv_open_device: backend %s has no list of devices any more: %s", g_backend.name,
             ::strerror(error));
    return null_with(error);
  }
  ibv_context* real = shadow_device->ordinal < n ? g_backend.open_device(real_list[shadow_device->ordinal]) : nullptr;
  int saved = errno;
  g_backend.free_device_list(real_list);
  if (real == nullptr) {
    if (shadow_device->ordinal >= n) saved = ENODEV;
    log_line(LogLevel::kError, "ibv_open_device: backend %s cannot open device %s: %s", g_backend.name, device->name,
             ::strerror(saved));
    return null_with(saved);
  }

  auto* context = new ShadowContext{};
  context->real = real;
  context->device = shadow_device;
  context->translate = job_info().generation > 0;
  fill_operations(*context);
  if (context->translate) call_turning(*context);
  context->verbs().query_port = query_port_slot;
  context->verbs().query_device_ex = query_device_ex_slot;
  Status status = identify(*context);
  if (status.ok()) status = start_helper();
  int fd = status.ok() ? context->async_events.open(real->async_fd) : -1;
  if (fd < 0) {
    int error = status.ok() ? errno : errno_from(status, "ibv_open_device");
    g_backend.close_device(real);
    delete context;
    return null_with(error);
  }
  context->program().async_fd = fd;
  context->program().cmd_fd = fd;  // a command descriptor is there to be passed on (import): a valid one of no use
  Registry& r = registry();
  {
    SpinGuard guard(r.lock);
    r.contexts.push_back(*context);
    r.number_targets(*context);
  }
  status = announce_ports(*context);  // of what is registered
  if (status.ok()) {
    SpinGuard guard(r.lock);
    keep_identity(*context);
    return &context->program();
  }
  shadowib_ibv_close_device(&context->program());
  return null_with(errno_from(status, "ibv_open_device"));
}

int shadowib_ibv_close_device(ibv_context* program) {
  if (ShadowContext::is_foreign(program)) return EPERM;
  await_sending_again();  // what is left over may have something to send
  Inside inside;
  ShadowContext* context = ShadowContext::of(program);
  Registry& r = registry();
  SpinGuard guard(r.lock);
  destroy_leftovers(program);
  if (int rc = g_backend.close_device(context->real); rc != 0) return rc;
  r.contexts.erase(r.contexts.iterator_to(*context));
  context->async_events.close(program->async_fd);
  delete context;
  return 0;
}

int shadowib_ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  *attr = ShadowContext::of(context)->attr;
  return 0;
}

int shadowib_ibv_query_port(ibv_context* context, std::uint8_t number, _compat_ibv_port_attr* attr) {
  return query_port_slot(context, number, reinterpret_cast<ibv_port_attr*>(attr),
                         48);  // the exported symbol writes the oldest layout only
}

int shadowib_ibv_query_gid(ibv_context* context, std::uint8_t number, int index, ibv_gid* gid) {
  ShadowPort* port = port_of(context, number);
  if (port == nullptr || index < 0 || index >= static_cast<int>(port->gids.size())) {
    errno = EINVAL;
    return -1;
  }
  *gid = port->gids[static_cast<std::size_t>(index)].gid;
  return 0;
}

int shadowib_ibv_query_gid_type(ibv_context* context, std::uint8_t number, unsigned index, int* type) {
  ShadowPort* port = port_of(context, number);
  if (port == nullptr || index >= port->gids.size()) {
    errno = EINVAL;
    return -1;
  }
  *type = port->gids[index].type;
  return 0;
}

int shadowib_ibv_query_pkey(ibv_context* context, std::uint8_t number, int index, std::uint16_t* pkey) {
  ShadowPort* port = port_of(context, number);
  if (port == nullptr || index < 0 || index >= static_cast<int>(port->pkeys.size())) {
    errno = EINVAL;
    return -1;
  }
  *pkey = port->pkeys[static_cast<std::size_t>(index)];
  return 0;
}

int shadowib_ibv_get_pkey_index(ibv_context* context, std::uint8_t number, std::uint16_t pkey) {
  ShadowPort* port = port_of(context, number);
  for (std::size_t i = 0; port != nullptr && i < port->pkeys.size(); ++i)
    if (port->pkeys[i] == pkey) return static_cast<int>(i);
  return -1;
}

int shadowib_ibv_query_gid_ex(ibv_context* context, std::uint32_t number, std::uint32_t index, ibv_gid_entry* entry,
                              std::uint32_t flags, std::size_t entry_size) {
  if (flags != 0 || entry_size < sizeof(ibv_gid_entry)) return EINVAL;
  ShadowPort* port = number <= 255 ? port_of(context, static_cast<std::uint8_t>(number)) : nullptr;
  if (port == nullptr || index >= port->gids.size()) return EINVAL;
  if (port->gids[index].empty()) return ENODATA;
  *entry = {};
  entry->gid = port->gids[index].gid;
  entry->gid_index = index;
  entry->port_num = number;
  entry->gid_type = port->attr.link_layer == IBV_LINK_LAYER_ETHERNET && port->gids[index].type != 0
                        ? IBV_GID_TYPE_ROCE_V2
                        : (port->attr.link_layer == IBV_LINK_LAYER_ETHERNET ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_IB);
  return 0;
}

ssize_t shadowib_ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, std::size_t capacity,
                                     std::uint32_t flags, std::size_t entry_size) {
  if (flags != 0 || entry_size < sizeof(ibv_gid_entry)) return -EINVAL;
  ShadowContext* shadow = ShadowContext::of(context);
  std::size_t n = 0;
  auto* at = reinterpret_cast<char*>(entries);
  for (std::uint32_t p = 1; p <= shadow->ports.size(); ++p)
    for (std::uint32_t g = 0; g < shadow->ports[p - 1].gids.size(); ++g) {
      if (shadow->ports[p - 1].gids[g].empty()) continue;
      if (n >= capacity) return -EINVAL;
      if (int rc = shadowib_ibv_query_gid_ex(context, p, g, reinterpret_cast<ibv_gid_entry*>(at), 0, entry_size))
        return -rc;
      ++n;
      at += entry_size;
    }
  return static_cast<ssize_t>(n);
}

}  // extern "C"

namespace shadowib {
namespace {

int query_port_slot(ibv_context* context, std::uint8_t number, ibv_port_attr* attr, std::size_t bytes) {
  Inside inside;
  ShadowPort* port = port_of(context, number);
  if (port == nullptr) return EINVAL;
  if (bytes > sizeof(*attr)) ::memset(reinterpret_cast<char*>(attr) + sizeof(*attr), 0, bytes - sizeof(*attr));
  // The port's state is the adapter's, its identity the recorded one.
  ibv_port_attr now = port->attr;
  ibv_port_attr real{};
  if (g_backend.query_port(ShadowContext::of(context)->real, number, &real, sizeof(real)) == 0) {
    now.state = real.state;
    now.phys_state = real.phys_state;
  }
  ::memcpy(attr, &now, bytes < sizeof(now) ? bytes : sizeof(now));
  return 0;
}

int query_device_ex_slot(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attr,
                         std::size_t bytes) {
  if (input != nullptr && input->comp_mask != 0) return EINVAL;
  if (bytes < sizeof(ibv_device_attr)) return EINVAL;
  ::memset(attr, 0, bytes);
  attr->orig_attr = ShadowContext::of(context)->attr;
  // Everything beyond the original attributes is absent: the bits stay 0. The longer field of capabilities repeats
  // them.
  if (bytes >= offsetof(ibv_device_attr_ex, phys_port_cnt_ex) + sizeof(attr->phys_port_cnt_ex))
    attr->phys_port_cnt_ex = attr->orig_attr.phys_port_cnt;
  if (bytes >= offsetof(ibv_device_attr_ex, device_cap_flags_ex) + sizeof(attr->device_cap_flags_ex))
    attr->device_cap_flags_ex = attr->orig_attr.device_cap_flags;
  return 0;
}

}  // namespace
}  // namespace shadowib
