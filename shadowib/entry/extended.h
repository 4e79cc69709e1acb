// Extended verbs: slots of verbs_context. Manual pages: ibv_create_cq_ex(3), ibv_create_qp_ex(3).
#pragma once

#include <infiniband/verbs.h>

namespace shadowib {

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr);
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr);

}  // namespace shadowib
