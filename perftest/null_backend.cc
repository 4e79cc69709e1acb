// The null backend: every request completes as soon as it is posted and moves no data.
//
// For measuring what the shim itself costs, and for tests that need objects but no network. One device, null0, one
// active port. Selected by SHADOWIB_BACKEND=null. What it has: RC, UC and UD queue pairs, shared receive queues and
// address handles (null_queues.cc). Extended verbs need nothing of a backend: the shim makes plain requests and polls
// of them.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>

#include "perftest/null_objects.h"

namespace shadowib::null_backend {

const HostServices* g_host;
std::atomic<std::uint32_t> g_next_number{1};

int owned_eventfd(int flags) {
  int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | flags);
  if (fd < 0) g_host->set_errno(errno);
  return fd < 0 ? -1 : g_host->own_descriptor(fd);
}

namespace {

ibv_device g_device;
Pool<ibv_context> g_contexts;
Pool<ibv_pd> g_pds;
Pool<ibv_mr> g_mrs;

// --- devices

ibv_device** get_device_list(int* count) {
  auto** list = static_cast<ibv_device**>(g_host->map(4096));
  if (list == nullptr) return nullptr;
  list[0] = &g_device;
  if (count != nullptr) *count = 1;
  return list;
}
void free_device_list(ibv_device** list) { g_host->unmap(list, 4096); }
const char* get_device_name(ibv_device* device) { return device->name; }
std::uint64_t get_device_guid(ibv_device*) { return 0x0100'0000'0000'4e02; }
int get_device_index(ibv_device*) { return 1; }

ibv_context* open_device(ibv_device* device) {
  int owned = owned_eventfd(0);
  ibv_context* context = owned < 0 ? nullptr : g_contexts.make();
  if (context == nullptr) return nullptr;
  context->device = device;
  context->cmd_fd = -1;
  context->async_fd = owned;
  context->num_comp_vectors = 1;
  return context;
}
int close_device(ibv_context* context) {
  g_host->close_descriptor(context->async_fd);
  g_contexts.recycle(context);
  return 0;
}

int query_device(ibv_context*, ibv_device_attr* attr) {
  *attr = {};
  std::strcpy(attr->fw_ver, "0");
  attr->node_guid = attr->sys_image_guid = get_device_guid(nullptr);
  attr->max_mr_size = ~0ull;
  attr->page_size_cap = 4096;
  attr->max_qp = attr->max_cq = attr->max_mr = attr->max_pd = attr->max_srq = attr->max_ah = 1 << 20;
  attr->max_qp_wr = attr->max_cqe = attr->max_srq_wr = 1 << 16;
  attr->max_sge = attr->max_srq_sge = 16;
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = 16;
  attr->atomic_cap = IBV_ATOMIC_HCA;
  attr->max_pkeys = 1;
  attr->phys_port_cnt = 1;
  return 0;
}

int query_port(ibv_context*, std::uint8_t port, ibv_port_attr* attr, std::size_t bytes) {
  if (port != 1) return EINVAL;
  ibv_port_attr all{};
  all.state = IBV_PORT_ACTIVE;
  all.max_mtu = all.active_mtu = IBV_MTU_4096;
  all.gid_tbl_len = all.pkey_tbl_len = 1;
  all.max_msg_sz = 1u << 31;
  all.lid = all.sm_lid = 1;
  all.active_width = 2;
  all.active_speed = 32;
  all.phys_state = 5;
  all.link_layer = IBV_LINK_LAYER_INFINIBAND;
  std::memcpy(attr, &all, bytes < sizeof(all) ? bytes : sizeof(all));
  return 0;
}

int query_gid(ibv_context*, std::uint8_t port, int index, ibv_gid* gid) {
  if (port != 1 || index != 0) return EINVAL;
  gid->global.subnet_prefix = 0x0000'0000'0000'80fe;
  gid->global.interface_id = get_device_guid(nullptr);
  return 0;
}
int query_gid_type(ibv_context*, std::uint8_t port, unsigned index, int* type) {
  *type = 0;
  return port == 1 && index == 0 ? 0 : EINVAL;
}
int query_pkey(ibv_context*, std::uint8_t port, int index, std::uint16_t* pkey) {
  *pkey = 0xffff;
  return port == 1 && index == 0 ? 0 : EINVAL;
}
int get_async_event(ibv_context*, ibv_async_event*) {
  g_host->set_errno(EAGAIN);
  return -1;
}
void ack_async_event(ibv_async_event*) {}

// --- protection domains, memory

ibv_pd* alloc_pd(ibv_context* context) {
  ibv_pd* pd = g_pds.make();
  if (pd != nullptr) *pd = {context, g_next_number++};
  return pd;
}
int dealloc_pd(ibv_pd* pd) {
  g_pds.recycle(pd);
  return 0;
}
ibv_mr* reg_mr(ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t, int) {
  ibv_mr* mr = g_mrs.make();
  std::uint32_t key = g_next_number++ << 8;
  if (mr != nullptr)
    *mr = {
        .context = pd->context, .pd = pd, .addr = address, .length = bytes, .handle = key, .lkey = key, .rkey = key};
  return mr;
}
int dereg_mr(ibv_mr* mr) {
  g_mrs.recycle(mr);
  return 0;
}

}  // namespace
}  // namespace shadowib::null_backend

using namespace shadowib::null_backend;

extern "C" __attribute__((visibility("default"))) int shadowib_backend_entry(const shadowib::HostServices* host,
                                                                             shadowib::BackendOps* ops) {
  if (host->abi_version != shadowib::kBackendAbiVersion) return EPROTO;
  g_host = host;
  std::strcpy(g_device.name, "null0");
  std::strcpy(g_device.dev_name, "null0");
  g_device.node_type = IBV_NODE_CA;
  g_device.transport_type = IBV_TRANSPORT_IB;
  *ops = {};
  ops->abi_version = shadowib::kBackendAbiVersion;
  ops->name = "null";
#define SET(slot) ops->slot = slot
  SET(get_device_list), SET(free_device_list), SET(get_device_name), SET(get_device_guid), SET(get_device_index);
  SET(open_device), SET(close_device), SET(query_device), SET(query_port), SET(query_gid), SET(query_gid_type);
  SET(query_pkey), SET(get_async_event), SET(ack_async_event), SET(alloc_pd), SET(dealloc_pd), SET(reg_mr);
  SET(dereg_mr);
#undef SET
  offer_queues(ops);
  return 0;
}
