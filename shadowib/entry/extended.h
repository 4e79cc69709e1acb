// Extended verbs: slots of verbs_context. Manual pages: ibv_create_cq_ex(3), ibv_create_qp_ex(3),
// ibv_create_srq_ex(3), ibv_open_xrcd(3), ibv_get_srq_num(3), ibv_open_qp(3).
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace shadowib {

struct ShadowQp;
struct ShadowXrcd;
struct ShadowCq;

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr);
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr);
ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr);
ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* attr);
int close_xrcd(ibv_xrcd* xrcd);
int get_srq_num(ibv_srq* srq, std::uint32_t* number);
ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr);

// Shared by the slots and the plain verbs. Needs a protection domain or, for an XRC target, an XRC domain
// (queue_pair.cc).
ibv_qp* create_queue_pair(ibv_context* context, ibv_pd* pd, ibv_xrcd* xrcd, ibv_qp_init_attr* init);
// xrcd and cq: of XRC, or both nullptr (shared_receive_queue.cc).
ibv_srq* create_shared_receive_queue(ibv_pd* pd, ShadowXrcd* xrcd, ShadowCq* cq, ibv_srq_init_attr* init);
// One of an XRC target's handles goes, or what any queue pair is to the program. Caller holds the registry's lock.
void close_handle(ShadowQp& handle);

}  // namespace shadowib
