// The null backend: every request completes as soon as it is posted and moves no data.
//
// For measuring what the shim itself costs, and for tests that need objects but no network. One device, null0, one
// active port. Selected by SHADOWIB_BACKEND=null. Receives complete as if a message without payload had arrived.
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>

#include "shadowib/abi/backend.h"
#include "shadowib/base/lock.h"

namespace shadowib::null_backend {
namespace {

const HostServices* g_host;
std::atomic<std::uint32_t> g_next_number{1};
ibv_device g_device;

// Objects come from the host's memory, which is no part of an image, and go back to a list of their kind.
template <class T>
class Pool {
 public:
  T* make() {
    SpinGuard guard(lock_);
    if (free_ == nullptr && !grow()) {
      g_host->set_errno(ENOMEM);
      return nullptr;
    }
    Node* node = free_;
    free_ = node->next;
    return new (node) T{};
  }
  void recycle(T* object) {
    object->~T();
    SpinGuard guard(lock_);
    free_ = new (static_cast<void*>(object)) Node{free_};
  }

 private:
  struct Node {
    Node* next;
  };
  static constexpr std::size_t kSlot = (sizeof(T) + 63) / 64 * 64;
  bool grow() {
    constexpr std::size_t kBytes = (kSlot > 65536 ? kSlot : 65536) * 4;
    auto* chunk = static_cast<char*>(g_host->map(kBytes));
    if (chunk == nullptr) return false;
    for (std::size_t at = 0; at + kSlot <= kBytes; at += kSlot) free_ = new (chunk + at) Node{free_};
    return true;
  }
  SpinLock lock_;
  Node* free_ = nullptr;
};

struct Channel;

struct Cq {
  ibv_cq cq;
  Channel* channel;
  SpinLock lock;
  ibv_wc* ring;
  std::uint32_t mask, head, tail;
  std::size_t ring_bytes;
  bool armed, event_pending;
  Cq* next_event;
};

struct Channel {
  ibv_comp_channel channel;
  SpinLock lock;
  Cq* first_event;
};

struct Qp {
  ibv_qp qp;
  ibv_qp_attr attr;
  ibv_qp_init_attr init;
  std::atomic<std::uint64_t> posted;
};

struct Context {
  ibv_context context;
};

Pool<Context> g_contexts;
Pool<ibv_pd> g_pds;
Pool<ibv_mr> g_mrs;
Pool<Channel> g_channels;
Pool<Cq> g_cqs;
Pool<Qp> g_qps;

Cq* of(ibv_cq* cq) { return reinterpret_cast<Cq*>(cq); }
Qp* of(ibv_qp* qp) { return reinterpret_cast<Qp*>(qp); }

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

// An eventfd the program does not see, or -1 with the program's errno set.
int owned_eventfd(int flags) {
  int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | flags);
  if (fd < 0) g_host->set_errno(errno);
  return fd < 0 ? -1 : g_host->own_descriptor(fd);
}

ibv_context* open_device(ibv_device* device) {
  int owned = owned_eventfd(0);
  Context* context = owned < 0 ? nullptr : g_contexts.make();
  if (context == nullptr) return nullptr;
  context->context.device = device;
  context->context.cmd_fd = -1;
  context->context.async_fd = owned;
  context->context.num_comp_vectors = 1;
  return &context->context;
}
int close_device(ibv_context* context) {
  g_host->close_descriptor(context->async_fd);
  g_contexts.recycle(reinterpret_cast<Context*>(context));
  return 0;
}

int query_device(ibv_context*, ibv_device_attr* attr) {
  *attr = {};
  std::strcpy(attr->fw_ver, "0");
  attr->node_guid = attr->sys_image_guid = get_device_guid(nullptr);
  attr->max_mr_size = ~0ull;
  attr->page_size_cap = 4096;
  attr->max_qp = attr->max_cq = attr->max_mr = attr->max_pd = 1 << 20;
  attr->max_qp_wr = attr->max_cqe = 1 << 16;
  attr->max_sge = 16;
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
  if (mr != nullptr) *mr = {pd->context, pd, address, bytes, key, key, key};
  return mr;
}
int dereg_mr(ibv_mr* mr) {
  g_mrs.recycle(mr);
  return 0;
}

// --- completion

ibv_comp_channel* create_comp_channel(ibv_context* context) {
  int owned = owned_eventfd(EFD_SEMAPHORE);
  Channel* channel = owned < 0 ? nullptr : g_channels.make();
  if (channel == nullptr) return nullptr;
  channel->channel = {context, owned, 0};
  return &channel->channel;
}
int destroy_comp_channel(ibv_comp_channel* channel) {
  g_host->close_descriptor(channel->fd);
  g_channels.recycle(reinterpret_cast<Channel*>(channel));
  return 0;
}

ibv_cq* create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel, int) {
  std::uint32_t entries = 64;
  while (entries < static_cast<std::uint32_t>(cqe) + 1) entries *= 2;
  std::size_t bytes = (entries * sizeof(ibv_wc) + 4095) & ~std::size_t{4095};
  Cq* cq = g_cqs.make();
  void* ring = g_host->map(bytes);
  if (cq == nullptr || ring == nullptr) return nullptr;
  cq->cq.context = context;
  cq->cq.channel = channel;
  cq->cq.cq_context = cq_context;
  cq->cq.cqe = cqe;
  cq->channel = reinterpret_cast<Channel*>(channel);
  cq->ring = static_cast<ibv_wc*>(ring);
  cq->ring_bytes = bytes;
  cq->mask = entries - 1;
  return &cq->cq;
}
int destroy_cq(ibv_cq* cq) {
  g_host->unmap(of(cq)->ring, of(cq)->ring_bytes);
  g_cqs.recycle(of(cq));
  return 0;
}

int poll_cq(ibv_cq* handle, int count, ibv_wc* wc) {
  Cq* cq = of(handle);
  SpinGuard guard(cq->lock);
  int n = 0;
  for (; n < count && cq->head != cq->tail; ++n) wc[n] = cq->ring[cq->head++ & cq->mask];
  return n;
}

int req_notify_cq(ibv_cq* handle, int) {
  SpinGuard guard(of(handle)->lock);
  of(handle)->armed = true;
  return 0;
}

void raise_event(Cq* cq) {
  SpinGuard guard(cq->channel->lock);
  if (cq->event_pending) return;
  cq->event_pending = true;
  cq->next_event = cq->channel->first_event;
  cq->channel->first_event = cq;
  std::uint64_t one = 1;
  [[maybe_unused]] auto written = ::write(cq->channel->channel.fd, &one, sizeof(one));
}

int get_cq_event(ibv_comp_channel* handle, ibv_cq** cq) {
  auto* channel = reinterpret_cast<Channel*>(handle);
  SpinGuard guard(channel->lock);
  Cq* first = channel->first_event;
  if (first == nullptr) {
    g_host->set_errno(EAGAIN);
    return -1;
  }
  channel->first_event = first->next_event;
  first->event_pending = false;
  std::uint64_t taken;
  [[maybe_unused]] auto got = ::read(handle->fd, &taken, sizeof(taken));
  *cq = &first->cq;
  return 0;
}
void ack_cq_events(ibv_cq*, unsigned) {}

// Room for one more, or false. The ring holds at least what was asked for.
bool complete(ibv_cq* handle, const ibv_wc& wc) {
  Cq* cq = of(handle);
  bool raise;
  {
    SpinGuard guard(cq->lock);
    if (cq->tail - cq->head > cq->mask) return false;
    cq->ring[cq->tail++ & cq->mask] = wc;
    raise = cq->armed && cq->channel != nullptr;
    cq->armed = cq->armed && !raise;
  }
  if (raise) raise_event(cq);
  return true;
}

// --- queue pairs

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  Qp* qp = g_qps.make();
  if (qp == nullptr) return nullptr;
  qp->qp.context = pd->context;
  qp->qp.qp_context = attr->qp_context;
  qp->qp.pd = pd;
  qp->qp.send_cq = attr->send_cq;
  qp->qp.recv_cq = attr->recv_cq;
  qp->qp.qp_num = g_next_number++;
  qp->qp.state = IBV_QPS_RESET;
  qp->qp.qp_type = attr->qp_type;
  qp->init = *attr;
  return &qp->qp;
}
int modify_qp(ibv_qp* handle, ibv_qp_attr* attr, int mask) {
  if (mask & IBV_QP_STATE) handle->state = of(handle)->attr.qp_state = attr->qp_state;
  return 0;
}
int query_qp(ibv_qp* handle, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  *attr = of(handle)->attr;
  attr->cap = of(handle)->init.cap;
  *init = of(handle)->init;
  return 0;
}
int destroy_qp(ibv_qp* qp) {
  g_qps.recycle(of(qp));
  return 0;
}

ibv_wc_opcode completion_of(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

int post_send(ibv_qp* handle, ibv_send_wr* wr, ibv_send_wr** bad) {
  Qp* qp = of(handle);
  for (; wr != nullptr; wr = wr->next) {
    if ((wr->send_flags & IBV_SEND_SIGNALED) != 0 || qp->init.sq_sig_all) {
      ibv_wc wc{};
      wc.wr_id = wr->wr_id;
      wc.opcode = completion_of(wr->opcode);
      wc.qp_num = handle->qp_num;
      if (!complete(handle->send_cq, wc)) {
        *bad = wr;
        return ENOMEM;
      }
    }
    qp->posted.fetch_add(1, std::memory_order_relaxed);
  }
  return 0;
}

int post_recv(ibv_qp* handle, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  for (; wr != nullptr; wr = wr->next) {
    ibv_wc wc{};
    wc.wr_id = wr->wr_id;
    wc.opcode = IBV_WC_RECV;
    wc.qp_num = handle->qp_num;
    if (!complete(handle->recv_cq, wc)) {
      *bad = wr;
      return ENOMEM;
    }
  }
  return 0;
}

std::uint64_t sq_executed(ibv_qp* qp) { return of(qp)->posted; }

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
  SET(dereg_mr), SET(create_comp_channel), SET(destroy_comp_channel), SET(create_cq), SET(destroy_cq), SET(poll_cq);
  SET(req_notify_cq), SET(get_cq_event), SET(ack_cq_events), SET(create_qp), SET(modify_qp), SET(query_qp);
  SET(destroy_qp), SET(post_send), SET(post_recv), SET(sq_executed);
#undef SET
  return 0;
}
