// Memory windows: slots of ibv_context_ops. Manual pages: ibv_alloc_mw(3), ibv_bind_mw(3).
#pragma once

#include <infiniband/verbs.h>

namespace shadowib {

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type);
// EBUSY while a posted request may still bind or invalidate it.
int dealloc_mw(ibv_mw* mw);
// For windows of type 1; the inline function of verbs.h has checked that.
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind);

}  // namespace shadowib
