// Refusing functions for every slot of the verbs structs, so that no inline of verbs.h finds a null or foreign
// pointer.
//
// The owner of an object calls its fill_ function once, before the program sees the object, and then overrides the
// slots that are shadowed. All are pure stores; any thread.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>

namespace shadowib {

// verbs_context grows at its front: 648 bytes in rdma-core 44, 696 in 2026. Programs of either age must find their
// slots, so contexts are made in the newest layout and say so in sz.
// Source: rdma-core libibverbs/verbs.h, verbs_get_ctx_op.
inline constexpr std::size_t kNewestContextBytes = sizeof(verbs_context) > 696 ? sizeof(verbs_context) : 696;
inline constexpr std::size_t kNewerSlots = (kNewestContextBytes - sizeof(verbs_context)) / sizeof(void*);

struct NewestVerbsContext {
  void (*newer[kNewerSlots])();
  verbs_context context;
};
static_assert(sizeof(NewestVerbsContext) == kNewestContextBytes);
static_assert(offsetof(NewestVerbsContext, context) + sizeof(verbs_context) == kNewestContextBytes);

// Every slot of the context and of context.ops refuses; sz and abi_compat are set; `priv` and the fields of
// ibv_context other than ops stay as they are.
void fill_refusing_slots(NewestVerbsContext* context);

// The wr_* of an extended queue pair, the functions of an extended completion queue, a work queue, device memory.
void fill_refusing_slots(ibv_qp_ex* qp);
void fill_refusing_slots(ibv_cq_ex* cq);
void fill_refusing_slots(ibv_wq* wq);
void fill_refusing_slots(ibv_dm* dm);

}  // namespace shadowib
