/* Plain requests and completions by extended verbs: ibv_wr_* and field-wise polling, for programs that do the same by
 * either interface. */
#ifndef EXTENDED_VERBS_H
#define EXTENDED_VERBS_H

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Posts a chain as one batch. Returns 0 or an errno value; then nothing was posted. The queue pair has been created
 * with the flags of the operations in it. One thread at a time, as ibv_wr_start(3) has it. */
int extended_post(struct ibv_qp_ex* qp, const struct ibv_send_wr* wr);

/* Takes up to `capacity` > 0 completions; of optional fields those that `wc_flags` names (as of ibv_create_cq_ex(3)).
 * Returns how many, or a negative errno value. */
int extended_poll(struct ibv_cq_ex* cq, uint64_t wc_flags, int capacity, struct ibv_wc* wc);

#ifdef __cplusplus
}
#endif
#endif
