/* restart_check CASE: sets up what the case is about, checkpoints and ends itself, and looks after the restart
 * whether everything is as a program without a checkpoint would find it. Prints "restarted: well" then. */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BYTES 65536
#define CHECKPOINT_KILL 1u /* SHADOWIB_CHECKPOINT_KILL */
#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

#define CHECK(condition)                                                  \
  do {                                                                    \
    if (!(condition)) {                                                   \
      printf("line %d: not true: %s (errno %m)\n", __LINE__, #condition); \
      exit(1);                                                            \
    }                                                                     \
  } while (0)

static struct ibv_context* context;
static struct ibv_pd* pd;
static struct ibv_mr* mr;
static struct ibv_comp_channel* channel;
static struct ibv_cq *send_cq, *recv_cq; /* recv_cq has the channel */
static struct ibv_qp *left, *right;      /* connected with each other */
static char* memory;

static void modify(struct ibv_qp* qp, struct ibv_qp_attr attr, int mask) {
  int failed = ibv_modify_qp(qp, &attr, mask);
  if (failed) printf("ibv_modify_qp: %s\n", strerror(failed));
  CHECK(!failed);
}

static struct ibv_qp_attr query(struct ibv_qp* qp) {
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_TIMEOUT, &init));
  return attr;
}

static struct ibv_qp* make_qp(void) {
  struct ibv_qp_init_attr init = {
      .send_cq = send_cq,
      .recv_cq = recv_cq,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  CHECK(qp != NULL);
  modify(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_ACCESS},
         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return qp;
}

/* With access flags of its own on the way to RTR, which is unusual. */
static void connect_to(struct ibv_qp* qp, uint32_t peer) {
  struct ibv_port_attr port;
  CHECK(!ibv_query_port(context, 1, &port));
  modify(qp,
         (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                              .path_mtu = IBV_MTU_1024,
                              .dest_qp_num = peer,
                              .max_dest_rd_atomic = 4,
                              .min_rnr_timer = 1,
                              .qp_access_flags = ALL_ACCESS,
                              .ah_attr = {.dlid = port.lid, .port_num = 1}},
         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
             IBV_QP_MIN_RNR_TIMER | IBV_QP_ACCESS_FLAGS);
  modify(
      qp,
      (struct ibv_qp_attr){
          .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4},
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static void set_up(void) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  CHECK(list != NULL && list[0] != NULL);
  CHECK((context = ibv_open_device(list[0])) != NULL);
  ibv_free_device_list(list);
  CHECK((pd = ibv_alloc_pd(context)) != NULL);
  CHECK((channel = ibv_create_comp_channel(context)) != NULL);
  CHECK((send_cq = ibv_create_cq(context, 64, NULL, NULL, 0)) != NULL);
  CHECK((recv_cq = ibv_create_cq(context, 64, NULL, channel, 0)) != NULL);
  memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  CHECK((mr = ibv_reg_mr(pd, memory, BYTES, ALL_ACCESS)) != NULL);
  left = make_qp();
  right = make_qp();
  connect_to(left, right->qp_num);
  connect_to(right, left->qp_num);
}

/* Returns in the restarted process only. */
static void restart(void) {
  int (*checkpoint)(unsigned, int, char*, size_t) =
      (int (*)(unsigned, int, char*, size_t))dlsym(RTLD_DEFAULT, "shadowib_checkpoint");
  CHECK(checkpoint != NULL);
  char set[4096];
  int outcome = checkpoint(CHECKPOINT_KILL, 30000, set, sizeof(set));
  if (outcome != 1) {
    const char* (*last_error)(void) = (const char* (*)(void))dlsym(RTLD_DEFAULT, "shadowib_last_error");
    printf("shadowib_checkpoint: %d: %s\n", outcome, last_error != NULL ? last_error() : "");
    exit(1);
  }
}

static int readable(int fd, int timeout_ms) {
  struct pollfd wanted = {.fd = fd, .events = POLLIN};
  return poll(&wanted, 1, timeout_ms) == 1;
}

static enum ibv_wc_status wait_for(struct ibv_cq* cq) {
  struct ibv_wc wc;
  for (time_t end = time(NULL) + 10; time(NULL) < end;) {
    int n = ibv_poll_cq(cq, 1, &wc);
    CHECK(n >= 0);
    if (n == 1) return wc.status;
  }
  printf("no completion within 10 s\n");
  exit(1);
}

static enum ibv_wc_status send_from(struct ibv_mr* region, void* address) {
  struct ibv_sge sge = {(uintptr_t)address, 64, region->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
  struct ibv_send_wr* bad;
  CHECK(!ibv_post_send(left, &wr, &bad));
  return wait_for(send_cq);
}

static void receive_at_right(void) {
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(!ibv_post_recv(right, &wr, &bad));
}

static void send_message(void) {
  receive_at_right();
  CHECK(send_from(mr, memory + 4096) == IBV_WC_SUCCESS);
  CHECK(wait_for(recv_cq) == IBV_WC_SUCCESS);
}

/* A weaker request does not take a stronger one back, and events that lie unread answer the requests before them. */
static void arming(void) {
  for (int unread = 0; unread < 3; ++unread) {
    CHECK(!ibv_req_notify_cq(recv_cq, 0));
    send_message();
  }
  CHECK(!ibv_req_notify_cq(recv_cq, 0));
  CHECK(!ibv_req_notify_cq(recv_cq, 1));
  restart();
  struct ibv_cq* cq;
  void* cookie;
  for (int unread = 0; unread < 3; ++unread) {
    CHECK(readable(channel->fd, 0));
    CHECK(!ibv_get_cq_event(channel, &cq, &cookie));
  }
  CHECK(!readable(channel->fd, 0));
  send_message();
  CHECK(readable(channel->fd, 10000));
  CHECK(!ibv_get_cq_event(channel, &cq, &cookie));
  ibv_ack_cq_events(recv_cq, 4);
}

/* A change that names the state it begins in. */
static void current_state(void) {
  modify(left, (struct ibv_qp_attr){.qp_state = IBV_QPS_SQD}, IBV_QP_STATE);
  modify(left, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQD},
         IBV_QP_STATE | IBV_QP_CUR_STATE);
  restart();
  send_message();
}

/* What was set last holds, wherever on the way it could be set. */
static void attributes(void) {
  struct ibv_qp* qp = make_qp();
  const unsigned first = IBV_ACCESS_REMOTE_READ, last = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  modify(qp, (struct ibv_qp_attr){.qp_access_flags = first}, IBV_QP_ACCESS_FLAGS);
  connect_to(qp, left->qp_num);
  modify(qp, (struct ibv_qp_attr){.qp_access_flags = last}, IBV_QP_ACCESS_FLAGS);
  for (uint8_t timeout = 15; timeout <= 16; ++timeout) {
    modify(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_SQD}, IBV_QP_STATE);
    modify(qp, (struct ibv_qp_attr){.timeout = timeout}, IBV_QP_TIMEOUT);
    modify(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, IBV_QP_STATE);
  }
  modify(left, (struct ibv_qp_attr){.qp_state = IBV_QPS_SQD}, IBV_QP_STATE);
  restart();
  CHECK(query(qp).qp_state == IBV_QPS_RTS);
  CHECK(query(qp).qp_access_flags == last);
  CHECK(query(qp).timeout == 16);
  CHECK(query(left).qp_state == IBV_QPS_SQD);
  modify(left, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, IBV_QP_STATE);
  send_message();
}

static void take_drain_event(void) {
  struct ibv_async_event event;
  CHECK(readable(context->async_fd, 10000));
  CHECK(!ibv_get_async_event(context, &event));
  CHECK(event.event_type == IBV_EVENT_SQ_DRAINED);
  ibv_ack_async_event(&event);
}

/* SQ_DRAINED comes once, whether the program has taken it before the checkpoint (left) or not (right). */
static void drain_event(void) {
  for (int i = 0; i < 2; ++i) {
    modify(i == 0 ? left : right, (struct ibv_qp_attr){.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1},
           IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
    if (i == 0) take_drain_event();
  }
  restart();
  take_drain_event();
  CHECK(!readable(context->async_fd, 300));
  modify(right, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, IBV_QP_STATE);
  modify(right, (struct ibv_qp_attr){.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1},
         IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
  take_drain_event();
}

/* Only the use of a region whose memory is gone fails. */
static void unmapped_region(void) {
  char* gone = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(gone != MAP_FAILED);
  struct ibv_mr* of_gone = ibv_reg_mr(pd, gone, BYTES, ALL_ACCESS);
  CHECK(of_gone != NULL);
  CHECK(!munmap(gone, BYTES));
  restart();
  send_message();
  CHECK(send_from(of_gone, gone) == IBV_WC_LOC_PROT_ERR);
  CHECK(!ibv_dereg_mr(of_gone));
}

static const struct {
  const char* name;
  void (*run)(void);
} cases[] = {{"arming", arming},
             {"current_state", current_state},
             {"attributes", attributes},
             {"drain_event", drain_event},
             {"unmapped_region", unmapped_region}};

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (size_t i = 0; argc == 2 && i < sizeof(cases) / sizeof(cases[0]); ++i) {
    if (strcmp(argv[1], cases[i].name) != 0) continue;
    set_up();
    cases[i].run();
    printf("restarted: well\n");
    return 0;
  }
  fprintf(stderr, "usage: restart_check CASE\n");
  return 2;
}
