// Objects: as the backend makes them. What MPI libraries ask of verbs is there; the rest refuses, each with a line on
// stderr, here and by the census.
#include <errno.h>

#include "perftest/bare/backend.h"
#include "shadowib/abi/handlers.h"
#include "shadowib/base/log.h"

using namespace shadowib;
using bare::ops;

namespace {

template <typename T>
T refuse(const char* name, T answer) {
  log_line(LogLevel::kWarn, "%s is not there among the bare verbs: answered EOPNOTSUPP", name);
  errno = EOPNOTSUPP;
  return answer;
}

}  // namespace

extern "C" {

ibv_pd* shadowib_ibv_alloc_pd(ibv_context* context) { return ops().alloc_pd(context); }
int shadowib_ibv_dealloc_pd(ibv_pd* pd) { return ops().dealloc_pd(pd); }

ibv_mr* shadowib_ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova, unsigned access) {
  if ((access & IBV_ACCESS_ON_DEMAND) != 0)
    return errno = EOPNOTSUPP, nullptr;  // asked for to see whether it is there
  return ops().reg_mr(pd, address, length, iova,
                      static_cast<int>(access & ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE)));
}
ibv_mr* shadowib_ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova, int access) {
  return shadowib_ibv_reg_mr_iova2(pd, address, length, iova, static_cast<unsigned>(access));
}
ibv_mr* shadowib_ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return shadowib_ibv_reg_mr_iova2(pd, address, length, reinterpret_cast<uint64_t>(address),
                                   static_cast<unsigned>(access));
}
int shadowib_ibv_dereg_mr(ibv_mr* mr) { return ops().dereg_mr(mr); }
int shadowib_ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, size_t, int) {
  return refuse<int>("ibv_rereg_mr", IBV_REREG_MR_ERR_CMD);
}

ibv_cq* shadowib_ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                               int comp_vector) {
  return ops().create_cq(context, cqe, cq_context, channel, comp_vector);
}
int shadowib_ibv_resize_cq(ibv_cq* cq, int cqe) { return ops().resize_cq(cq, cqe); }
int shadowib_ibv_destroy_cq(ibv_cq* cq) { return ops().destroy_cq(cq); }

ibv_qp* shadowib_ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) { return ops().create_qp(pd, init); }
int shadowib_ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) { return ops().modify_qp(qp, attr, mask); }
int shadowib_ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) {
  return ops().query_qp(qp, attr, mask, init);
}
int shadowib_ibv_destroy_qp(ibv_qp* qp) { return ops().destroy_qp(qp); }
int shadowib_ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) { return 0; }
ibv_qp_ex* shadowib_ibv_qp_to_qp_ex(ibv_qp*) { return refuse<ibv_qp_ex*>("ibv_qp_to_qp_ex", nullptr); }

ibv_srq* shadowib_ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) { return ops().create_srq(pd, init); }
int shadowib_ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) { return ops().modify_srq(srq, attr, mask); }
int shadowib_ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) { return ops().query_srq(srq, attr); }
int shadowib_ibv_destroy_srq(ibv_srq* srq) { return ops().destroy_srq(srq); }

ibv_ah* shadowib_ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) { return ops().create_ah(pd, attr); }
int shadowib_ibv_destroy_ah(ibv_ah* ah) { return ops().destroy_ah(ah); }
int shadowib_ibv_init_ah_from_wc(ibv_context*, uint8_t, ibv_wc*, ibv_grh*, ibv_ah_attr*) {
  return refuse("ibv_init_ah_from_wc", -1);
}
ibv_ah* shadowib_ibv_create_ah_from_wc(ibv_pd*, ibv_wc*, ibv_grh*, uint8_t) {
  return refuse<ibv_ah*>("ibv_create_ah_from_wc", nullptr);
}
int shadowib_ibv_attach_mcast(ibv_qp*, const ibv_gid*, uint16_t) { return refuse("ibv_attach_mcast", EOPNOTSUPP); }
int shadowib_ibv_detach_mcast(ibv_qp*, const ibv_gid*, uint16_t) { return refuse("ibv_detach_mcast", EOPNOTSUPP); }

// The backend reaches memory by the processor: forks need nothing.
int shadowib_ibv_fork_init() { return 0; }
int shadowib_ibv_dontfork_range(void*, size_t) { return 0; }
int shadowib_ibv_dofork_range(void*, size_t) { return 0; }
ibv_fork_status shadowib_ibv_is_fork_initialized() { return IBV_FORK_ENABLED; }

}  // extern "C"
