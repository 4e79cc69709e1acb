/* A member of a job with many queue pairs, for perftest/settle: each has so many requests outstanding when a
 * checkpoint comes.
 *
 *   settle_scale MEMBER MEMBERS QUEUE_PAIRS OUTSTANDING KIND
 *
 * MEMBERS: a power of two; each has queue pairs to all others in turn, or none. KIND says what the requests are:
 *   blocked   messages that the peer has posted no receives for
 *   writes    RDMA writes under way: whenever one completes the next is posted
 *   gone      none, and every second member has destroyed every second of its queue pairs
 * Says what it has by files in the working directory, `ready.MEMBER`, and goes on to its end when there is a file
 * `finish`: then all requests have to complete in order, and what they carried has to have arrived, once and whole.
 * Exit code 0: so it was. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kBytes = 256, kPerQueue = 128 };

#define CHECK(condition)                          \
  do {                                            \
    if (!(condition)) fail(#condition, __LINE__); \
  } while (0)

static void fail(const char* text, int line) {
  fprintf(stderr, "settle_scale: line %d: not so: %s (errno %s)\n", line, text, strerror(errno));
  exit(1);
}

struct end { /* what a peer has to know */
  uint32_t number, lid, rkey;
  uint64_t address, posted;
};

struct connection {
  struct ibv_qp* qp;
  struct end peer;
  unsigned member; /* the peer's */
  uint64_t posted, completed, received;
};

static unsigned me, members, queue_pairs, outstanding;
static int writes;
static struct ibv_context* context;
static struct ibv_pd* pd;
static struct ibv_cq** cqs;
static unsigned cq_count;
static struct connection* connections;
static struct ibv_mr *outgoing_mr, *incoming_mr;
static char *outgoing, *incoming; /* [queue pair][request modulo outstanding][kBytes] */

static size_t slot(unsigned qp, uint64_t request) {
  return ((size_t)qp * outstanding + request % outstanding) * kBytes;
}

/* What request `n` of the queue pair with that index carries, sent by `from`: every word of it. */
static uint64_t word(unsigned from, unsigned qp, uint64_t n) { return (uint64_t)from << 56 ^ (uint64_t)qp << 40 ^ n; }

static int carries(const char* at, uint64_t expected) {
  for (unsigned i = 0; i < kBytes; i += sizeof(expected))
    if (memcmp(at + i, &expected, sizeof(expected)) != 0) return 0;
  return 1;
}

static struct ibv_mr* region(char** memory) {
  const size_t bytes = (size_t)queue_pairs * outstanding * kBytes + 4096;
  *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(*memory != MAP_FAILED);
  return ibv_reg_mr(pd, *memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

static uint32_t lid(void) {
  struct ibv_port_attr port;
  CHECK(ibv_query_port(context, 1, &port) == 0);
  return port.lid;
}

static void make_objects(void) {
  int count = 0;
  struct ibv_device** list = ibv_get_device_list(&count);
  CHECK(list != NULL && count > 0 && (context = ibv_open_device(list[0])) != NULL);
  ibv_free_device_list(list);
  CHECK((pd = ibv_alloc_pd(context)) != NULL);
  CHECK((outgoing_mr = region(&outgoing)) != NULL && (incoming_mr = region(&incoming)) != NULL);
  const unsigned depth = outstanding > 0 ? outstanding : 1;
  cq_count = (queue_pairs + kPerQueue - 1) / kPerQueue;
  cqs = calloc(cq_count, sizeof(*cqs));
  for (unsigned i = 0; i < cq_count; ++i)
    CHECK((cqs[i] = ibv_create_cq(context, (int)(2 * depth * kPerQueue), NULL, NULL, 0)) != NULL);
  connections = calloc(queue_pairs, sizeof(*connections));
  for (unsigned j = 0; j < queue_pairs; ++j) {
    struct ibv_qp_init_attr init = {
        .send_cq = cqs[j / kPerQueue], .recv_cq = cqs[j / kPerQueue], .qp_type = IBV_QPT_RC};
    init.cap = (struct ibv_qp_cap){depth, depth, 1, 1, 0};
    CHECK((connections[j].qp = ibv_create_qp(pd, &init)) != NULL);
    connections[j].member = me ^ (1 + j % (members - 1));
  }
}

/* Files of `struct end`s, of all queue pairs. */
static void tell(const char* what) {
  char name[64], temporary[80];
  snprintf(name, sizeof(name), "%s.%u", what, me);
  snprintf(temporary, sizeof(temporary), "%s.new", name);
  FILE* file = fopen(temporary, "w");
  CHECK(file != NULL);
  for (unsigned j = 0; j < queue_pairs; ++j) {
    const struct connection* c = &connections[j];
    const struct end end = {c->qp != NULL ? c->qp->qp_num : 0, lid(), incoming_mr->rkey, (uintptr_t)incoming,
                            c->posted};
    CHECK(fwrite(&end, sizeof(end), 1, file) == 1);
  }
  CHECK(fclose(file) == 0 && rename(temporary, name) == 0);
}

static void hear(const char* what) {
  for (unsigned m = 0; m < members; ++m) {
    unsigned mine = 0; /* queue pairs to that member */
    for (unsigned j = 0; j < queue_pairs; ++j) mine += connections[j].member == m;
    if (mine == 0) continue;
    char name[64];
    snprintf(name, sizeof(name), "%s.%u", what, m);
    while (access(name, F_OK) != 0) usleep(1000);
    FILE* file = fopen(name, "r");
    CHECK(file != NULL);
    for (unsigned j = 0; j < queue_pairs; ++j) {
      struct end end;
      CHECK(fread(&end, sizeof(end), 1, file) == 1);
      if (connections[j].member == m) connections[j].peer = end;
    }
    fclose(file);
  }
}

static void connect_all(void) {
  for (unsigned j = 0; j < queue_pairs; ++j) {
    struct connection* c = &connections[j];
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    CHECK(ibv_modify_qp(c->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = c->peer.number};
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr = (struct ibv_ah_attr){.dlid = (uint16_t)c->peer.lid, .port_num = 1};
    CHECK(ibv_modify_qp(c->qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(ibv_modify_qp(c->qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC) == 0);
  }
}

static void post_next(unsigned j) {
  struct connection* c = &connections[j];
  char* from = outgoing + slot(j, c->posted);
  const uint64_t value = word(me, j, c->posted);
  for (unsigned i = 0; i < kBytes; i += sizeof(value)) memcpy(from + i, &value, sizeof(value));
  struct ibv_sge piece = {(uintptr_t)from, kBytes, outgoing_mr->lkey};
  struct ibv_send_wr wr = {.wr_id = (uint64_t)j << 32 | (uint32_t)c->posted, .sg_list = &piece, .num_sge = 1}, *bad;
  wr.opcode = writes ? IBV_WR_RDMA_WRITE : IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = c->peer.address + slot(j, c->posted);
  wr.wr.rdma.rkey = c->peer.rkey;
  CHECK(ibv_post_send(c->qp, &wr, &bad) == 0);
  ++c->posted;
}

static void post_receives(unsigned j) {
  for (uint64_t n = 0; n < outstanding; ++n) {
    struct ibv_sge piece = {(uintptr_t)incoming + slot(j, n), kBytes, incoming_mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = (uint64_t)j << 32 | n, .sg_list = &piece, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(connections[j].qp, &wr, &bad) == 0);
  }
}

/* Every completion is the next of its queue. Returns how many there were. */
static unsigned poll_all(int post_more) {
  unsigned total = 0;
  for (unsigned i = 0; i < cq_count; ++i) {
    struct ibv_wc wc[64];
    const int n = ibv_poll_cq(cqs[i], 64, wc);
    CHECK(n >= 0);
    total += (unsigned)n;
    for (int k = 0; k < n; ++k) {
      const unsigned j = (unsigned)(wc[k].wr_id >> 32);
      struct connection* c = &connections[j];
      CHECK(wc[k].status == IBV_WC_SUCCESS && j < queue_pairs && wc[k].qp_num == c->qp->qp_num);
      uint64_t* next = wc[k].opcode == IBV_WC_RECV ? &c->received : &c->completed;
      CHECK((uint32_t)wc[k].wr_id == (uint32_t)*next);
      ++*next;
      if (post_more) post_next(j);
    }
  }
  return total;
}

static int all_done(int receives) {
  for (unsigned j = 0; j < queue_pairs; ++j)
    if (connections[j].completed < connections[j].posted || (receives && connections[j].received < outstanding))
      return 0;
  return 1;
}

static void verify(void) {
  for (unsigned j = 0; j < queue_pairs; ++j) {
    const struct connection* c = &connections[j];
    const uint64_t last = c->peer.posted; /* of the peer's requests */
    CHECK(last >= outstanding);
    for (uint64_t n = last - outstanding; n < last; ++n) CHECK(carries(incoming + slot(j, n), word(c->member, j, n)));
  }
}

static void destroy_queue_pairs(void) {
  for (unsigned j = 0; j < queue_pairs; j += 2) {
    CHECK(ibv_destroy_qp(connections[j].qp) == 0);
    connections[j].qp = NULL;
  }
}

/* Until there is the file `finish`. One without work sleeps, as an idle program does: its own wake-ups would be
 * counted as what a checkpoint costs. */
static void go_on(void) {
  if (!writes || outstanding == 0) {
    while (access("finish", F_OK) != 0) usleep(200000);
    return;
  }
  for (unsigned turn = 0; turn % 64 != 0 || access("finish", F_OK) != 0; ++turn) poll_all(1);
}

int main(int argc, char** argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: settle_scale MEMBER MEMBERS QUEUE_PAIRS OUTSTANDING blocked|writes|gone\n");
    return 2;
  }
  me = (unsigned)atoi(argv[1]), members = (unsigned)atoi(argv[2]), queue_pairs = (unsigned)atoi(argv[3]);
  outstanding = (unsigned)atoi(argv[4]);
  writes = strcmp(argv[5], "writes") == 0;
  CHECK(members >= 2 && (members & (members - 1)) == 0 && me < members);
  make_objects();
  tell("numbers");
  hear("numbers");
  connect_all();
  tell("connected");
  hear("connected");
  if (strcmp(argv[5], "gone") == 0) {
    if (me % 2 != 0) destroy_queue_pairs();
    tell("ready");
    go_on();
    printf("right\n");
    return 0;
  }
  for (unsigned n = 0; n < outstanding; ++n)
    for (unsigned j = 0; j < queue_pairs; ++j) post_next(j);
  tell("ready");
  go_on();
  const int receives = !writes;
  for (unsigned j = 0; j < queue_pairs && receives; ++j) post_receives(j);
  while (!all_done(receives)) poll_all(0);
  tell("posted");
  hear("posted"); /* whose requests have all run: ours have, too, when the peers' files are there */
  verify();
  tell("verified");
  hear("verified");
  printf("right\n");
  return 0;
}
