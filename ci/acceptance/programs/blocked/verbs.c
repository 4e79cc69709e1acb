/* Calls of libibverbs and librdmacm that wait for an event, and descriptors that tell of one. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sys/epoll.h>

#include "blocked.h"

enum { kBytes = 64 };

/* A device of its own for each call: two queue pairs connected to each other, and a channel that nothing has come to.
 */
struct objects {
  struct ibv_context* context;
  struct ibv_pd* pd;
  struct ibv_mr* mr;
  struct ibv_srq* srq;
  struct ibv_comp_channel* channel;
  struct ibv_cq *send_cq, *receive_cq;
  struct ibv_qp *a, *b;
  int epoll;
  char memory[kBytes];
};

static void connect_qp(struct ibv_qp* qp, struct ibv_qp* to, uint16_t lid) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
  MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp_num};
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 1;
  attr.ah_attr = (struct ibv_ah_attr){.dlid = lid, .port_num = 1};
  MUST(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
  attr = (struct ibv_qp_attr){
      .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
  MUST(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                         IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static struct ibv_qp* make_qp(struct objects* o, struct ibv_srq* srq) {
  struct ibv_qp_init_attr init = {.send_cq = o->send_cq, .recv_cq = o->receive_cq, .srq = srq, .qp_type = IBV_QPT_RC};
  init.cap = (struct ibv_qp_cap){4, 4, 1, 1, 0};
  struct ibv_qp* qp = ibv_create_qp(o->pd, &init);
  MUST(qp != NULL);
  return qp;
}

static void make_objects(struct call* c) {
  struct objects* o = c->memory = calloc(1, sizeof(*o));
  int count = 0;
  struct ibv_device** list = ibv_get_device_list(&count);
  MUST(list != NULL && count > 0 && (o->context = ibv_open_device(list[0])) != NULL);
  ibv_free_device_list(list);
  struct ibv_port_attr port;
  MUST(ibv_query_port(o->context, 1, &port) == 0 && (o->pd = ibv_alloc_pd(o->context)) != NULL);
  MUST((o->mr = ibv_reg_mr(o->pd, o->memory, kBytes, IBV_ACCESS_LOCAL_WRITE)) != NULL);
  MUST((o->channel = ibv_create_comp_channel(o->context)) != NULL);
  MUST((o->send_cq = ibv_create_cq(o->context, 8, NULL, NULL, 0)) != NULL);
  MUST((o->receive_cq = ibv_create_cq(o->context, 8, c, o->channel, 0)) != NULL);
  struct ibv_srq_init_attr shared = {.attr = {.max_wr = 4, .max_sge = 1}};
  MUST((o->srq = ibv_create_srq(o->pd, &shared)) != NULL);
  o->a = make_qp(o, NULL);
  o->b = make_qp(o, o->srq);
  connect_qp(o->a, o->b, port.lid);
  connect_qp(o->b, o->a, port.lid);
  struct ibv_sge piece = {(uintptr_t)o->memory, kBytes, o->mr->lkey};
  struct ibv_recv_wr receive = {.sg_list = &piece, .num_sge = 1}, *bad;
  MUST(ibv_post_srq_recv(o->srq, &receive, &bad) == 0 && ibv_req_notify_cq(o->receive_cq, 0) == 0);
}

static void send_message(struct call* c) {
  struct objects* o = c->memory;
  struct ibv_sge piece = {(uintptr_t)o->memory, 1, o->mr->lkey};
  struct ibv_send_wr send = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  MUST(ibv_post_send(o->a, &send, &bad) == 0);
}

static long call_get_cq_event(struct call* c) {
  struct objects* o = c->memory;
  struct ibv_cq* cq;
  void* context;
  const int result = ibv_get_cq_event(o->channel, &cq, &context);
  if (result != 0) return result;
  struct ibv_wc wc;
  MUST(cq == o->receive_cq && context == c);
  ibv_ack_cq_events(cq, 1);
  return ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.qp_num == o->b->qp_num ? 0 : -2;
}

static long call_poll_channel(struct call* c) {
  struct objects* o = c->memory;
  struct pollfd fd = {o->channel->fd, POLLIN, 0};
  return poll(&fd, 1, -1) == 1 ? call_get_cq_event(c) : -1;
}

static void make_objects_and_epoll(struct call* c) {
  make_objects(c);
  struct objects* o = c->memory;
  struct epoll_event event = {.events = EPOLLIN};
  MUST((o->epoll = epoll_create1(0)) >= 0 && epoll_ctl(o->epoll, EPOLL_CTL_ADD, o->channel->fd, &event) == 0);
}

static long call_epoll_channel(struct call* c) {
  struct epoll_event event;
  return epoll_wait(((struct objects*)c->memory)->epoll, &event, 1, kLongMs) == 1 ? call_get_cq_event(c) : -1;
}

/* A queue pair on a shared receive queue says when it takes no more of it. */
static long call_get_async_event(struct call* c) {
  struct objects* o = c->memory;
  struct ibv_async_event event;
  const int result = ibv_get_async_event(o->context, &event);
  if (result != 0) return result;
  ibv_ack_async_event(&event);
  return event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == o->b ? 0 : -2;
}
static void stop_taking(struct call* c) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  MUST(ibv_modify_qp(((struct objects*)c->memory)->b, &attr, IBV_QP_STATE) == 0);
}

/* rdma_cm: an id whose address is being resolved when somebody asks. */
struct connection {
  struct rdma_event_channel* channel;
  struct rdma_cm_id* id;
};

static void make_id(struct call* c) {
  struct connection* connection = c->memory = calloc(1, sizeof(*connection));
  MUST((connection->channel = rdma_create_event_channel()) != NULL);
  MUST(rdma_create_id(connection->channel, &connection->id, c, RDMA_PS_TCP) == 0);
}
static long call_get_cm_event(struct call* c) {
  struct connection* connection = c->memory;
  struct rdma_cm_event* event;
  const int result = rdma_get_cm_event(connection->channel, &event);
  if (result != 0) return result;
  const int right =
      event->event == RDMA_CM_EVENT_ADDR_RESOLVED && event->id == connection->id && event->id->context == c;
  MUST(rdma_ack_cm_event(event) == 0);
  return right ? 0 : -2;
}
static long call_poll_cm(struct call* c) {
  struct pollfd fd = {((struct connection*)c->memory)->channel->fd, POLLIN, 0};
  return poll(&fd, 1, kLongMs) == 1 ? call_get_cm_event(c) : -1;
}
static void resolve(struct call* c) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(7)};
  MUST(rdma_resolve_addr(((struct connection*)c->memory)->id, NULL, (struct sockaddr*)&address, 2000) == 0);
}

struct call verbs_calls[] = {
    {"ibv_get_cq_event", kWoken, make_objects, call_get_cq_event, send_message, 0, 0},
    {"ibv_get_cq_event, interrupted", kInterrupted, make_objects, call_get_cq_event, NULL, -1, EINTR},
    {"poll of a completion channel", kWoken, make_objects, call_poll_channel, send_message, 0, 0},
    {"epoll_wait on a completion channel", kWoken, make_objects_and_epoll, call_epoll_channel, send_message, 0, 0},
    {"ibv_get_async_event", kWoken, make_objects, call_get_async_event, stop_taking, 0, 0},
    {"ibv_get_async_event, interrupted", kInterrupted, make_objects, call_get_async_event, NULL, -1, EINTR},
    {"rdma_get_cm_event", kWoken, make_id, call_get_cm_event, resolve, 0, 0},
    {"rdma_get_cm_event, interrupted", kInterrupted, make_id, call_get_cm_event, NULL, -1, EINTR},
    {"poll of an event channel", kWoken, make_id, call_poll_cm, resolve, 0, 0},
    {NULL}};
