// A libibverbs over the null backend: a device that completes every request at once and moves no data.
//
// It measures what the shim costs over the backend `verbs` (perftest/run --modes device). Preloaded alone it is the
// native side; named by SHADOWIB_IBVERBS it is the system's library below the shim. It has the functions that the
// backend `verbs` and shim_overhead call, and no extended verbs.
// With NULL_VERBS_COMPLETIONS=FILE whoever asks for a port finds there how many completions the device has made.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "perftest/null_objects.h"
#include "perftest/plain_host.h"
#include "shadowib/abi/backend.h"

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova2

namespace {

using shadowib::BackendOps;
using shadowib::HostServices;

const BackendOps& null() {
  static HostServices host = shadowib::perftest::plain_host();
  static BackendOps ops = [] {
    BackendOps made{};
    (void)::shadowib_backend_entry(&host, &made);
    return made;
  }();
  return ops;
}

// Windows to bind to nothing, which is all that the shim asks of them here.
ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  static std::uint32_t key = 0x100;
  return new ibv_mw{pd->context, pd, key += 0x100, 0, type};
}
int dealloc_mw(ibv_mw* mw) {
  delete mw;
  return 0;
}

void tell_completions() {
  const char* path = std::getenv("NULL_VERBS_COMPLETIONS");
  std::FILE* file = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (file == nullptr) return;
  std::fprintf(file, "%u\n", shadowib::null_backend::completions_made());
  std::fclose(file);
}

}  // namespace

// Exported by null_verbs.map. verbs.h declares all but two.
#pragma GCC visibility push(default)
extern "C" {

ibv_device** ibv_get_device_list(int* count) { return null().get_device_list(count); }
void ibv_free_device_list(ibv_device** list) { null().free_device_list(list); }
const char* ibv_get_device_name(ibv_device* device) { return null().get_device_name(device); }
__be64 ibv_get_device_guid(ibv_device* device) { return null().get_device_guid(device); }
int ibv_get_device_index(ibv_device* device) { return null().get_device_index(device); }

ibv_context* ibv_open_device(ibv_device* device) {
  ibv_context* context = null().open_device(device);
  if (context == nullptr) return nullptr;
  context->cmd_fd = ::eventfd(0, EFD_CLOEXEC);  // as a device's: valid, and its owner may move it
  context->ops.post_send = null().post_send;
  context->ops.post_recv = null().post_recv;
  context->ops.post_srq_recv = null().post_srq_recv;
  context->ops.poll_cq = null().poll_cq;
  context->ops.req_notify_cq = null().req_notify_cq;
  context->ops.alloc_mw = alloc_mw;
  context->ops.dealloc_mw = dealloc_mw;
  return context;
}
int ibv_close_device(ibv_context* context) {
  ::close(context->cmd_fd);
  return null().close_device(context);
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  const int rc = null().query_device(context, attr);
  attr->device_cap_flags |= IBV_DEVICE_MEM_WINDOW;
  return rc;
}
int ibv_query_port(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attr) {
  tell_completions();
  constexpr size_t kOldest = 48;  // bytes that the exported function writes
  return null().query_port(context, port, reinterpret_cast<ibv_port_attr*>(attr), kOldest);
}
int ibv_query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid) {
  return null().query_gid(context, port, index, gid);
}
int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, int* type);
int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, int* type) {
  return null().query_gid_type(context, port, index, type);
}
int ibv_query_pkey(ibv_context* context, std::uint8_t port, int index, __be16* pkey) {
  return null().query_pkey(context, port, index, pkey);
}
int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  return null().get_async_event(context, event);
}
void ibv_ack_async_event(ibv_async_event* event) { null().ack_async_event(event); }

ibv_pd* ibv_alloc_pd(ibv_context* context) { return null().alloc_pd(context); }
int ibv_dealloc_pd(ibv_pd* pd) { return null().dealloc_pd(pd); }
ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t bytes, int access) {
  return null().reg_mr(pd, address, bytes, reinterpret_cast<std::uint64_t>(address), access);
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t bytes, std::uint64_t iova, unsigned access) {
  return null().reg_mr(pd, address, bytes, iova, static_cast<int>(access));
}
int ibv_dereg_mr(ibv_mr* mr) { return null().dereg_mr(mr); }
int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, size_t, int) {
  errno = EOPNOTSUPP;
  return EOPNOTSUPP;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) { return null().create_comp_channel(context); }
int ibv_destroy_comp_channel(ibv_comp_channel* channel) { return null().destroy_comp_channel(channel); }
ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel, int vector) {
  return null().create_cq(context, cqe, cq_context, channel, vector);
}
int ibv_destroy_cq(ibv_cq* cq) { return null().destroy_cq(cq); }
int ibv_resize_cq(ibv_cq* cq, int cqe) { return null().resize_cq(cq, cqe); }
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  const int rc = null().get_cq_event(channel, cq);
  if (rc == 0) *cq_context = (*cq)->cq_context;
  return rc;
}
void ibv_ack_cq_events(ibv_cq* cq, unsigned count) { null().ack_cq_events(cq, count); }

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) { return null().create_qp(pd, attr); }
int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) { return null().modify_qp(qp, attr, mask); }
int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) {
  return null().query_qp(qp, attr, mask, init);
}
int ibv_destroy_qp(ibv_qp* qp) { return null().destroy_qp(qp); }
ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp*) { return nullptr; }

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) { return null().create_srq(pd, init); }
int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) { return null().modify_srq(srq, attr, mask); }
int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) { return null().query_srq(srq, attr); }
int ibv_destroy_srq(ibv_srq* srq) { return null().destroy_srq(srq); }
ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) { return null().create_ah(pd, attr); }
int ibv_destroy_ah(ibv_ah* ah) { return null().destroy_ah(ah); }

}  // extern "C"
#pragma GCC visibility pop
