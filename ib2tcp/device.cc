#include "ib2tcp/device.h"

#include <endian.h>
#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "ib2tcp/engine.h"
#include "ib2tcp/host.h"
#include "ib2tcp/identity.h"
#include "ib2tcp/memory.h"
#include "ib2tcp/queue_pair.h"
#include "ib2tcp/rendezvous.h"
#include "ib2tcp/shared_receive_queue.h"

namespace shadowib::ib2tcp {
namespace {

Device& device_of(ibv_device* verbs) { return *reinterpret_cast<Device*>(verbs); }
Context& context_of(ibv_context* verbs) { return *reinterpret_cast<Context*>(verbs); }

// Of the object that it is about.
std::uint32_t& unread_events(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return reinterpret_cast<Cq*>(event.element.cq)->unread_events;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return reinterpret_cast<Srq*>(event.element.srq)->unread_events;
    default:  // no port or device raises any
      return reinterpret_cast<Qp*>(event.element.qp)->unread_events;
  }
}

std::uint32_t bit_of(const ibv_async_event& event) { return 1u << event.event_type; }

// Made at the first call, abandoned with the library; no destructor.
std::vector<std::unique_ptr<Device>>* g_devices = nullptr;

// A count from the environment within [1, most]; -1 if it is something else.
int configured_count(const char* name, int most) {
  const char* text = g_host->config(name);
  if (text == nullptr || *text == '\0') return 1;
  char* end = nullptr;
  long value = std::strtol(text, &end, 10);
  if (*end == '\0' && value >= 1 && value <= most) return static_cast<int>(value);
  log_message(LogLevel::kError, "%s=%s is not a number from 1 to %d", name, text, most);
  return -1;
}

int make_devices() {
  if (g_devices != nullptr) return 0;
  int devices = configured_count("SHADOWIB_IB2TCP_DEVICES", kMaxDevices);
  int ports = configured_count("SHADOWIB_IB2TCP_PORTS", kMaxPorts);
  if (devices < 0 || ports < 0) return EINVAL;
  const Identity* former = g_engine->former.get();
  if (former != nullptr && (former->devices != static_cast<std::uint32_t>(devices) ||
                            former->ports != static_cast<std::uint32_t>(ports))) {
    log_message(LogLevel::kError, "this process had %u devices of %u ports, and is to have %d of %d", former->devices,
                former->ports, devices, ports);
    return EINVAL;
  }
  auto list = std::make_unique<std::vector<std::unique_ptr<Device>>>();
  for (int i = 0; i < devices; ++i) {
    auto device = std::make_unique<Device>();
    device->index = i;
    device->port_count = ports;
    device->verbs.node_type = IBV_NODE_CA;
    device->verbs.transport_type = IBV_TRANSPORT_IB;
    std::uint8_t guid[8];
    random_bytes(guid, sizeof(guid));
    guid[0] = static_cast<std::uint8_t>((guid[0] & 0xfc) | 0x02);  // locally administered
    std::memcpy(&device->guid, guid, sizeof(guid));
    if (former != nullptr) {
      device->guid = former->guids[i];
      std::copy(std::begin(former->lids[i]), std::end(former->lids[i]), device->lids);
    }
    std::snprintf(device->verbs.name, sizeof(device->verbs.name), "ib2tcp%d", i);
    std::snprintf(device->verbs.dev_name, sizeof(device->verbs.dev_name), "uverbs%d", i);
    list->push_back(std::move(device));
  }
  g_devices = list.release();
  return 0;
}

// Takes addresses and opens listeners, at the first open: a process that only lists devices is no member of a job and
// stays inert.
int ensure_addresses() {
  if (g_engine->rendezvous != nullptr) return 0;
  auto rendezvous = std::make_unique<Rendezvous>();
  if (int rc = rendezvous->start(*g_devices); rc != 0) return rc;
  g_engine->rendezvous = std::move(rendezvous);
  return 0;
}

}  // namespace

bool are_devices_made() { return g_devices != nullptr; }

bool describe_devices(Identity* identity) {
  if (g_devices == nullptr) return false;
  identity->devices = static_cast<std::uint32_t>(g_devices->size());
  for (std::size_t i = 0; i < g_devices->size(); ++i) {
    const Device& device = *(*g_devices)[i];
    identity->ports = static_cast<std::uint32_t>(device.port_count);
    identity->guids[i] = device.guid;
    std::copy(std::begin(device.lids), std::end(device.lids), identity->lids[i]);
  }
  return true;
}

void Context::raise(const ibv_async_event& event) {
  SpinGuard guard(events_lock);
  std::uint32_t& unread = unread_events(event);
  if ((unread & bit_of(event)) != 0) return;
  unread |= bit_of(event);
  events.push_back(event);
  std::uint64_t one = 1;
  [[maybe_unused]] auto n = ::write(verbs.async_fd, &one, sizeof(one));
}

void Context::forget(const void* object, const std::uint32_t& unread) {
  SpinGuard guard(events_lock);
  if (unread == 0) return;
  for (auto it = events.begin(); it != events.end();) {
    if (it->element.cq != object && it->element.qp != object) {
      ++it;
      continue;
    }
    it = events.erase(it);
    std::uint64_t one;
    [[maybe_unused]] auto n = ::read(verbs.async_fd, &one, sizeof(one));
  }
}

union ibv_gid port_gid(const Device& device, int port) {
  union ibv_gid gid {};
  gid.global.subnet_prefix = htobe64(0xfe80000000000000ull);
  std::memcpy(&gid.raw[8], &device.guid, 8);
  gid.raw[14] = static_cast<std::uint8_t>(device.lids[port - 1] >> 8);
  gid.raw[15] = static_cast<std::uint8_t>(device.lids[port - 1]);
  return gid;
}

ibv_device** get_device_list(int* count) {
  EngineGuard guard;
  if (int rc = make_devices(); rc != 0) {
    if (count != nullptr) *count = 0;
    return fail_null<ibv_device*>(rc);
  }
  auto** list = new ibv_device*[g_devices->size() + 1]();
  for (std::size_t i = 0; i < g_devices->size(); ++i) list[i] = &(*g_devices)[i]->verbs;
  if (count != nullptr) *count = static_cast<int>(g_devices->size());
  return list;
}

void free_device_list(ibv_device** list) { delete[] list; }
const char* get_device_name(ibv_device* device) { return device->name; }
std::uint64_t get_device_guid(ibv_device* device) { return device_of(device).guid; }
int get_device_index(ibv_device* device) { return device_of(device).index; }

ibv_context* open_device(ibv_device* device) {
  {
    EngineGuard guard;
    if (int rc = ensure_addresses(); rc != 0) return fail_null<ibv_context>(rc);
  }
  UnownedDescriptors unowned;
  int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE);
  if (fd < 0) return fail_null<ibv_context>(errno);
  int owned = unowned.own(fd);
  if (owned < 0) {
    ::close(fd);
    return fail_null<ibv_context>(EMFILE);
  }
  auto* context = new Context;
  context->device = &device_of(device);
  context->verbs.device = device;
  context->verbs.cmd_fd = -1;
  context->verbs.async_fd = owned;
  context->verbs.num_comp_vectors = 1;
  return &context->verbs;
}

int close_device(ibv_context* verbs) {
  Context& context = context_of(verbs);
  if (context.users.load() != 0) return EBUSY;
  g_host->close_descriptor(verbs->async_fd);
  delete &context;
  return 0;
}

int query_device(ibv_context* verbs, ibv_device_attr* attr) {
  const Device& device = *context_of(verbs).device;
  *attr = {};
  std::snprintf(attr->fw_ver, sizeof(attr->fw_ver), "%s", SHADOWIB_VERSION);
  attr->node_guid = attr->sys_image_guid = device.guid;
  attr->max_mr_size = UINT64_MAX;
  attr->page_size_cap = 0xfffff000;
  attr->vendor_id = 0x5342;  // nobody's: programs must not take it for an adapter they know
  attr->vendor_part_id = 1;
  attr->hw_ver = 1;
  attr->max_qp = kMaxQp;
  attr->max_qp_wr = kMaxQpWr;
  attr->max_srq = kMaxSrq;
  attr->max_srq_wr = kMaxSrqWr;
  attr->max_srq_sge = kMaxSge;
  attr->device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN |
                           IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS |
                           IBV_DEVICE_XRC;
  attr->max_sge = attr->max_sge_rd = kMaxSge;
  attr->max_cq = 1 << 16;
  attr->max_cqe = kMaxCqe;
  attr->max_mr = kMaxMr;
  attr->max_mw = kMaxMw;
  attr->max_pd = 1 << 16;
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = kMaxRdAtomic;
  attr->max_res_rd_atom = kMaxRdAtomic * kMaxQp;
  // They are processor instructions, atomic for everybody on the host; but what adapters say is this, and UCX takes
  // no other answer for atomics.
  attr->atomic_cap = IBV_ATOMIC_HCA;
  attr->max_ah = 1 << 20;
  attr->max_mcast_grp = 1 << 16;
  attr->max_mcast_qp_attach = kMaxQp;
  attr->max_total_mcast_qp_attach = 1 << 20;
  attr->max_pkeys = 1;
  attr->local_ca_ack_delay = 15;
  attr->phys_port_cnt = static_cast<std::uint8_t>(device.port_count);
  return 0;
}

int query_port(ibv_context* verbs, std::uint8_t port, ibv_port_attr* attr, std::size_t attr_bytes) {
  const Device& device = *context_of(verbs).device;
  if (port < 1 || port > device.port_count) return EINVAL;
  ibv_port_attr a{};
  a.state = IBV_PORT_ACTIVE;
  a.max_mtu = a.active_mtu = IBV_MTU_4096;
  a.gid_tbl_len = kGidTableEntries;
  a.max_msg_sz = 1u << 31;
  a.pkey_tbl_len = 1;
  a.lid = device.lids[port - 1];
  a.sm_lid = 1;
  a.max_vl_num = 1;
  a.subnet_timeout = 18;
  a.active_width = 2;   // 4X
  a.active_speed = 32;  // EDR
  a.phys_state = 5;     // LinkUp
  a.link_layer = IBV_LINK_LAYER_INFINIBAND;
  std::memcpy(attr, &a, std::min(attr_bytes, sizeof(a)));
  return 0;
}

int query_gid(ibv_context* verbs, std::uint8_t port, int index, union ibv_gid* gid) {
  const Device& device = *context_of(verbs).device;
  if (port < 1 || port > device.port_count || index < 0 || index >= kGidTableEntries) return EINVAL;
  *gid = index == 0 ? port_gid(device, port) : ibv_gid{};
  return 0;
}

int query_gid_type(ibv_context* verbs, std::uint8_t port, unsigned index, int* type) {
  if (port < 1 || port > context_of(verbs).device->port_count || index >= kGidTableEntries) return EINVAL;
  *type = 0;
  return 0;
}

int query_pkey(ibv_context* verbs, std::uint8_t port, int index, std::uint16_t* pkey) {
  if (port < 1 || port > context_of(verbs).device->port_count || index != 0) return EINVAL;
  *pkey = htobe16(0xffff);
  return 0;
}

int get_async_event(ibv_context* verbs, ibv_async_event* event) {
  Context& context = context_of(verbs);
  SpinGuard guard(context.events_lock);
  if (context.events.empty()) {
    g_host->set_errno(EAGAIN);
    return -1;
  }
  std::uint64_t one;
  [[maybe_unused]] auto n = ::read(verbs->async_fd, &one, sizeof(one));
  *event = context.events.front();
  context.events.pop_front();
  unread_events(*event) &= ~bit_of(*event);
  return 0;
}

void ack_async_event(ibv_async_event*) {}

}  // namespace shadowib::ib2tcp
