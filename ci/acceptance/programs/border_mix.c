/* Messages of every kind from each process of cluster A to each of cluster B: small and large SENDs and WRITEs,
   inline, with immediate data and without, several at a time. Each pair of processes has two queue pairs, and the
   second ones of a B share a receive queue. What message n of a queue pair is follows from n, so that B checks each
   byte, however often it goes back.

   When asked to, both sides also do what makes A depend on B, and B on what A answers: atomics and READs, each way.

   border_mix ROLE PLACES SEED ASK STOP: role a0, a1, b0 or b1; four places of border.h, a0 to b0, a0 to b1, a1 to b0,
   a1 to b1. ASK is a file of numbers and words, a line each, which are heard one after the other, also by a process
   that went back: `all` asks for what is said above, `reads` for READs by B alone, and `marks` for a WRITE to A by B
   alone. With `pause` A sends nothing until the next number but `marks` and `leave`, and with `deaf` B takes nothing.
   With `leave-...` A's processes end at once; a1 destroys its queue pairs first, moves them to RESET or to ERR, or
   closes its device, as the word says. ASK.ROLE says which number was heard. Once there is a file STOP, the next
   message of each queue pair is its last, and all end; once there is a file STOP.report, B ends when it has what is
   written there: a line for each of its processes, as "b0 N N N N", with messages of a0's and a1's queue pairs. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "border.h"

enum {
  PEERS = 2,
  QPS = 4,
  SLOTS = 128,
  LARGE = 24 << 10,
  RECEIVES = 24,
  AHEAD = 8,
  INLINE = 64,
  PAUSE_US = 1000,
  WIRING_S = 3,
  ADDS = 5
};
#define LAST (UINT64_C(1) << 63)
#define HERE "0123456789abcdef"

struct head {
  uint64_t n, kind;
};
/* `counter` is added to by the other side, `mark` is written by it, and `sixteen` is read by it. */
struct place {
  uint64_t slots, counter, mark, sixteen;
  uint32_t key, qp[2];
  uint16_t lid;
};

static struct memory {
  char slots[QPS][SLOTS][LARGE];
  char received[QPS][RECEIVES][LARGE];
  char sent[QPS][AHEAD][LARGE];
  uint64_t counter, result[PEERS], marks[PEERS], mark;
  char sixteen[16], read[PEERS][16];
} memory;

static struct connection {
  struct ibv_qp* qp;
  struct place* peer;
  uint64_t n, completed; /* messages that were posted or have come; of those posted, that have completed */
  int over;
} connections[QPS];

static struct ibv_context* context;
static struct ibv_pd* pd;
static struct ibv_cq *sends, *receives;
static struct ibv_srq* srq;
static struct ibv_mr* mr;
static struct place peers[PEERS];
static uint64_t seed, answers, wanted;
static int paused, asking;

static uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = (a + seed) * UINT64_C(0x9e3779b97f4a7c15) + b * UINT64_C(0xbf58476d1ce4e5b9);
  x ^= x >> 31;
  x *= UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 29;
}

/* Message n of a stream, which is a pair of processes and one of their queue pairs. Every second one is a SEND,
   behind a WRITE perhaps, so that the receiver hears of the WRITE. */
enum kind { SEND, SEND_IMM, SEND_INLINE, WRITE, WRITE_IMM };
static enum kind kind_of(uint64_t stream, uint64_t n) {
  const uint64_t x = mixed(stream, n) % 8;
  if (n % 2 == 0) return x < 5 ? SEND : x < 7 ? SEND_IMM : SEND_INLINE;
  return x < 4 ? WRITE : x < 6 ? WRITE_IMM : SEND;
}
static uint32_t bytes_of(uint64_t stream, uint64_t n) {
  const uint64_t x = mixed(stream + 1000, n);
  if (kind_of(stream, n) == SEND_INLINE) return 16 + (uint32_t)(x % (INLINE - 15));
  return 16 + (uint32_t)(x % 16 == 0 ? x / 16 % (LARGE - 15) : x / 16 % 500);
}
static void fill(char* to, uint64_t stream, uint64_t n, uint64_t last) {
  const uint32_t bytes = bytes_of(stream, n);
  const struct head head = {n | last, stream};
  memcpy(to, &head, sizeof(head));
  uint64_t x = mixed(stream + 2000, n);
  for (uint32_t i = sizeof(head); i < bytes; ++i, x = x * 6364136223846793005u + 1442695040888963407u)
    to[i] = (char)(x >> 56);
}
static uint64_t check(const char* what, const char* there, uint64_t stream, uint64_t n) {
  static char right[LARGE];
  uint64_t first;
  memcpy(&first, there, sizeof(first));
  fill(right, stream, n, first & LAST);
  if (memcmp(there, right, bytes_of(stream, n)) != 0) fail(what, n);
  return first & LAST;
}

static void open_adapter(void) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  struct ibv_srq_init_attr shared = {.attr = {.max_wr = QPS * RECEIVES, .max_sge = 1}};
  MUST(list != NULL && list[0] != NULL);
  context = ibv_open_device(list[0]);
  MUST(context != NULL);
  ibv_free_device_list(list);
  pd = ibv_alloc_pd(context);
  sends = ibv_create_cq(context, QPS * 4 * AHEAD, NULL, NULL, 0);
  receives = ibv_create_cq(context, QPS * 2 * RECEIVES, NULL, NULL, 0);
  srq = ibv_create_srq(pd, &shared);
  mr = ibv_reg_mr(
      pd, &memory, sizeof(memory),
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
  MUST(pd != NULL && sends != NULL && receives != NULL && srq != NULL && mr != NULL);
}

static void post_receive(int c, uint64_t i) {
  struct ibv_sge sge = {(uintptr_t)memory.received[c][i], LARGE, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = (uint64_t)c << 32 | i, .sg_list = &sge, .num_sge = 1}, *bad;
  MUST((c % 2 == 1 ? ibv_post_srq_recv(srq, &wr, (struct ibv_recv_wr**)&bad)
                   : ibv_post_recv(connections[c].qp, &wr, &bad)) == 0);
}

static void connect_pair(int peer, const char* place, int accepts) {
  struct ibv_port_attr of_port;
  MUST(ibv_query_port(context, 1, &of_port) == 0);
  struct place own = {(uintptr_t)memory.slots[2 * peer],
                      (uintptr_t)&memory.counter,
                      (uintptr_t)&memory.marks[peer],
                      (uintptr_t)memory.sixteen,
                      mr->rkey,
                      {0, 0},
                      of_port.lid};
  for (int i = 0; i < 2; ++i) {
    struct ibv_qp_init_attr init = {.send_cq = sends,
                                    .recv_cq = receives,
                                    .srq = i == 1 ? srq : NULL,
                                    .cap = {2 * AHEAD, i == 1 ? 0 : RECEIVES, 1, 1, INLINE},
                                    .qp_type = IBV_QPT_RC,
                                    .sq_sig_all = 0};
    struct connection* made = &connections[2 * peer + i];
    made->qp = ibv_create_qp(pd, &init);
    made->peer = &peers[peer];
    MUST(made->qp != NULL);
    own.qp[i] = made->qp->qp_num;
  }
  const int s = socket_to(place, accepts);
  char done;
  MUST(write(s, &own, sizeof(own)) == sizeof(own) && recv(s, &peers[peer], sizeof(own), MSG_WAITALL) == sizeof(own));
  for (int i = 0; i < 2; ++i) {
    struct ibv_qp* qp = connections[2 * peer + i].qp;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = peers[peer].qp[i],
                                .max_dest_rd_atomic = 2,
                                .min_rnr_timer = 1,
                                .ah_attr = {.dlid = peers[peer].lid, .port_num = 1}};
    MUST(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 2};
    MUST(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC) == 0);
  }
  MUST(write(s, "d", 1) == 1 && recv(s, &done, 1, MSG_WAITALL) == 1);
  close(s);
}

static void take_completions(void) {
  struct ibv_wc wc;
  int n;
  while ((n = ibv_poll_cq(sends, 1, &wc)) != 0) {
    MUST(n == 1);
    if (wc.status != IBV_WC_SUCCESS) fail(ibv_wc_status_str(wc.status), wc.wr_id);
    if (wc.wr_id >> 63)
      ++answers;
    else
      connections[wc.wr_id >> 48].completed = wc.wr_id & 0xffffffffffff;
  }
}

static void post_message(int c, uint64_t stream, uint64_t last) {
  struct connection* to = &connections[c];
  const uint64_t n = ++to->n;
  char* from = memory.sent[c][n % AHEAD];
  fill(from, stream, n, last);
  static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND, IBV_WR_RDMA_WRITE,
                                               IBV_WR_RDMA_WRITE_WITH_IMM};
  const enum kind kind = kind_of(stream, n);
  struct ibv_sge sge = {(uintptr_t)from, bytes_of(stream, n), mr->lkey};
  struct ibv_send_wr wr = {.wr_id = (uint64_t)c << 48 | n,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .opcode = opcodes[kind],
                           .imm_data = htonl((uint32_t)n),
                           .send_flags = (n % (AHEAD / 2) == 0 || last ? IBV_SEND_SIGNALED : 0) |
                                         (kind == SEND_INLINE ? IBV_SEND_INLINE : 0),
                           .wr.rdma = {to->peer->slots + ((uint64_t)(c % 2) * SLOTS + n % SLOTS) * LARGE,
                                       to->peer->key}},
                     *bad;
  MUST(ibv_post_send(to->qp, &wr, &bad) == 0);
  to->over = last != 0;
}

/* Adds to the other side's counter, and reads what it has to be read; once for each peer. Whoever waits for the
   answers takes messages meanwhile: those that come again come before answers. */
static void ask(int adds) {
  wanted = answers + PEERS * ((uint64_t)adds + 1);
  asking = 1;
  for (int peer = 0; peer < PEERS; ++peer) {
    struct ibv_send_wr* bad;
    for (int i = 0; i < adds; ++i) {
      struct ibv_sge sge = {(uintptr_t)&memory.result[peer], 8, mr->lkey};
      struct ibv_send_wr wr = {.wr_id = LAST,
                               .sg_list = &sge,
                               .num_sge = 1,
                               .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                               .send_flags = IBV_SEND_SIGNALED,
                               .wr.atomic = {peers[peer].counter, 1, 0, peers[peer].key}};
      MUST(ibv_post_send(connections[2 * peer].qp, &wr, &bad) == 0);
    }
    memset(memory.read[peer], 0, sizeof(memory.read[peer]));
    struct ibv_sge sge = {(uintptr_t)memory.read[peer], sizeof(memory.read[peer]), mr->lkey};
    struct ibv_send_wr wr = {.wr_id = LAST,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_READ,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {peers[peer].sixteen, peers[peer].key}};
    MUST(ibv_post_send(connections[2 * peer + 1].qp, &wr, &bad) == 0);
  }
}

/* Tells each peer a number. */
static void mark(uint64_t number) {
  wanted = answers + PEERS;
  memory.mark = number;
  for (int peer = 0; peer < PEERS; ++peer) {
    struct ibv_sge sge = {(uintptr_t)&memory.mark, sizeof(memory.mark), mr->lkey};
    struct ibv_send_wr wr = {.wr_id = LAST,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {peers[peer].mark, peers[peer].key}},
                       *bad;
    MUST(ibv_post_send(connections[2 * peer].qp, &wr, &bad) == 0);
  }
}

static void check_answers(void) {
  for (int peer = 0; peer < PEERS; ++peer) MUST(memcmp(memory.read[peer], HERE, sizeof(memory.read[peer])) == 0);
}

static void leave(const char* role, const char* how) {
  for (int c = 0; c < QPS && role[1] == '1'; ++c) {
    struct ibv_qp_attr attr = {.qp_state = strcmp(how, "leave-err") == 0 ? IBV_QPS_ERR : IBV_QPS_RESET};
    if (strcmp(how, "leave-close") == 0) break;
    if (strcmp(how, "leave-destroy") == 0)
      MUST(ibv_destroy_qp(connections[c].qp) == 0);
    else
      MUST(ibv_modify_qp(connections[c].qp, &attr, IBV_QP_STATE) == 0);
  }
  if (role[1] == '1' && strcmp(how, "leave-close") == 0) MUST(ibv_close_device(context) == 0); /* with all it has */
  printf("left");
  for (int c = 0; c < QPS; ++c) printf(" %llu", (unsigned long long)connections[c].completed);
  printf("\n");
  exit(0);
}

static void hear(const char* role, const char* file) {
  static uint64_t heard, told;
  char text[32], what[16] = "", path[512];
  take_completions();
  if (answers != wanted) return;
  if (heard != told) {
    if (asking) check_answers();
    asking = 0;
    told = heard;
    snprintf(path, sizeof(path), "%s.%s", file, role);
    FILE* to = fopen(path, "w");
    MUST(to != NULL);
    fprintf(to, "%llu\n", (unsigned long long)told);
    fclose(to);
  }
  FILE* from = fopen(file, "r");
  if (from == NULL) return;
  unsigned long long asked = 0;
  while (asked <= heard && fgets(text, sizeof(text), from) != NULL && sscanf(text, "%llu %15s", &asked, what) == 2) {
  }
  fclose(from);
  if (asked <= heard) return;
  heard = asked;
  const int leaves = strncmp(what, "leave", 5) == 0, marks = strcmp(what, "marks") == 0;
  paused = strcmp(what, role[0] == 'a' ? "pause" : "deaf") == 0 || (paused && (leaves || marks));
  if (leaves && role[0] == 'a') leave(role, what);
  if (strcmp(what, "all") == 0)
    ask(ADDS);
  else if (strcmp(what, "reads") == 0 && role[0] == 'b')
    ask(0);
  else if (marks && role[0] == 'b')
    mark(heard);
}

static void a(int rank, const char* role, const char* asked, const char* stop) {
  sleep(WIRING_S); /* so that a CLC may follow before the first message */
  uint64_t random = (uint64_t)rank, over = 0, rounds = 0;
  int last = 0;
  while (over < QPS) {
    take_completions();
    if (++rounds % 16 == 0) {
      hear(role, asked);
      last = access(stop, F_OK) == 0;
    }
    const int c = (int)(mixed(3000, ++random) % QPS);
    struct connection* to = &connections[c];
    if (!paused && !to->over && to->n - to->completed < AHEAD - AHEAD / 2 + 1) {
      const uint64_t stream = (uint64_t)(rank * QPS + c);
      /* The last one is a SEND, so that it is heard of. */
      post_message(c, stream, last && (to->n + 1) % 2 == 0 ? LAST : 0);
      over += to->over != 0;
    }
    if (random % 2 == 0) usleep(PAUSE_US);
  }
  for (int c = 0; c < QPS; ++c)
    while (connections[c].completed != connections[c].n) take_completions(), usleep(20);
  printf("sent");
  for (int c = 0; c < QPS; ++c) printf(" %llu", (unsigned long long)connections[c].n);
  printf(" added %llu marked %llu %llu\n", (unsigned long long)memory.counter, (unsigned long long)memory.marks[0],
         (unsigned long long)memory.marks[1]);
}

/* The number of the message that a completion is about: WRITEs without immediate data have none, and lie before it.
 */
static void receive(int rank, const struct ibv_wc* wc) {
  int c = 0;
  while (c < QPS && connections[c].qp->qp_num != wc->qp_num) ++c;
  MUST(c < QPS);
  struct connection* from = &connections[c];
  const uint64_t stream = (uint64_t)(c / 2 * QPS + 2 * rank + c % 2);
  while (kind_of(stream, from->n + 1) == WRITE) {
    ++from->n;
    check("a write is not there, though the message behind it is", memory.slots[c][from->n % SLOTS], stream, from->n);
  }
  const uint64_t n = ++from->n, of = wc->wr_id >> 32, i = wc->wr_id & 0xffffffff;
  const enum kind kind = kind_of(stream, n);
  if (kind == WRITE_IMM) {
    if (wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM) fail("a write with immediate data is due", n);
    check("a write is damaged", memory.slots[c][n % SLOTS], stream, n);
  } else {
    if (wc->opcode != IBV_WC_RECV || wc->byte_len != bytes_of(stream, n)) fail("another message is due", n);
    if (check("a message is damaged", memory.received[of][i], stream, n) != 0) from->over = 1;
    memset(memory.received[of][i], 0, bytes_of(stream, n));
  }
  if ((kind == WRITE_IMM || kind == SEND_IMM) != ((wc->wc_flags & IBV_WC_WITH_IMM) != 0))
    fail("immediate data is due, or none", n);
  if ((wc->wc_flags & IBV_WC_WITH_IMM) != 0 && ntohl(wc->imm_data) != (uint32_t)n)
    fail("other immediate data is due", n);
  post_receive((int)of, i);
}

/* A WRITE without immediate data is heard of by the message behind it. */
static int has_all_of(const char* role, const char* report) {
  char who[4];
  unsigned long long n[QPS];
  int has = 0;
  FILE* from = fopen(report, "r");
  if (from == NULL) return 0;
  while (fscanf(from, "%3s %llu %llu %llu %llu", who, &n[0], &n[1], &n[2], &n[3]) == 1 + QPS) {
    if (strcmp(who, role) != 0) continue;
    has = 1;
    for (int c = 0; c < QPS; ++c) has = has && connections[c].n + 1 >= n[c];
  }
  fclose(from);
  return has;
}

static void b(int rank, const char* role, const char* asked, const char* report) {
  uint64_t over = 0, rounds = 0;
  while (over < QPS) {
    struct ibv_wc wc;
    if (++rounds % 64 == 0) {
      hear(role, asked);
      if (has_all_of(role, report)) break;
    }
    const int n = paused ? 0 : ibv_poll_cq(receives, 1, &wc);
    MUST(n >= 0);
    if (n == 0) {
      usleep(20);
      continue;
    }
    if (wc.status != IBV_WC_SUCCESS) fail(ibv_wc_status_str(wc.status), wc.wr_id);
    receive(rank, &wc);
    for (int c = 0, ends = 0; c < QPS; ++c) {
      ends += connections[c].over;
      over = (uint64_t)ends;
    }
  }
  printf("received");
  for (int c = 0; c < QPS; ++c) printf(" %llu", (unsigned long long)connections[c].n);
  printf(" added %llu\n", (unsigned long long)memory.counter);
}

int main(int argc, char** argv) {
  if (argc != 9 || strlen(argv[1]) != 2) return 2;
  const char* role = argv[1];
  const int accepts = role[0] == 'b', rank = role[1] - '0';
  if ((role[0] != 'a' && !accepts) || rank < 0 || rank >= PEERS) return 2;
  seed = strtoull(argv[6], NULL, 0);
  char report[512];
  snprintf(report, sizeof(report), "%s.report", argv[8]);
  memcpy(memory.sixteen, HERE, sizeof(memory.sixteen));
  open_adapter();
  for (int peer = 0; peer < PEERS; ++peer)
    connect_pair(peer, argv[2 + (accepts ? 2 * peer + rank : 2 * rank + peer)], accepts);
  if (accepts) {
    for (int c = 0; c < QPS; ++c)
      for (uint64_t i = 0; i < RECEIVES; ++i) post_receive(c, i);
    b(rank, role, argv[7], report);
  } else {
    a(rank, role, argv[7], argv[8]);
  }
  return 0;
}
