#include "shadowib/entry/extended.h"

#include <errno.h>
#include <string.h>

#include "hooks/threads/stop.h"
#include "shadowib/abi/handlers.h"
#include "shadowib/datapath/extended_poll.h"
#include "shadowib/datapath/send_builder.h"
#include "shadowib/entry/errors.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

ibv_qp_init_attr plain_part(const ibv_qp_init_attr_ex& attr) {
  ibv_qp_init_attr plain{};
  static_assert(offsetof(ibv_qp_init_attr_ex, comp_mask) <= sizeof(plain));
  ::memcpy(&plain, &attr, offsetof(ibv_qp_init_attr_ex, comp_mask));
  return plain;
}

}  // namespace

// What is asked for and not offered answers EOPNOTSUPP: that is what sends clients back to ibv_create_cq (UCX).
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
  unsigned flags = (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 ? attr->flags : 0;
  if ((attr->comp_mask & ~static_cast<unsigned>(IBV_CQ_INIT_ATTR_MASK_FLAGS)) != 0 ||
      (flags & ~static_cast<unsigned>(IBV_CREATE_CQ_ATTR_SINGLE_THREADED)) != 0 ||
      (attr->wc_flags & ~kExtendedFields) != 0)
    return null_with(EOPNOTSUPP);
  if (attr->cqe > INT32_MAX || attr->comp_vector > INT32_MAX) return null_with(EINVAL);
  ibv_cq* cq = shadowib_ibv_create_cq(context, static_cast<int>(attr->cqe), attr->cq_context, attr->channel,
                                      static_cast<int>(attr->comp_vector));
  if (cq == nullptr) return nullptr;
  Inside inside;
  offer_extended_poll(*ShadowCq::of(cq), (flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) != 0);
  return &ShadowCq::of(cq)->extended;
}

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) {
  if (attr->qp_type == IBV_QPT_XRC_RECV) {
    // A target has no use for a protection domain; it is only to be seen on it, and librdmacm looks.
    constexpr unsigned kTaken = IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_PD;
    if (g_backend.create_xrc_target == nullptr || (attr->comp_mask & ~kTaken) != 0) return null_with(EOPNOTSUPP);
    if ((attr->comp_mask & IBV_QP_INIT_ATTR_XRCD) == 0 || attr->xrcd->context != context) return null_with(EINVAL);
    ibv_qp_init_attr plain = plain_part(*attr);
    ibv_pd* pd = (attr->comp_mask & IBV_QP_INIT_ATTR_PD) != 0 ? attr->pd : nullptr;
    return create_queue_pair(context, pd, attr->xrcd, &plain);
  }
  constexpr unsigned kOffered = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  const bool builders = (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) return null_with(EINVAL);
  if ((attr->comp_mask & ~kOffered) != 0 ||
      ((attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && attr->create_flags != 0) ||
      (builders && (attr->send_ops_flags & ~SendBuilder::operations(attr->qp_type)) != 0))
    return null_with(EOPNOTSUPP);
  ibv_qp_init_attr plain = plain_part(*attr);
  ibv_qp* program = shadowib_ibv_create_qp(attr->pd, &plain);
  if (program == nullptr) return nullptr;
  attr->cap = plain.cap;
  if (!builders) return program;
  Inside inside;
  ShadowQp& qp = *ShadowQp::of(program);
  qp.builder = std::make_shared<SendBuilder>(qp.real_cap);
  offer_builders(qp, attr->send_ops_flags);
  return program;
}

}  // namespace shadowib
