// The backend `verbs`: the system's libibverbs in a link namespace of its own, its calls in our table.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "shadowib/abi/backend.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/needed_verbs.h"
#include "shadowib/base/unowned_descriptors.h"
#include "shadowib/objects/backend.h"
#include "shadowib/objects/ip_groups.h"
#include "shadowib/objects/link_namespace.h"
#include "shadowib/objects/system_library.h"
#include "shadowib/objects/verbs_belongings.h"

namespace shadowib {
namespace {

const HostServices* g_host;
void* g_library;
int* (*g_errno_location)();  // of the namespace: errno there is another variable
IpGroups g_ip_groups;
// Entries of an adapter's table that can be asked for: a command's attribute has no more bytes, and the library
// refuses a larger table.
constexpr std::size_t kMostGids = UINT16_MAX / sizeof(ibv_gid_entry);

// Null: the library has no such function.
template <typename F>
F find_function(const char* name, const char* version = "IBVERBS_1.1") {
  void* symbol = ::dlvsym(g_library, name, version);
  return reinterpret_cast<F>(symbol != nullptr ? symbol : ::dlsym(g_library, name));
}

template <typename F>
void find(F& function, const char* name, const char* version = "IBVERBS_1.1") {
  function = find_function<F>(name, version);
}

// Calls the real function and carries its errno over to the program's.
template <typename R, typename... Args>
R carried(R (*function)(Args...), Args... args) {
  if (function == nullptr) {
    g_host->set_errno(EOPNOTSUPP);
    if constexpr (std::is_pointer_v<R>)
      return nullptr;
    else
      return static_cast<R>(-1);
  }
  *g_errno_location() = 0;
  R result = function(args...);
  if (int e = *g_errno_location(); e != 0) g_host->set_errno(e);
  return result;
}

#define REAL(field, result, ...) result (*field)(__VA_ARGS__)
struct {
  REAL(get_device_list, ibv_device**, int*);
  REAL(open_device, ibv_context*, ibv_device*);
  REAL(close_device, int, ibv_context*);
  REAL(alloc_pd, ibv_pd*, ibv_context*);
  REAL(reg_mr_iova2, ibv_mr*, ibv_pd*, void*, size_t, uint64_t, unsigned);
  REAL(create_comp_channel, ibv_comp_channel*, ibv_context*);
  REAL(destroy_comp_channel, int, ibv_comp_channel*);
  REAL(create_cq, ibv_cq*, ibv_context*, int, void*, ibv_comp_channel*, int);
  REAL(get_cq_event, int, ibv_comp_channel*, ibv_cq**, void**);
  REAL(ack_cq_events, void, ibv_cq*, unsigned);
  REAL(create_qp, ibv_qp*, ibv_pd*, ibv_qp_init_attr*);
  REAL(modify_qp, int, ibv_qp*, ibv_qp_attr*, int);
  REAL(query_qp, int, ibv_qp*, ibv_qp_attr*, int, ibv_qp_init_attr*);
  REAL(get_async_event, int, ibv_context*, ibv_async_event*);
  REAL(create_srq, ibv_srq*, ibv_pd*, ibv_srq_init_attr*);
  REAL(create_ah, ibv_ah*, ibv_pd*, ibv_ah_attr*);
  REAL(rereg_mr, int, ibv_mr*, int, ibv_pd*, void*, size_t, int);
  REAL(query_port, int, ibv_context*, uint8_t, _compat_ibv_port_attr*);
  REAL(query_gid_type, int, ibv_context*, uint8_t, unsigned, int*);
  REAL(query_gid_table, ssize_t, ibv_context*, ibv_gid_entry*, size_t, uint32_t, size_t);
  REAL(attach_mcast, int, ibv_qp*, const ibv_gid*, uint16_t);
  REAL(detach_mcast, int, ibv_qp*, const ibv_gid*, uint16_t);
} real;
#undef REAL

ibv_device** get_device_list(int* count) { return carried(real.get_device_list, count); }

ibv_context* open_device(ibv_device* device) {
  UnownedDescriptors unowned;
  ibv_context* context = carried(real.open_device, device);
  if (context == nullptr) return nullptr;
  // Events are taken without blocking; the shim sleeps on a descriptor of its own.
  ::fcntl(context->async_fd, F_SETFL, ::fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
  for (int* fd : {&context->cmd_fd, &context->async_fd}) {
    if (own_library_descriptor(unowned, fd)) continue;
    g_host->set_errno(errno);
    real.close_device(context);
    return nullptr;
  }
  return context;
}

int close_device(ibv_context* context) {
  UnownedDescriptors unowned;
  return_library_descriptor(g_host, &context->cmd_fd);
  return_library_descriptor(g_host, &context->async_fd);
  return real.close_device(context);
}

int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attr, size_t bytes) {
  verbs_context* extended = verbs_get_ctx_op(context, query_port);
  if (extended != nullptr) return extended->query_port(context, port, attr, bytes);
  return real.query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(attr));
}

ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t bytes, uint64_t iova, int access) {
  return carried(real.reg_mr_iova2, pd, address, bytes, iova, static_cast<unsigned>(access));
}

ibv_pd* alloc_pd(ibv_context* context) { return carried(real.alloc_pd, context); }

ibv_comp_channel* create_comp_channel(ibv_context* context) {
  UnownedDescriptors unowned;
  ibv_comp_channel* channel = carried(real.create_comp_channel, context);
  if (channel == nullptr) return nullptr;
  ::fcntl(channel->fd, F_SETFL, ::fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
  if (own_library_descriptor(unowned, &channel->fd)) return channel;
  g_host->set_errno(errno);
  real.destroy_comp_channel(channel);
  return nullptr;
}

int destroy_comp_channel(ibv_comp_channel* channel) {
  UnownedDescriptors unowned;
  return_library_descriptor(g_host, &channel->fd);
  const int rc = real.destroy_comp_channel(channel);
  if (rc != 0) (void)own_library_descriptor(unowned, &channel->fd);
  return rc;
}

size_t describe(char* buffer, size_t capacity) {
  link_map* map = nullptr;
  if (::dlinfo(g_library, RTLD_DI_LINKMAP, &map) != 0) return 0;
  std::string text = R"({"library":")";
  for (const char* c = map->l_name; *c != '\0'; ++c) {
    if (static_cast<unsigned char>(*c) < 0x20) continue;  // which JSON would have spelled out
    if (*c == '"' || *c == '\\') text += '\\';
    text += *c;
  }
  text += R"("})";
  if (text.size() > capacity) return 0;
  ::memcpy(buffer, text.data(), text.size());
  return text.size();
}

int before_image() { return own_device_mappings(g_host); }

ibv_cq* create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel, int vector) {
  return carried(real.create_cq, context, cqe, cq_context, channel, vector);
}

int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq) {
  void* cq_context = nullptr;
  return carried(real.get_cq_event, channel, cq, &cq_context);
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) { return carried(real.create_qp, pd, attr); }
int rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t bytes, int access) {
  if (carried(real.rereg_mr, mr, flags, pd, address, bytes, access) == 0) return 0;
  return errno;
}
ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attr) { return carried(real.create_ah, pd, attr); }
ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) { return carried(real.create_srq, pd, attr); }
int get_async_event(ibv_context* context, ibv_async_event* event) {
  return carried(real.get_async_event, context, event);
}

int query_gid_type(ibv_context* context, uint8_t port, unsigned index, int* type) {
  if (real.query_gid_type == nullptr) return EOPNOTSUPP;
  return real.query_gid_type(context, port, index, type);
}

ssize_t query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t capacity) {
  if (real.query_gid_table == nullptr) return -EOPNOTSUPP;
  return real.query_gid_table(context, entries, std::min(capacity, kMostGids), 0, sizeof(ibv_gid_entry));
}

int attach_mcast(ibv_qp* qp, const ibv_gid* group, uint16_t lid) {
  if (int rc = real.attach_mcast(qp, group, lid); rc != 0) return rc;
  std::vector<ibv_gid_entry> table(kMostGids);
  const ssize_t n = query_gid_table(qp->context, table.data(), table.size());
  if (n > 0) g_ip_groups.join(qp, *group, {table.data(), static_cast<std::size_t>(n)});
  return 0;
}

int detach_mcast(ibv_qp* qp, const ibv_gid* group, uint16_t lid) {
  const int rc = real.detach_mcast(qp, group, lid);
  if (rc == 0) g_ip_groups.leave(qp, *group);
  return rc;
}

// The functions of XRC are slots of the context, which providers fill that have it.
ibv_xrcd* open_xrcd(ibv_context* context, int fd, int oflags, ibv_xrcd* shared) {
  verbs_context* extended = verbs_get_ctx_op(context, open_xrcd);
  if (extended == nullptr || (shared != nullptr && fd == -1)) {
    g_host->set_errno(EOPNOTSUPP);
    return nullptr;
  }
  ibv_xrcd_init_attr attr{IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, fd, oflags};
  return carried(extended->open_xrcd, context, &attr);
}

int close_xrcd(ibv_xrcd* xrcd) { return verbs_get_ctx(xrcd->context)->close_xrcd(xrcd); }

ibv_srq* create_xrc_srq(ibv_pd* pd, ibv_xrcd* xrcd, ibv_cq* cq, ibv_srq_init_attr* init) {
  verbs_context* extended = verbs_get_ctx_op(pd->context, create_srq_ex);
  ibv_srq_init_attr_ex attr{};
  attr.srq_context = init->srq_context;
  attr.attr = init->attr;
  attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  attr.srq_type = IBV_SRQT_XRC;
  attr.pd = pd;
  attr.xrcd = xrcd;
  attr.cq = cq;
  ibv_srq* srq = carried(extended != nullptr ? extended->create_srq_ex : nullptr, pd->context, &attr);
  if (srq != nullptr) init->attr = attr.attr;
  return srq;
}

int get_srq_num(ibv_srq* srq, uint32_t* number) {
  verbs_context* extended = verbs_get_ctx_op(srq->context, get_srq_num);
  return extended != nullptr ? extended->get_srq_num(srq, number) : EOPNOTSUPP;
}

ibv_qp* create_xrc_target(ibv_xrcd* xrcd, ibv_qp_init_attr* init) {
  verbs_context* extended = verbs_get_ctx_op(xrcd->context, create_qp_ex);
  ibv_qp_init_attr_ex attr{};
  attr.qp_context = init->qp_context;
  attr.qp_type = IBV_QPT_XRC_RECV;
  attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
  attr.xrcd = xrcd;
  ibv_qp* qp = carried(extended != nullptr ? extended->create_qp_ex : nullptr, xrcd->context, &attr);
  if (qp != nullptr) init->cap = attr.cap;
  return qp;
}

// A device may have to be told to look at its send queue. Linux' rxe looks when something is posted, and not on the
// way from SQD to RTS, nor to see that it has drained. A request that is refused, for its list is too long, is
// enough.
void look_at_send_queue(ibv_qp* qp) {
  static ibv_sge nothing[256];
  ibv_send_wr wr{}, *bad = nullptr;
  wr.opcode = IBV_WR_SEND;
  wr.sg_list = nothing;
  wr.num_sge = static_cast<int>(std::size(nothing));
  (void)qp->context->ops.post_send(qp, &wr, &bad);
}

int query_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) {
  int rc = real.query_qp(qp, attr, mask, init);
  if (rc != 0 || attr->qp_state != IBV_QPS_SQD || attr->sq_draining == 0) return rc;
  look_at_send_queue(qp);
  return real.query_qp(qp, attr, mask, init);
}

bool is_draining(ibv_qp* qp) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  return real.query_qp(qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_SQD && attr.sq_draining != 0;
}

// How long a change to RTS waits for a send queue to drain. An empty one takes what a processor that looks at it
// takes to be let run again.
constexpr std::int64_t kResumeTimeoutNs = 2'000'000'000;

// rxe refuses to leave SQD until it has seen that the queue has drained. Where another processor is looking already,
// ours only asks it to look once more, and returns before that.
int modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  const bool resumes = (mask & IBV_QP_STATE) != 0 && attr->qp_state == IBV_QPS_RTS && qp->state == IBV_QPS_SQD;
  if (!resumes) return real.modify_qp(qp, attr, mask);
  const std::int64_t deadline = monotonic_ns() + kResumeTimeoutNs;
  for (bool drained = false;;) {
    look_at_send_queue(qp);
    const int rc = real.modify_qp(qp, attr, mask);
    if (rc == 0) look_at_send_queue(qp);
    if (rc != EINVAL || drained || monotonic_ns() > deadline) return rc;
    drained = !is_draining(qp);  // it may have been on the way there when the change was refused
    ::sched_yield();
  }
}

int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) { return cq->context->ops.poll_cq(cq, count, wc); }
int req_notify_cq(ibv_cq* cq, int solicited) { return cq->context->ops.req_notify_cq(cq, solicited); }
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  // rxe refuses here, too, but has taken the request, and runs it later.
  if (qp->state < IBV_QPS_RTS) {
    *bad = wr;
    return EINVAL;
  }
  return qp->context->ops.post_send(qp, wr, bad);
}
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) { return qp->context->ops.post_recv(qp, wr, bad); }

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (pd->context->ops.alloc_mw != nullptr) return carried(pd->context->ops.alloc_mw, pd, type);
  g_host->set_errno(EOPNOTSUPP);
  return nullptr;
}
int dealloc_mw(ibv_mw* mw) { return mw->context->ops.dealloc_mw(mw); }

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return srq->context->ops.post_srq_recv(srq, wr, bad);
}

}  // namespace

bool close_verbs_backend(void* handle) {
  if (handle != g_library) return false;
  g_library = nullptr;
  close_namespace_of(handle);
  return true;
}

Status load_verbs_backend(const HostServices* host, BackendOps* ops, void** handle) {
  const char* named = host->config("SHADOWIB_IBVERBS");
  const std::string found = system_library(named != nullptr && *named != '\0' ? named : "libibverbs.so.1");
  const char* file = found.c_str();
  g_host = host;
  forget_device_mappings();
  watch_for_exit();
  g_library = ::dlmopen(LM_ID_NEWLM, file, RTLD_NOW | RTLD_LOCAL);
  if (g_library == nullptr)
    return Status::of(Code::kNotFound, 0,
                      "cannot load the system's verbs library %s: %s; name another with "
                      "SHADOWIB_IBVERBS, or use --backend ib2tcp",
                      file, ::dlerror());
  find(g_errno_location, "__errno_location", "GLIBC_2.2.5");
  if (g_errno_location == nullptr || find_function<void*>("ibv_open_device") == nullptr) {
    ::dlclose(g_library);
    g_library = nullptr;
    return Status::of(Code::kUsage, 0, "%s is not a verbs library: it exports no ibv_open_device", file);
  }
  if (const std::string missing = missing_verbs(g_library); !missing.empty()) {
    close_namespace_of(std::exchange(g_library, nullptr));
    return Status::of(Code::kUsage, ENOSYS,
                      "%s cannot be used: it lacks %s; name a complete verbs library with SHADOWIB_IBVERBS, or use "
                      "--backend ib2tcp",
                      file, missing.c_str());
  }
  *handle = g_library;
  real = {};
  find(real.get_device_list, "ibv_get_device_list");
  find(real.open_device, "ibv_open_device");
  find(real.close_device, "ibv_close_device");
  find(real.alloc_pd, "ibv_alloc_pd");
  find(real.reg_mr_iova2, "ibv_reg_mr_iova2", "IBVERBS_1.8");
  find(real.create_comp_channel, "ibv_create_comp_channel", "IBVERBS_1.0");
  find(real.destroy_comp_channel, "ibv_destroy_comp_channel", "IBVERBS_1.0");
  find(real.create_cq, "ibv_create_cq");
  find(real.get_cq_event, "ibv_get_cq_event");
  find(real.ack_cq_events, "ibv_ack_cq_events");
  find(real.create_qp, "ibv_create_qp");
  find(real.modify_qp, "ibv_modify_qp");
  find(real.query_qp, "ibv_query_qp");
  find(real.get_async_event, "ibv_get_async_event");
  find(real.create_srq, "ibv_create_srq");
  find(real.create_ah, "ibv_create_ah");
  find(real.rereg_mr, "ibv_rereg_mr");
  find(real.query_port, "ibv_query_port");
  find(real.query_gid_type, "ibv_query_gid_type", "IBVERBS_PRIVATE_34");
  find(real.query_gid_table, "_ibv_query_gid_table", "IBVERBS_1.11");
  find(real.attach_mcast, "ibv_attach_mcast");
  find(real.detach_mcast, "ibv_detach_mcast");
  g_ip_groups.forget();
  *ops = {};
  ops->abi_version = kBackendAbiVersion;
  ops->name = "verbs";
  ops->get_device_list = get_device_list;
  find(ops->free_device_list, "ibv_free_device_list");
  find(ops->get_device_name, "ibv_get_device_name");
  find(ops->get_device_guid, "ibv_get_device_guid");
  find(ops->get_device_index, "ibv_get_device_index", "IBVERBS_1.9");
  ops->open_device = open_device;
  ops->close_device = close_device;
  find(ops->query_device, "ibv_query_device");
  ops->query_port = query_port;
  find(ops->query_gid, "ibv_query_gid");
  ops->query_gid_type = query_gid_type;
  ops->query_gid_table = query_gid_table;
  find(ops->query_pkey, "ibv_query_pkey");
  ops->get_async_event = get_async_event;
  find(ops->ack_async_event, "ibv_ack_async_event");
  ops->alloc_pd = alloc_pd;
  find(ops->dealloc_pd, "ibv_dealloc_pd");
  ops->reg_mr = reg_mr;
  find(ops->dereg_mr, "ibv_dereg_mr");
  ops->rereg_mr = rereg_mr;
  ops->alloc_mw = alloc_mw;
  ops->dealloc_mw = dealloc_mw;
  ops->create_comp_channel = create_comp_channel;
  ops->destroy_comp_channel = destroy_comp_channel;
  ops->create_cq = create_cq;
  find(ops->destroy_cq, "ibv_destroy_cq");
  find(ops->resize_cq, "ibv_resize_cq");
  ops->poll_cq = poll_cq;
  ops->req_notify_cq = req_notify_cq;
  ops->get_cq_event = get_cq_event;
  ops->ack_cq_events = real.ack_cq_events;
  ops->create_qp = create_qp;
  ops->modify_qp = modify_qp;
  ops->query_qp = query_qp;
  find(ops->destroy_qp, "ibv_destroy_qp");
  ops->post_send = post_send;
  ops->post_recv = post_recv;
  ops->create_ah = create_ah;
  find(ops->destroy_ah, "ibv_destroy_ah");
  if (real.attach_mcast != nullptr) ops->attach_mcast = attach_mcast;
  if (real.detach_mcast != nullptr) ops->detach_mcast = detach_mcast;
  ops->create_srq = create_srq;
  find(ops->modify_srq, "ibv_modify_srq");
  find(ops->query_srq, "ibv_query_srq");
  find(ops->destroy_srq, "ibv_destroy_srq");
  ops->post_srq_recv = post_srq_recv;
  ops->open_xrcd = open_xrcd;
  ops->close_xrcd = close_xrcd;
  ops->create_xrc_srq = create_xrc_srq;
  ops->get_srq_num = get_srq_num;
  ops->create_xrc_target = create_xrc_target;
  ops->before_image = before_image;
  ops->needs_signals = true;
  ops->describe = describe;
  return {};
}

}  // namespace shadowib
