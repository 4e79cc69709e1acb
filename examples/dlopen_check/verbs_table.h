/* The verbs, found by name and version at run time as NCCL finds them: nothing is linked. */
#ifndef VERBS_TABLE_H
#define VERBS_TABLE_H

#include <infiniband/verbs.h>

#define VERBS(X)                     \
  X(get_device_list, "IBVERBS_1.1")  \
  X(free_device_list, "IBVERBS_1.1") \
  X(get_device_name, "IBVERBS_1.1")  \
  X(open_device, "IBVERBS_1.1")      \
  X(close_device, "IBVERBS_1.1")     \
  X(query_device, "IBVERBS_1.1")     \
  X(query_gid, "IBVERBS_1.1")        \
  X(query_qp, "IBVERBS_1.1")         \
  X(alloc_pd, "IBVERBS_1.1")         \
  X(dealloc_pd, "IBVERBS_1.1")       \
  X(reg_mr_iova2, "IBVERBS_1.8")     \
  X(reg_dmabuf_mr, "IBVERBS_1.12")   \
  X(dereg_mr, "IBVERBS_1.1")         \
  X(create_cq, "IBVERBS_1.1")        \
  X(destroy_cq, "IBVERBS_1.1")       \
  X(create_qp, "IBVERBS_1.1")        \
  X(modify_qp, "IBVERBS_1.1")        \
  X(destroy_qp, "IBVERBS_1.1")       \
  X(fork_init, "IBVERBS_1.1")        \
  X(event_type_str, "IBVERBS_1.1")   \
  X(query_ece, "IBVERBS_1.10")       \
  X(set_ece, "IBVERBS_1.10")

struct verbs_table {
#define X(name, version) __typeof__(&ibv_##name) name;
  VERBS(X)
#undef X
  int (*query_port)(struct ibv_context* context, uint8_t port, struct ibv_port_attr* attr);
  struct ibv_mr* (*reg_mr)(struct ibv_pd* pd, void* address, size_t bytes, int access);
};

/* Fills the table from libibverbs.so, else libibverbs.so.1; returns the path of the file that answers for
 * open_device. Exits with a message if a library or verb is missing. */
const char* load_verbs(struct verbs_table* verbs);

#endif
