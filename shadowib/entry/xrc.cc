// Extended reliable connections: domains, and further handles of a target.
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "hooks/threads/stop.h"
#include "shadowib/datapath/event_delivery.h"
#include "shadowib/entry/errors.h"
#include "shadowib/entry/extended.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

// False with errno.
bool identify(int fd, FileIdentity* file) {
  struct statx found {};
  if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_SYNC_AS_STAT, STATX_INO | STATX_BTIME, &found) != 0) return false;
  file->device = std::uint64_t{found.stx_dev_major} << 32 | found.stx_dev_minor;
  file->inode = found.stx_ino;
  if ((found.stx_mask & STATX_BTIME) != 0)
    file->born_ns = static_cast<std::uint64_t>(found.stx_btime.tv_sec) * 1000000000u + found.stx_btime.tv_nsec;
  return true;
}

}  // namespace

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* attr) {
  constexpr unsigned kNeeded = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  if (ShadowContext::is_foreign(context)) return null_with(EPERM);
  Inside inside;
  if (g_backend.open_xrcd == nullptr || (attr->comp_mask & ~kNeeded) != 0) return null_with(EOPNOTSUPP);
  if (attr->comp_mask != kNeeded) return null_with(EINVAL);
  auto* xrcd = new ShadowXrcd{};
  xrcd->xrcd.context = context;
  xrcd->has_file = attr->fd != -1;
  if (xrcd->has_file && !identify(attr->fd, &xrcd->file)) {
    const int saved = errno;
    delete xrcd;
    return null_with(saved);
  }
  Registry& r = registry();
  SpinGuard guard(r.lock);
  auto same = std::find_if(r.xrcds.begin(), r.xrcds.end(), [&](const ShadowXrcd& x) { return x.is_one_with(*xrcd); });
  xrcd->real = g_backend.open_xrcd(ShadowContext::of(context)->real, attr->fd, attr->oflags,
                                   same != r.xrcds.end() ? same->real : nullptr);
  if (xrcd->real == nullptr) {
    const int saved = errno;
    delete xrcd;
    return null_with(saved);
  }
  r.xrcds.push_back(*xrcd);
  return &xrcd->xrcd;
}

int close_xrcd(ibv_xrcd* program) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  Inside inside;
  ShadowXrcd* xrcd = ShadowXrcd::of(program);
  Registry& r = registry();
  SpinGuard guard(r.lock);
  if (xrcd->users != 0) return EBUSY;
  if (int rc = g_backend.close_xrcd(xrcd->real); rc != 0) return rc;
  r.xrcds.erase(r.xrcds.iterator_to(*xrcd));
  delete xrcd;
  return 0;
}

// Of targets of this process only: ib2tcp has no others in a domain, and of others a restart could not know. Async
// events come by the context that the target was made in, so that is where its handles are.
ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr) {
  constexpr unsigned kNeeded = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  if (ShadowContext::is_foreign(context)) return null_with(EPERM);
  Inside inside;
  if ((attr->comp_mask & ~(kNeeded | IBV_QP_OPEN_ATTR_CONTEXT)) != 0) return null_with(EOPNOTSUPP);
  if ((attr->comp_mask & kNeeded) != kNeeded || attr->qp_type != IBV_QPT_XRC_RECV || attr->xrcd->context != context)
    return null_with(EINVAL);
  Registry& r = registry();
  SpinGuard guard(r.lock);
  const ShadowXrcd& domain = *ShadowXrcd::of(attr->xrcd);
  auto target = std::find_if(r.qps.begin(), r.qps.end(), [&](const ShadowQp& qp) {
    return qp.is_target() && qp.qp_num.value == attr->qp_num && qp.xrcd->is_one_with(domain);
  });
  if (target == r.qps.end()) return null_with(EINVAL);
  if (target->context != ShadowContext::of(context)) return null_with(EOPNOTSUPP);
  auto* handle = new ShadowQp{};
  // It takes no requests, but posting to it must find a queue.
  if (!handle->send.create(1, 1, 0, false) || !handle->receive.create(1, 1, 0, true)) {
    delete handle;
    return null_with(ENOMEM);
  }
  ibv_qp& base = handle->qp.qp_base;
  base = target->qp.qp_base;
  base.qp_context = (attr->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT) != 0 ? attr->qp_context : nullptr;
  base.events_completed = 0;
  ::pthread_mutex_init(&base.mutex, nullptr);
  ::pthread_cond_init(&base.cond, nullptr);
  handle->target = &*target;
  handle->real = target->real;
  handle->real_post_send = target->real_post_send;
  handle->real_post_recv = target->real_post_recv;
  handle->context = target->context;
  handle->qp_num = target->qp_num;
  handle->xrcd = ShadowXrcd::of(attr->xrcd);
  ++handle->xrcd->users;
  r.opened.push_back(*handle);
  SpinGuard events(target->context->async_events.lock);
  target->handles.push_back(handle);
  return &base;
}

void close_handle(ShadowQp& handle) {
  ShadowQp& qp = handle.itself();
  Registry& r = registry();
  if (!qp.handles.empty()) drain_async_events(*qp.context);  // they are told to it while it is one of them
  {
    SpinGuard events(qp.context->async_events.lock);
    std::erase(qp.handles, &handle);
    if (&handle == &qp) qp.closed = true;
  }
  if (&handle != &qp) {
    r.opened.erase(r.opened.iterator_to(handle));
    --handle.xrcd->users;
  }
  withdraw_async_events(*qp.context, &handle.qp.qp_base);
}

}  // namespace shadowib
