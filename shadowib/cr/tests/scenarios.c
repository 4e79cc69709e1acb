/* Programs for restart_test.py: each brings its queue pairs into a state, has itself checkpointed and killed, and
 * checks after the restart that nothing but what verbs allow can be seen.
 *
 *   restart_scenarios NAME     exit code 0: all was right; 1: what was not is on standard error
 * Two queue pairs of one process, A and B, connected to each other; request n has wr_id n. */
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) check((condition) != 0, #condition, __LINE__)

enum { kDepth = 64, kAnyTime = 20 };

static struct ibv_context* context;
static struct ibv_pd* pd;
static struct ibv_cq *send_cq, *receive_cq;
static struct ibv_qp *a, *b;
static struct ibv_mr* mr;
static char* memory;
static int lid;

static void check(int condition, const char* text, int line) {
  if (condition) return;
  fprintf(stderr, "restart_scenarios: line %d: not so: %s\n", line, text);
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void checkpoint_and_kill(void) {
  int (*checkpoint)(unsigned, int, char*, size_t) =
      (int (*)(unsigned, int, char*, size_t))dlsym(RTLD_DEFAULT, "shadowib_checkpoint");
  CHECK(checkpoint != NULL);
  CHECK(checkpoint(1, 60000, NULL, 0) == 1); /* 1: in the restarted process */
}

static void open_device(void) {
  int count;
  struct ibv_device** list = ibv_get_device_list(&count);
  CHECK(list != NULL && count > 0);
  context = ibv_open_device(list[0]);
  CHECK(context != NULL);
  ibv_free_device_list(list);
  struct ibv_port_attr port;
  CHECK(ibv_query_port(context, 1, &port) == 0);
  lid = port.lid;
  pd = ibv_alloc_pd(context);
  send_cq = ibv_create_cq(context, 4 * kDepth, NULL, NULL, 0);
  receive_cq = ibv_create_cq(context, 4 * kDepth, NULL, NULL, 0);
  CHECK(pd != NULL && send_cq != NULL && receive_cq != NULL);
}

static void allocate(size_t bytes) {
  memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  mr = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(mr != NULL);
}

static void to_init(struct ibv_qp* qp) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
}

static struct ibv_qp* create_queue_pair(struct ibv_srq* shared) {
  struct ibv_qp_init_attr init = {.send_cq = send_cq, .recv_cq = receive_cq, .srq = shared, .qp_type = IBV_QPT_RC};
  init.cap = (struct ibv_qp_cap){kDepth, kDepth, 1, 1, 0};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  CHECK(qp != NULL);
  to_init(qp);
  return qp;
}

static void connect_to(struct ibv_qp* qp, int peer_lid, uint32_t peer_number) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer_number};
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 1;
  attr.ah_attr.dlid = (uint16_t)peer_lid;
  attr.ah_attr.port_num = 1;
  CHECK(ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = attr.rnr_retry = 7;
  attr.max_rd_atomic = 1;
  CHECK(ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                          IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void make_pair(size_t bytes) {
  open_device();
  allocate(bytes);
  a = create_queue_pair(NULL);
  b = create_queue_pair(NULL);
  connect_to(a, lid, b->qp_num);
  connect_to(b, lid, a->qp_num);
}

static void post_receive(struct ibv_qp* qp, uint64_t id, uint32_t bytes) {
  struct ibv_sge sge = {(uintptr_t)memory, bytes, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void post(struct ibv_qp* qp, enum ibv_wr_opcode opcode, uint64_t id, uint32_t bytes, uint32_t rkey) {
  struct ibv_sge sge = {(uintptr_t)memory, bytes, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = (uintptr_t)memory;
  wr.wr.rdma.rkey = rkey;
  CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void expect(struct ibv_cq* cq, uint64_t id, enum ibv_wc_status status, int line) {
  struct ibv_wc wc = {.wr_id = ~0ull};
  for (double end = now() + kAnyTime; now() < end && ibv_poll_cq(cq, 1, &wc) == 0;) continue;
  if (wc.wr_id == id && wc.status == status) return;
  fprintf(stderr, "restart_scenarios: line %d: request %llu with status %s is due, there came %lld with %s\n", line,
          (unsigned long long)id, ibv_wc_status_str(status), (long long)wc.wr_id,
          wc.wr_id == ~0ull ? "nothing" : ibv_wc_status_str(wc.status));
  exit(1);
}
#define EXPECT(cq, id, status) expect(cq, id, status, __LINE__)

static void expect_nothing_more(void) {
  struct ibv_wc wc;
  CHECK(ibv_poll_cq(send_cq, 1, &wc) == 0);
  CHECK(ibv_poll_cq(receive_cq, 1, &wc) == 0);
}

static void to_state(struct ibv_qp* qp, enum ibv_qp_state state) {
  struct ibv_qp_attr attr = {.qp_state = state};
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
}

static void send_one(uint64_t id) {
  post_receive(b, 100 + id, 64);
  post(a, IBV_WR_SEND, id, 64, 0);
  EXPECT(send_cq, id, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 100 + id, IBV_WC_SUCCESS);
}

/* An error that the program knows from completions alone is still one after the restart. */
static void error_by_completion(void) {
  make_pair(1 << 16);
  post_receive(b, 100, 64);
  post(a, IBV_WR_RDMA_WRITE, 1, 64, mr->rkey ^ 0x5555);
  EXPECT(send_cq, 1, IBV_WC_REM_ACCESS_ERR);
  EXPECT(receive_cq, 100, IBV_WC_WR_FLUSH_ERR);
  checkpoint_and_kill();
  post_receive(b, 101, 64);
  post(a, IBV_WR_SEND, 2, 64, 0);
  EXPECT(send_cq, 2, IBV_WC_WR_FLUSH_ERR);
  EXPECT(receive_cq, 101, IBV_WC_WR_FLUSH_ERR);
  expect_nothing_more();
}

/* Files by which two processes of a test tell each other "LID NUMBER". */
static void tell(const char* file, uint32_t number) {
  char temporary[64];
  snprintf(temporary, sizeof(temporary), "%s.new", file);
  FILE* f = fopen(temporary, "w");
  CHECK(f != NULL && fprintf(f, "%d %u\n", lid, number) > 0 && fclose(f) == 0);
  CHECK(rename(temporary, file) == 0);
}

static void await(const char* file, int* peer_lid, uint32_t* number) {
  while (access(file, F_OK) != 0) usleep(1000);
  FILE* f = fopen(file, "r");
  CHECK(f != NULL && fscanf(f, "%d %u", peer_lid, number) == 2);
  fclose(f);
}

/* A send queue that is still draining is not held: what it has begun runs before the frontier is taken. */
static const uint32_t kLong = 256u << 20;

static void begin_and_hold(int event, void* unused) {
  (void)unused;
  if (event != 0) return; /* 0: just before the threads are stopped */
  post(a, IBV_WR_SEND, 1, kLong, 0);
  to_state(a, IBV_QPS_SQD);
}

static void draining(void) {
  int (*add_hook)(void (*)(int, void*), void*) =
      (int (*)(void (*)(int, void*), void*))dlsym(RTLD_DEFAULT, "shadowib_add_hook");
  int bystander_lid;
  uint32_t number;
  make_pair(kLong);
  tell("draining", 0);
  await("bystander", &bystander_lid, &number);
  post_receive(b, 100, kLong);
  post_receive(b, 101, kLong);
  CHECK(add_hook != NULL && add_hook(begin_and_hold, NULL) >= 0);
  checkpoint_and_kill();
  tell("restarted", 0);
  to_state(a, IBV_QPS_RTS);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 100, IBV_WC_SUCCESS);
  post(a, IBV_WR_SEND, 2, 64, 0);
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 101, IBV_WC_SUCCESS);
  expect_nothing_more();
}

/* Another member, which takes its time. */
static void bystander(void) {
  int peer_lid;
  uint32_t number;
  await("draining", &peer_lid, &number);
  open_device();
  tell("bystander", 0);
  await("restarted", &peer_lid, &number);
}

/* A drained one keeps what was posted to it until it is let go. */
static void held(void) {
  make_pair(1 << 16);
  to_state(a, IBV_QPS_SQD);
  post_receive(b, 100, 64);
  post(a, IBV_WR_SEND, 1, 64, 0);
  checkpoint_and_kill();
  expect_nothing_more();
  to_state(a, IBV_QPS_RTS);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  EXPECT(receive_cq, 100, IBV_WC_SUCCESS);
}

/* A device opened after the restart is one that others reach, twice over. */
static void opened_later(void) {
  make_pair(1 << 16);
  checkpoint_and_kill();
  send_one(1);
  for (int i = 0; i < 2; ++i) {
    make_pair(1 << 16);
    send_one(2);
  }
}

/* Two pairs whose receiving ends share a queue: `to[i]` receives what `from[i]` sends. Request n sends and receive n
 * fills 64 bytes of their own. */
static struct ibv_srq* srq;
static struct ibv_qp *from[2], *to[2];

static void make_sharing_pairs(void) {
  open_device();
  allocate(1 << 16);
  struct ibv_srq_init_attr attr = {.attr = {.max_wr = 8, .max_sge = 1}};
  CHECK((srq = ibv_create_srq(pd, &attr)) != NULL);
  for (int i = 0; i < 2; ++i) {
    from[i] = create_queue_pair(NULL);
    to[i] = create_queue_pair(srq);
    connect_to(from[i], lid, to[i]->qp_num);
    connect_to(to[i], lid, from[i]->qp_num);
  }
}

static void post_shared(uint64_t id) {
  struct ibv_sge sge = {(uintptr_t)memory + 8192 + 64 * id, 64, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

static void send_from(int i, uint64_t id) {
  struct ibv_sge sge = {(uintptr_t)memory + 64 * id, 64, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
  memory[64 * id] = (char)id;
  CHECK(ibv_post_send(from[i], &wr, &bad) == 0);
}

/* The next completed receive is `id`. Returns which end got it; *what is the request it got. */
static int next_shared(uint64_t id, int* what) {
  struct ibv_wc wc = {.wr_id = ~0ull};
  for (double end = now() + kAnyTime; now() < end && ibv_poll_cq(receive_cq, 1, &wc) == 0;) continue;
  CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS);
  CHECK(wc.qp_num == to[0]->qp_num || wc.qp_num == to[1]->qp_num);
  *what = memory[8192 + 64 * id];
  return wc.qp_num == to[1]->qp_num;
}

static void expect_limit_event(void) {
  struct ibv_async_event event;
  CHECK(ibv_get_async_event(context, &event) == 0);
  CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
  ibv_ack_async_event(&event);
  struct pollfd more = {context->async_fd, POLLIN, 0};
  CHECK(poll(&more, 1, 0) == 0);
}

static void arm_limit(uint32_t limit) {
  struct ibv_srq_attr attr = {.srq_limit = limit};
  CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
}

/* Receives completed and not polled, requests held back by the want of one, a limit that was reached and one that was
 * not: all go on where they were, in their order. */
static void shared_receives(void) {
  int what;
  make_sharing_pairs();
  for (uint64_t id = 10; id < 13; ++id) post_shared(id);
  arm_limit(1);
  send_from(0, 1);
  CHECK(next_shared(10, &what) == 0 && what == 1);
  send_from(1, 2);
  CHECK(next_shared(11, &what) == 1 && what == 2);
  send_from(1, 3); /* takes the last; the limit is reached */
  struct pollfd reached = {context->async_fd, POLLIN, 0};
  CHECK(poll(&reached, 1, 1000 * kAnyTime) == 1);
  send_from(0, 4);
  send_from(0, 5);
  send_from(1, 6);
  checkpoint_and_kill();
  expect_limit_event();
  CHECK(next_shared(12, &what) == 1 && what == 3);
  expect_nothing_more();
  int last[2] = {0, 0};
  for (uint64_t id = 13; id < 16; ++id) post_shared(id);
  for (uint64_t id = 13; id < 16; ++id) {
    const int end = next_shared(id, &what);
    CHECK(what > last[end]);
    last[end] = what;
  }
  CHECK(last[0] == 5 && last[1] == 6);
  for (uint64_t id = 20; id < 23; ++id) post_shared(id);
  arm_limit(2);
  checkpoint_and_kill();
  send_from(1, 7);
  CHECK(next_shared(20, &what) == 1 && what == 7);
  struct pollfd early = {context->async_fd, POLLIN, 0};
  CHECK(poll(&early, 1, 0) == 0);
  send_from(0, 8);
  CHECK(next_shared(21, &what) == 0 && what == 8);
  expect_limit_event();
  for (int i = 0; i < 2; ++i) CHECK(ibv_destroy_qp(from[i]) == 0 && ibv_destroy_qp(to[i]) == 0);
  CHECK(ibv_destroy_srq(srq) == 0);
}

/* A queue pair goes with completions unread: the receives they used are not posted again after the restart. */
static void shared_receives_of_a_destroyed_queue_pair(void) {
  int what;
  make_sharing_pairs();
  for (uint64_t id = 10; id < 13; ++id) post_shared(id);
  send_from(0, 1);
  while (memory[8192 + 64 * 10] != 1) CHECK(ibv_poll_cq(send_cq, 1, &(struct ibv_wc){0}) == 0);
  CHECK(ibv_destroy_qp(from[0]) == 0 && ibv_destroy_qp(to[0]) == 0);
  checkpoint_and_kill();
  send_from(1, 2);
  CHECK(next_shared(11, &what) == 1 && what == 2);
  send_from(1, 3);
  CHECK(next_shared(12, &what) == 1 && what == 3);
  expect_nothing_more();
}

/* A batch half built and a completion half read are the program's own: both go on after the restart. */
static void extended_verbs(void) {
  struct ibv_poll_cq_attr poll_attr = {0};
  struct ibv_cq_init_attr_ex cq_attr = {.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS};
  open_device();
  allocate(1 << 16);
  struct ibv_cq_ex* cq = ibv_create_cq_ex(context, &cq_attr);
  CHECK(cq != NULL);
  receive_cq = ibv_cq_ex_to_cq(cq);
  struct ibv_qp_init_attr_ex init = {.send_cq = send_cq, .recv_cq = send_cq, .qp_type = IBV_QPT_RC, .pd = pd};
  init.cap = (struct ibv_qp_cap){kDepth, kDepth, 1, 1, 64};
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM;
  CHECK((a = ibv_create_qp_ex(context, &init)) != NULL);
  to_init(a);
  b = create_queue_pair(NULL);
  connect_to(a, lid, b->qp_num);
  connect_to(b, lid, a->qp_num);
  struct ibv_qp_ex* builder = ibv_qp_to_qp_ex(a);
  CHECK(builder != NULL && ibv_qp_to_qp_ex(b) == NULL);
  for (uint64_t id = 100; id < 103; ++id) post_receive(b, id, 64);
  builder->wr_flags = IBV_SEND_SIGNALED;
  for (uint32_t round = 0; round < 2; ++round) {
    ibv_wr_start(builder);
    builder->wr_id = 1 + round;
    ibv_wr_send_imm(builder, 10 + round);
    char text[] = "half built";
    ibv_wr_set_inline_data(builder, text, sizeof(text));
    memset(text, 'x', sizeof(text));
    if (round == 1) checkpoint_and_kill();
    CHECK(ibv_wr_complete(builder) == 0);
    EXPECT(send_cq, 1 + round, IBV_WC_SUCCESS);
    while (ibv_start_poll(cq, &poll_attr) != 0) continue;
    if (round == 0) checkpoint_and_kill();
    CHECK(cq->status == IBV_WC_SUCCESS && cq->wr_id == 100 + round);
    CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RECV && ibv_wc_read_qp_num(cq) == b->qp_num);
    CHECK(ibv_wc_read_imm_data(cq) == 10 + round && ibv_wc_read_byte_len(cq) == 11);
    CHECK(strcmp(memory, "half built") == 0);
    CHECK(ibv_next_poll(cq) == ENOENT);
    ibv_end_poll(cq);
    memset(memory, 0, 64);
  }
}

/* One process is restarted, another joins the job then; both are checkpointed, killed and restarted. */
static void first(void) {
  int peer_lid;
  uint32_t number;
  make_pair(1 << 16);
  checkpoint_and_kill();
  struct ibv_qp* qp = create_queue_pair(NULL);
  tell("first", qp->qp_num);
  await("second", &peer_lid, &number);
  connect_to(qp, peer_lid, number);
  post_receive(qp, 7, 64);
  post_receive(qp, 8, 64);
  tell("receives", 0);
  EXPECT(receive_cq, 7, IBV_WC_SUCCESS);
  checkpoint_and_kill();
  tell("restarted", 0);
  EXPECT(receive_cq, 8, IBV_WC_SUCCESS);
  send_one(1);
}

static void second(void) {
  int peer_lid;
  uint32_t number;
  open_device();
  allocate(1 << 16);
  await("first", &peer_lid, &number);
  struct ibv_qp* qp = create_queue_pair(NULL);
  tell("second", qp->qp_num);
  connect_to(qp, peer_lid, number);
  await("receives", &peer_lid, &number);
  post(qp, IBV_WR_SEND, 1, 64, 0);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  await("restarted", &peer_lid, &number);
  post(qp, IBV_WR_SEND, 2, 64, 0);
  EXPECT(send_cq, 2, IBV_WC_SUCCESS);
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*run)(void);
  } kScenarios[] = {{"error_by_completion", error_by_completion},
                    {"draining", draining},
                    {"bystander", bystander},
                    {"held", held},
                    {"opened_later", opened_later},
                    {"shared_receives", shared_receives},
                    {"shared_receives_of_a_destroyed_queue_pair", shared_receives_of_a_destroyed_queue_pair},
                    {"extended_verbs", extended_verbs},
                    {"first", first},
                    {"second", second}};
  for (size_t i = 0; argc == 2 && i < sizeof(kScenarios) / sizeof(kScenarios[0]); ++i)
    if (strcmp(argv[1], kScenarios[i].name) == 0) {
      kScenarios[i].run();
      return 0;
    }
  fprintf(stderr, "usage: restart_scenarios NAME\n");
  return 2;
}
