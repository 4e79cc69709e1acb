#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static struct ibv_context* open_device(const char* name) {
  int count = 0;
  struct ibv_device** list = ibv_get_device_list(&count);
  if (list == NULL || count == 0) die("no RDMA device");
  for (int i = 0; i < count; ++i) {
    if (name != NULL && strcmp(name, ibv_get_device_name(list[i])) != 0) continue;
    struct ibv_context* context = ibv_open_device(list[i]);
    if (context == NULL) die("cannot open %s: %m", ibv_get_device_name(list[i]));
    ibv_free_device_list(list);
    return context;
  }
  die("no RDMA device named %s", name);
}

static void lay_out_memory(struct side* s) {
  const size_t size = s->options.size, depth = (size_t)s->options.depth;
  const size_t bytes = size * (depth + 2 * depth + INBOX_SLOTS + 2) + 4 * sizeof(uint64_t);
  if (posix_memalign((void**)&s->memory, 4096, bytes)) die("no memory for %zu bytes", bytes);
  memset(s->memory, 0, bytes);
  s->sends = s->memory;
  s->receives = s->sends + size * depth;
  s->inbox = s->receives + size * 2 * depth;
  s->outbox = s->inbox + size * INBOX_SLOTS;
  s->readback = s->outbox + size;
  s->counter = (uint64_t*)(s->readback + size);
  s->reg = s->counter + 1;
  s->add_result = s->counter + 2;
  s->swap_result = s->counter + 3;
  s->mr = ibv_reg_mr(
      s->pd, s->memory, bytes,
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
  if (s->mr == NULL) die("cannot register %zu bytes: %m", bytes);
}

void post_receive(struct side* s, uint64_t slot) {
  struct ibv_sge sge = {(uintptr_t)(s->receives + slot * s->options.size), s->options.size, s->mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;
  int failed = s->srq ? ibv_post_srq_recv(s->srq, &wr, &bad) : ibv_post_recv(s->qp, &wr, &bad);
  if (failed) die("cannot post a receive: %s", strerror(failed));
}

void make_objects(struct side* s) {
  const struct options* o = &s->options;
  const uint32_t depth = (uint32_t)o->depth;
  s->context = open_device(o->device);
  if (ibv_query_port(s->context, (uint8_t)o->ib_port, &s->port)) die("cannot query port %d", o->ib_port);
  s->pd = ibv_alloc_pd(s->context);
  if (s->pd == NULL) die("cannot allocate a protection domain: %m");
  lay_out_memory(s);
  if (o->events && (s->channel = ibv_create_comp_channel(s->context)) == NULL) die("no completion channel: %m");
  s->cq = o->extended ? create_cq_extended(s, 4 * depth + 9)
                      : ibv_create_cq(s->context, (int)(4 * depth + 9), s, s->channel, 0);
  if (s->cq == NULL) die("cannot create a completion queue: %m");
  struct ibv_srq_init_attr srq = {.attr = {.max_wr = 2 * depth, .max_sge = 1}};
  if (o->srq && (s->srq = ibv_create_srq(s->pd, &srq)) == NULL) die("cannot create a shared receive queue: %m");
  struct ibv_qp_init_attr init = {
      .send_cq = s->cq,
      .recv_cq = s->cq,
      .srq = s->srq,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = depth + 5, .max_recv_wr = 2 * depth, .max_send_sge = 1, .max_recv_sge = 1}};
  s->qp = o->extended ? create_qp_extended(s, &init) : ibv_create_qp(s->pd, &init);
  if (s->qp == NULL) die("cannot create a queue pair: %m");
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_INIT,
      .port_num = (uint8_t)o->ib_port,
      .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
  int failed = ibv_modify_qp(s->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (failed) die("to INIT: %s", strerror(failed));
  for (uint64_t slot = 0; slot < 2 * depth; ++slot) post_receive(s, slot);

  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  s->own = (struct address){.qp_num = s->qp->qp_num,
                            .psn = (uint32_t)(now.tv_nsec ^ getpid()) & 0xffffff,
                            .lid = s->port.lid,
                            .rkey = s->mr->rkey,
                            .inbox = (uintptr_t)s->inbox,
                            .counter = (uintptr_t)s->counter,
                            .reg = (uintptr_t)s->reg};
  if (o->gid_index >= 0 && ibv_query_gid(s->context, (uint8_t)o->ib_port, o->gid_index, &s->own.gid))
    die("cannot query GID %d", o->gid_index);
}

void connect_objects(struct side* s) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                             .path_mtu = s->port.active_mtu < IBV_MTU_1024 ? s->port.active_mtu : IBV_MTU_1024,
                             .dest_qp_num = s->peer.qp_num,
                             .rq_psn = s->peer.psn,
                             .max_dest_rd_atomic = 4,
                             .min_rnr_timer = 12,
                             .ah_attr = {.dlid = (uint16_t)s->peer.lid, .port_num = (uint8_t)s->options.ib_port}};
  if (s->options.gid_index >= 0) {
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = s->peer.gid;
    attr.ah_attr.grh.sgid_index = (uint8_t)s->options.gid_index;
    attr.ah_attr.grh.hop_limit = 1;
  }
  int failed = ibv_modify_qp(s->qp, &attr,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (failed) die("to RTR: %s", strerror(failed));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                              .sq_psn = s->own.psn,
                              .timeout = (uint8_t)s->options.ack_timeout,
                              .retry_cnt = 7,
                              .rnr_retry = 7,
                              .max_rd_atomic = 4};
  failed = ibv_modify_qp(
      s->qp, &attr,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (failed) die("to RTS: %s", strerror(failed));
}

void destroy_objects(struct side* s) {
  if (s->unacknowledged_events) ibv_ack_cq_events(s->cq, s->unacknowledged_events);
  if (ibv_destroy_qp(s->qp)) die("cannot destroy the queue pair");
  if (s->srq && ibv_destroy_srq(s->srq)) die("cannot destroy the shared receive queue");
  if (ibv_destroy_cq(s->cq)) die("cannot destroy the completion queue");
  if (s->channel && ibv_destroy_comp_channel(s->channel)) die("cannot destroy the completion channel");
  if (ibv_dereg_mr(s->mr)) die("cannot deregister memory");
  if (ibv_dealloc_pd(s->pd)) die("cannot deallocate the protection domain");
  if (ibv_close_device(s->context)) die("cannot close the device");
  free(s->memory);
}
