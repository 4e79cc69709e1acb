/* What the scenarios have in common, and the program's beginning. */
#include "scenario.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct ibv_context* context;
struct ibv_pd* pd;
struct ibv_comp_channel* channel;
struct ibv_cq *send_cq, *receive_cq;
struct ibv_qp *a, *b;
struct ibv_mr* mr;
char* memory;
int lid;
uint8_t rnr_retry = 7, min_rnr_timer = 1, read_depth = 1;
uint16_t pkey_index = 0;
uint8_t ack_timeout = 14;
unsigned qp_access = IBV_ACCESS_REMOTE_WRITE;
uint32_t send_depth = kDepth;
int gid_index = -1;
union ibv_gid gid;
int any_time = 60;
static int natively;

void check(int condition, const char* text, const char* file, int line) {
  if (condition) return;
  fprintf(stderr, "%s:%d: not so: %s (errno %m)\n", file, line, text);
  exit(1);
}

double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int take_checkpoint(unsigned flags) {
  int (*checkpoint)(unsigned, int, char*, size_t) =
      (int (*)(unsigned, int, char*, size_t))dlsym(RTLD_DEFAULT, "shadowib_checkpoint");
  CHECK(checkpoint != NULL);
  char path[1024] = "?";
  const int rc = checkpoint(flags, 60000, path, sizeof(path));
  CHECK(rc != 0 || path[0] == '/');
  CHECK(rc != 1 || path[0] == '\0');
  const char* (*last_error)(void) = (const char* (*)(void))dlsym(RTLD_DEFAULT, "shadowib_last_error");
  if (rc < 0 && last_error != NULL) fprintf(stderr, "no checkpoint: %s\n", last_error());
  return rc;
}

void checkpoint_and_kill(void) { CHECK(natively || take_checkpoint(1) == 1); }
void checkpoint_and_go_on(void) { CHECK(natively || take_checkpoint(0) == 0); }

void join(void) {
  int (*join_job)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "shadowib_join");
  CHECK(join_job != NULL && join_job() == 0);
}

void before_checkpoint(void (*hook)(int event, void* unused)) {
  int (*add_hook)(void (*)(int, void*), void*) =
      (int (*)(void (*)(int, void*), void*))dlsym(RTLD_DEFAULT, "shadowib_add_hook");
  CHECK(add_hook != NULL && add_hook(hook, NULL) >= 0);
}

void find_address(void) {
  struct ibv_port_attr port;
  CHECK(ibv_query_port(context, 1, &port) == 0);
  lid = port.lid;
  for (int i = 0; port.link_layer == IBV_LINK_LAYER_ETHERNET && i < port.gid_tbl_len; ++i) {
    union ibv_gid at, none = {.raw = {0}};
    if (ibv_query_gid(context, 1, i, &at) != 0 || memcmp(&at, &none, sizeof(at)) == 0) continue;
    gid_index = i; /* the last: of an IP address */
    gid = at;
  }
}

int is_soft_roce(void) {
  if (strncmp(ibv_get_device_name(context->device), "rxe", 3) != 0) return 0;
  fprintf(stderr, "the device is Soft-RoCE\n");
  return 1;
}

int has_capability(enum ibv_device_cap_flags flag) {
  struct ibv_device_attr attr;
  CHECK(ibv_query_device(context, &attr) == 0);
  if ((attr.device_cap_flags & flag) != 0) return 1;
  fprintf(stderr, "the device has no capability 0x%x\n", (unsigned)flag);
  return 0;
}

void open_device(void) {
  int count;
  struct ibv_device** list = ibv_get_device_list(&count);
  CHECK(list != NULL && count > 0);
  context = ibv_open_device(list[0]);
  CHECK(context != NULL);
  ibv_free_device_list(list);
  find_address();
  pd = ibv_alloc_pd(context);
  send_cq = ibv_create_cq(context, 4 * kDepth, NULL, NULL, 0);
  channel = ibv_create_comp_channel(context);
  receive_cq = ibv_create_cq(context, 4 * kDepth, NULL, channel, 0);
  CHECK(channel != NULL && pd != NULL && send_cq != NULL && receive_cq != NULL);
}

void allocate(size_t bytes) {
  memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  mr = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(mr != NULL);
}

struct ibv_qp* create_datagram_qp(uint32_t qkey) {
  struct ibv_qp_init_attr init = {.send_cq = send_cq, .recv_cq = receive_cq, .qp_type = IBV_QPT_UD};
  init.cap = (struct ibv_qp_cap){kDepth, kDepth, 1, 1, 0};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  CHECK(qp != NULL);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey};
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
  to_state(qp, IBV_QPS_RTR);
  attr.qp_state = IBV_QPS_RTS;
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
  return qp;
}

void to_init(struct ibv_qp* qp) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = qp_access};
  attr.pkey_index = pkey_index;
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
}

struct ibv_qp* create_queue_pair(struct ibv_srq* shared) {
  struct ibv_qp_init_attr init = {.send_cq = send_cq, .recv_cq = receive_cq, .srq = shared, .qp_type = IBV_QPT_RC};
  init.cap = (struct ibv_qp_cap){send_depth, kDepth, 1, 1, 0};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  CHECK(qp != NULL);
  to_init(qp);
  return qp;
}

struct ibv_ah_attr address_of(int peer_lid) {
  struct ibv_ah_attr attr = {.dlid = (uint16_t)peer_lid, .port_num = 1};
  if (gid_index < 0) return attr;
  attr.is_global = 1;
  attr.grh.dgid = gid;
  attr.grh.sgid_index = (uint8_t)gid_index;
  attr.grh.hop_limit = 64;
  return attr;
}

void connect_to(struct ibv_qp* qp, int peer_lid, uint32_t peer_number) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer_number};
  attr.max_dest_rd_atomic = read_depth;
  attr.min_rnr_timer = min_rnr_timer;
  attr.ah_attr = address_of(peer_lid);
  if (gid_index >= 0) attr.ah_attr.dlid = 0xc000; /* means nothing; UCX does so */
  attr.qp_access_flags = qp_access;               /* here too, which is unusual */
  CHECK(ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_ACCESS_FLAGS) == 0);
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = ack_timeout;
  attr.retry_cnt = 7;
  attr.rnr_retry = rnr_retry;
  attr.max_rd_atomic = read_depth;
  CHECK(ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                          IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

void make_pair(size_t bytes) {
  open_device();
  allocate(bytes);
  a = create_queue_pair(NULL);
  b = create_queue_pair(NULL);
  connect_to(a, lid, b->qp_num);
  connect_to(b, lid, a->qp_num);
}

void post_receive(struct ibv_qp* qp, uint64_t id, uint32_t bytes) {
  struct ibv_sge sge = {(uintptr_t)memory, bytes, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

void post(struct ibv_qp* qp, enum ibv_wr_opcode opcode, uint64_t id, uint32_t bytes, uint32_t rkey) {
  struct ibv_sge sge = {(uintptr_t)memory, bytes, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = (uintptr_t)memory;
  wr.wr.rdma.rkey = rkey;
  CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

void expect(struct ibv_cq* cq, uint64_t id, enum ibv_wc_status status, const char* file, int line) {
  struct ibv_wc wc = {.wr_id = ~0ull};
  for (double end = now() + any_time; now() < end && ibv_poll_cq(cq, 1, &wc) == 0;) continue;
  if (wc.wr_id == id && wc.status == status) return;
  fprintf(stderr, "%s:%d: request %llu with status %s is due, there came %lld with %s\n", file, line,
          (unsigned long long)id, ibv_wc_status_str(status), (long long)wc.wr_id,
          wc.wr_id == ~0ull ? "nothing" : ibv_wc_status_str(wc.status));
  exit(1);
}

void expect_nothing_more(void) {
  struct ibv_wc wc;
  CHECK(ibv_poll_cq(send_cq, 1, &wc) == 0);
  CHECK(ibv_poll_cq(receive_cq, 1, &wc) == 0);
}

void to_state(struct ibv_qp* qp, enum ibv_qp_state state) {
  struct ibv_qp_attr attr = {.qp_state = state};
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
}

void send_one(uint64_t id) {
  post_receive(b, 100 + id, 64);
  post(a, IBV_WR_SEND, id, 64, 0);
  EXPECT(send_cq, id, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 100 + id, IBV_WC_SUCCESS);
}

/* Files by which two processes of a test tell each other "LID NUMBER". */
void tell(const char* file, uint32_t number) {
  char temporary[64];
  snprintf(temporary, sizeof(temporary), "%s.new", file);
  FILE* f = fopen(temporary, "w");
  CHECK(f != NULL && fprintf(f, "%d %u\n", lid, number) > 0 && fclose(f) == 0);
  CHECK(rename(temporary, file) == 0);
}

void await(const char* file, int* peer_lid, uint32_t* number) {
  while (access(file, F_OK) != 0) usleep(1000);
  FILE* f = fopen(file, "r");
  CHECK(f != NULL && fscanf(f, "%d %u", peer_lid, number) == 2);
  fclose(f);
}

int readable(int fd, int timeout_ms) {
  struct pollfd wanted = {.fd = fd, .events = POLLIN};
  return poll(&wanted, 1, timeout_ms) == 1;
}

int main(int argc, char** argv) {
  const struct scenario* const all[] = {state_scenarios,        signal_scenarios,
                                        family_scenarios,       process_file_scenarios,
                                        file_lock_scenarios,    kernel_state_scenarios,
                                        system_v_scenarios,     shared_receive_scenarios,
                                        extended_scenarios,     extended_connection_scenarios,
                                        datagram_scenarios,     flow_scenarios,
                                        window_scenarios,       multicast_scenarios,
                                        job_scenarios,          memory_scenarios,
                                        churn_scenarios,        connection_scenarios,
                                        driver_scenarios,       hazard_request_scenarios,
                                        hazard_queue_scenarios, hazard_process_scenarios,
                                        guest_scenarios};
  natively = argc == 3 && strcmp(argv[2], "natively") == 0;
  if (natively) any_time = 3;
  const char* seconds = getenv("SCENARIO_ANY_TIME"); /* if something is not to come */
  if (seconds != NULL) any_time = atoi(seconds);
  for (size_t i = 0; argc == 2 + natively && i < sizeof(all) / sizeof(all[0]); ++i)
    for (const struct scenario* at = all[i]; at->name != NULL; ++at)
      if (strcmp(argv[1], at->name) == 0) {
        at->run();
        return 0;
      }
  fprintf(stderr, "usage: restart_scenarios NAME [natively]\n");
  return 2;
}
