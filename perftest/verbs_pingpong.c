/* Ping-pong over a reliable connection between two processes on this machine, timed as fi_pingpong times it:
 * time per transfer is half a round trip, bandwidth is what crosses in that time.
 *
 *   verbs_pingpong --sizes 64,1048576 --iterations 10000 [--cores 0,1]
 * --cores binds the two processes, all threads of theirs included. Prints a line per size: bytes, microseconds per
 * transfer, MB/s (10^6). Iterations shrink for large sizes. */
#include <errno.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rc_connect.h"

#define NEED(condition)                                                                   \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      fprintf(stderr, "verbs_pingpong: line %d: %s failed (%m)\n", __LINE__, #condition); \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)

enum { kMaxBytes = 4 << 20, kReceives = 8 };

struct end {
  struct ibv_context* context;
  struct ibv_cq* cq;
  struct ibv_qp* qp;
  struct ibv_mr* mr;
  char *send, *receive;
  int owed_sends; /* signaled sends not yet completed */
  int received;
};

static void post_receive(struct end* e, uint32_t bytes) {
  struct ibv_sge sge = {(uintptr_t)e->receive, bytes, e->mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
  NEED(ibv_post_recv(e->qp, &wr, &bad) == 0);
}

static void post_send(struct end* e, uint32_t bytes) {
  struct ibv_sge sge = {(uintptr_t)e->send, bytes, e->mr->lkey};
  struct ibv_send_wr wr = {.wr_id = 2,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  NEED(ibv_post_send(e->qp, &wr, &bad) == 0);
  ++e->owed_sends;
}

static void poll_until(struct end* e, int receives, int owed_sends) {
  struct ibv_wc wc[4];
  while (e->received < receives || e->owed_sends > owed_sends) {
    int n = ibv_poll_cq(e->cq, 4, wc);
    NEED(n >= 0);
    for (int i = 0; i < n; ++i) {
      if (wc[i].status != IBV_WC_SUCCESS) {
        fprintf(stderr, "verbs_pingpong: %s\n", ibv_wc_status_str(wc[i].status));
        exit(1);
      }
      if (wc[i].wr_id == 1)
        ++e->received;
      else
        --e->owed_sends;
    }
  }
}

static void set_up(struct end* e, int peer) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  NEED(list != NULL && list[0] != NULL);
  NEED((e->context = ibv_open_device(list[0])) != NULL);
  struct ibv_pd* pd = ibv_alloc_pd(e->context);
  NEED(pd != NULL);
  NEED(posix_memalign((void**)&e->send, 4096, 2 * kMaxBytes) == 0);
  memset(e->send, 1, 2 * kMaxBytes);
  e->receive = e->send + kMaxBytes;
  NEED((e->mr = ibv_reg_mr(pd, e->send, 2 * kMaxBytes, IBV_ACCESS_LOCAL_WRITE)) != NULL);
  NEED((e->cq = ibv_create_cq(e->context, 64, NULL, NULL, 0)) != NULL);
  struct ibv_qp_init_attr init = {
      .send_cq = e->cq,
      .recv_cq = e->cq,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = 16, .max_recv_wr = kReceives, .max_send_sge = 1, .max_recv_sge = 1}};
  NEED((e->qp = ibv_create_qp(pd, &init)) != NULL);
  struct ibv_port_attr port;
  NEED(ibv_query_port(e->context, 1, &port) == 0);
  NEED(rc_init(e->qp) == 0);

  uint32_t own[2] = {e->qp->qp_num, port.lid}, other[2];
  NEED(write(peer, own, sizeof(own)) == sizeof(own) && read(peer, other, sizeof(other)) == sizeof(other));
  NEED(rc_connect(e->qp, port.active_mtu, other[0], (uint16_t)other[1]) == 0);
  NEED(write(peer, own, 1) == 1 && read(peer, other, 1) == 1);
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

/* A barrier over the socket, so that both have receives posted. */
static void meet(int peer) {
  char byte = 0;
  NEED(write(peer, &byte, 1) == 1 && read(peer, &byte, 1) == 1);
}

static double measure(struct end* e, int peer, bool first, uint32_t bytes, long iterations) {
  const long warm_up = iterations / 10 + 1;
  e->received = 0;
  post_receive(e, bytes);
  meet(peer);
  double start = 0;
  for (long i = -warm_up; i < iterations; ++i) {
    if (i == 0) start = seconds();
    if (first) post_send(e, bytes);
    poll_until(e, 1, 8);
    e->received = 0;
    if (i + 1 < iterations) post_receive(e, bytes);
    if (!first) post_send(e, bytes);
  }
  poll_until(e, 0, 0);
  double elapsed = seconds() - start;
  meet(peer);
  return elapsed / (2.0 * iterations) * 1e6;
}

static void bind_to(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  NEED(sched_setaffinity(0, sizeof(cores), &cores) == 0);
}

int main(int argc, char** argv) {
  static const struct option kLong[] = {
      {"sizes", 1, 0, 's'}, {"iterations", 1, 0, 'n'}, {"cores", 1, 0, 'c'}, {0, 0, 0, 0}};
  int cores[2] = {-1, -1};
  char sizes[512] = "64,1048576";
  long iterations = 10000;
  for (int c; (c = getopt_long(argc, argv, "", kLong, NULL)) != -1;) {
    if (c == 's')
      snprintf(sizes, sizeof(sizes), "%s", optarg);
    else if (c == 'n')
      iterations = atol(optarg);
    else if (c != 'c' || sscanf(optarg, "%d,%d", &cores[0], &cores[1]) != 2)
      return 2;
  }
  int sockets[2];
  NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
  pid_t child = fork();
  NEED(child >= 0);
  const bool first = child != 0;
  const int peer = sockets[first];
  close(sockets[!first]);
  if (cores[0] >= 0) bind_to(cores[!first]);
  struct end e = {0};
  set_up(&e, peer);
  for (char* at = strtok(sizes, ","); at != NULL; at = strtok(NULL, ",")) {
    const uint32_t bytes = (uint32_t)strtoul(at, NULL, 0);
    NEED(bytes <= kMaxBytes);
    long n = bytes > 16384 ? iterations * 16384 / bytes + 20 : iterations;
    double microseconds = measure(&e, peer, first, bytes, n);
    if (first) printf("%u %.3f %.2f\n", bytes, microseconds, bytes / microseconds);
    fflush(stdout);
  }
  if (!first) _exit(0);
  int status = 0;
  NEED(waitpid(child, &status, 0) == child && status == 0);
  return 0;
}
