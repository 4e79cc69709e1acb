/* One end of a connection of two small programs, whose memory the other one may write. */
#ifndef CI_PEER_H
#define CI_PEER_H

#include <infiniband/verbs.h>
#include <sched.h>

#include "member.h"

struct peer_address {
  uint64_t memory;
  uint32_t key, queue_pair;
  uint16_t lid;
  union ibv_gid gid;
};

struct peer {
  uint64_t begin;
  struct ibv_mr* region;
  struct ibv_cq* queue;
  struct ibv_qp* queue_pair;
  struct peer_address theirs;
};

enum { kRoceGid = 1 }; /* of RoCE v2, on Soft-RoCE */

/* Tells its own address by a file, and reads the other one's. */
static inline void exchange_addresses(struct peer* peer, const struct peer_address* own, const char* directory,
                                      const char* own_name, const char* their_name) {
  char path[2][512];
  snprintf(path[0], sizeof(path[0]), "%s/%s.new", directory, own_name);
  snprintf(path[1], sizeof(path[1]), "%s/%s.address", directory, own_name);
  FILE* file = fopen(path[0], "w");
  if (file == NULL || fwrite(own, sizeof(*own), 1, file) != 1 || fclose(file) != 0 || rename(path[0], path[1]) != 0)
    leave(1, "%s: %s", path[1], strerror(errno));
  snprintf(path[0], sizeof(path[0]), "%s/%s.address", directory, their_name);
  live_until(path[0]);
  file = fopen(path[0], "r");
  if (file == NULL || fread(&peer->theirs, sizeof(peer->theirs), 1, file) != 1)
    leave(1, "%s: cannot be read", path[0]);
  fclose(file);
}

static inline void connect_to(struct peer* peer, int of_ethernet) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12};
  attr.max_dest_rd_atomic = 1;
  attr.dest_qp_num = peer->theirs.queue_pair;
  attr.ah_attr.dlid = peer->theirs.lid;
  attr.ah_attr.port_num = 1;
  if (of_ethernet) {
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = peer->theirs.gid;
    attr.ah_attr.grh.sgid_index = kRoceGid;
    attr.ah_attr.grh.hop_limit = 1;
  }
  if (ibv_modify_qp(peer->queue_pair, &attr,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0)
    leave(1, "cannot go to RTR");
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
  attr.max_rd_atomic = 1;
  if (ibv_modify_qp(peer->queue_pair, &attr,
                    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                        IBV_QP_MAX_QP_RD_ATOMIC) != 0)
    leave(1, "cannot go to RTS");
}

/* Registers the memory with the first device and connects with the other end, by files in a directory. */
static inline void meet_peer(struct peer* peer, void* memory, uint64_t bytes, const char* directory,
                             const char* own_name, const char* their_name) {
  struct ibv_device** devices = ibv_get_device_list(NULL);
  struct ibv_context* context = devices != NULL && devices[0] != NULL ? ibv_open_device(devices[0]) : NULL;
  struct ibv_pd* pd = context != NULL ? ibv_alloc_pd(context) : NULL;
  if (pd == NULL) leave(1, "no device");
  peer->begin = (uint64_t)memory;
  peer->region = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  peer->queue = ibv_create_cq(context, 1, NULL, NULL, 0);
  if (peer->region == NULL || peer->queue == NULL) leave(1, "cannot register the memory");
  struct ibv_qp_init_attr init = {.send_cq = peer->queue, .recv_cq = peer->queue, .qp_type = IBV_QPT_RC};
  init.cap = (struct ibv_qp_cap){.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1};
  peer->queue_pair = ibv_create_qp(pd, &init);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
  if (peer->queue_pair == NULL ||
      ibv_modify_qp(peer->queue_pair, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) !=
          0)
    leave(1, "no queue pair");
  struct ibv_port_attr port;
  if (ibv_query_port(context, 1, &port) != 0) leave(1, "cannot query the port");
  const int of_ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  struct peer_address own = {peer->begin, peer->region->rkey, peer->queue_pair->qp_num, port.lid, {{0}}};
  if (of_ethernet && ibv_query_gid(context, 1, kRoceGid, &own.gid) != 0) leave(1, "no address");
  exchange_addresses(peer, &own, directory, own_name, their_name);
  connect_to(peer, of_ethernet);
}

/* Copies its own memory at that offset to the same place of the other one's. Returns when it is there. */
static inline void write_to_peer(struct peer* peer, uint64_t offset, uint32_t bytes) {
  struct ibv_sge piece = {peer->begin + offset, bytes, peer->region->lkey};
  struct ibv_send_wr request = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = peer->theirs.memory + offset;
  request.wr.rdma.rkey = peer->theirs.key;
  if (ibv_post_send(peer->queue_pair, &request, &bad) != 0) leave(1, "cannot post a write");
  struct ibv_wc completion;
  int found;
  while ((found = ibv_poll_cq(peer->queue, 1, &completion)) == 0) sched_yield();
  if (found < 0 || completion.status != IBV_WC_SUCCESS)
    leave(1, "a write fails: %s", found < 0 ? "no completion" : ibv_wc_status_str(completion.status));
}

#endif
