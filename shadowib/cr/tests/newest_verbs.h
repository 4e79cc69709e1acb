/* Calls of a program that was compiled with rdma-core's newest headers (2026), declared here since Debian 12 has
 * older ones. struct verbs_context has six slots more at its front, struct ibv_port_attr four bytes more at its end,
 * and struct ibv_qp_ex one function more. Included before each source of restart_scenarios_newest (-include). */
#pragma once

#include <errno.h>
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct newest_verbs_context {
  void (*newer[6])(void);
  struct verbs_context older;
};
_Static_assert(sizeof(struct newest_verbs_context) == 696, "as in rdma-core's head");

struct newest_port_attr {
  struct ibv_port_attr older;
  uint32_t active_speed_ex;
};
_Static_assert(sizeof(struct newest_port_attr) == 56, "as in rdma-core's head");

/* As verbs_get_ctx_op of the newest verbs.h, of a slot at that offset. */
static inline struct verbs_context* newest_context(struct ibv_context* context, size_t offset) {
  if (context->abi_compat != __VERBS_ABI_IS_EXTENDED) return NULL;
  struct newest_verbs_context* newest =
      (struct newest_verbs_context*)((char*)context - offsetof(struct newest_verbs_context, older.context));
  if (newest->older.sz < sizeof(*newest) - offset) return NULL;
  void* slot;
  memcpy(&slot, (char*)newest + offset, sizeof(slot));
  return slot != NULL ? &newest->older : NULL;
}
#define NEWEST(context, op) newest_context(context, offsetof(struct newest_verbs_context, older.op))

/* There is a slot for everything a newer program may look for, which it then may call. */
static inline void check_newer_slots(struct ibv_context* context) {
  for (size_t i = 0; i < 6; ++i)
    if (newest_context(context, i * sizeof(void*)) == NULL) abort();
}

static inline int newest_query_port(struct ibv_context* context, uint8_t port, struct ibv_port_attr* attr) {
  struct {
    struct newest_port_attr attr;
    uint32_t behind;
  } out = {.behind = 0x5a5a5a5a};
  memset(&out.attr, 0xff, sizeof(out.attr));
  check_newer_slots(context);
  int rc = NEWEST(context, query_port)->query_port(context, port, &out.attr.older, sizeof(out.attr));
  if (out.behind != 0x5a5a5a5a || (rc == 0 && out.attr.active_speed_ex != 0)) abort();
  *attr = out.attr.older;
  return rc;
}

static inline struct ibv_cq_ex* newest_create_cq_ex(struct ibv_context* context, struct ibv_cq_init_attr_ex* attr) {
  return NEWEST(context, create_cq_ex)->create_cq_ex(context, attr);
}

static inline struct ibv_qp* newest_create_qp_ex(struct ibv_context* context, struct ibv_qp_init_attr_ex* attr) {
  if (attr->comp_mask == IBV_QP_INIT_ATTR_PD) return ibv_create_qp(attr->pd, (struct ibv_qp_init_attr*)attr);
  return NEWEST(context, create_qp_ex)->create_qp_ex(context, attr);
}

static inline struct ibv_srq* newest_create_srq_ex(struct ibv_context* context, struct ibv_srq_init_attr_ex* attr) {
  return NEWEST(context, create_srq_ex)->create_srq_ex(context, attr);
}

static inline struct ibv_xrcd* newest_open_xrcd(struct ibv_context* context, struct ibv_xrcd_init_attr* attr) {
  return NEWEST(context, open_xrcd)->open_xrcd(context, attr);
}

static inline int newest_close_xrcd(struct ibv_xrcd* xrcd) {
  return NEWEST(xrcd->context, close_xrcd)->close_xrcd(xrcd);
}

static inline int newest_get_srq_num(struct ibv_srq* srq, uint32_t* number) {
  return NEWEST(srq->context, get_srq_num)->get_srq_num(srq, number);
}

struct newest_qp_ex {
  struct ibv_qp_ex older;
  void (*newer)(struct ibv_qp_ex* qp);
};
_Static_assert(sizeof(struct newest_qp_ex) == 360, "as in rdma-core's head");

/* Functions that a queue pair was not created for are missing. */
static inline struct ibv_qp_ex* newest_qp_to_qp_ex(struct ibv_qp* qp) {
  struct ibv_qp_ex* extended = ibv_qp_to_qp_ex(qp);
  if (extended != NULL && ((struct newest_qp_ex*)extended)->newer != NULL) abort();
  return extended;
}

#undef ibv_query_port
#define ibv_query_port newest_query_port
#define ibv_create_cq_ex newest_create_cq_ex
#define ibv_create_qp_ex newest_create_qp_ex
#define ibv_create_srq_ex newest_create_srq_ex
#define ibv_qp_to_qp_ex newest_qp_to_qp_ex
#define ibv_open_xrcd newest_open_xrcd
#define ibv_close_xrcd newest_close_xrcd
#define ibv_get_srq_num newest_get_srq_num
