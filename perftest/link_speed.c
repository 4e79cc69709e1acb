/* How fast messages go between two processes that are started apart, as those of two clusters are.
 *
 *   link_speed first|second MEETING verbs|ADDRESS latency|stream BYTES COUNT
 * They meet at the Unix socket MEETING, which `first` makes, and close it before the first message. Messages go over
 * a reliable connection, or over a bare TCP socket to ADDRESS, which is of `first`'s host. With `latency` they answer
 * each other, and `first` prints microseconds of half a round trip. With `stream` `second` sends, and `first` prints
 * microseconds from one message to the next. A tenth of COUNT goes before, and is not timed. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "rc_connect.h"

#define NEED(condition)                                                               \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "link_speed: line %d: %s failed (%m)\n", __LINE__, #condition); \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

enum { kWindow = 16, kReceives = 4 * kWindow };
enum { kSend = 1, kReceive = 2 }; /* wr_id */

/* One end: of a queue pair, or of a socket. Messages lie in kWindow buffers, in turn. */
struct end {
  bool first;
  uint32_t bytes;
  char *out, *in;
  int socket; /* -1: verbs */
  struct ibv_pd* pd;
  struct ibv_cq* cq;
  struct ibv_qp* qp;
  struct ibv_mr* mr;
  long posted, owed, received;
};

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int meet(bool first, const char* path) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  NEED(strlen(path) < sizeof(at.sun_path));
  strcpy(at.sun_path, path);
  int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  NEED(s >= 0);
  if (!first) {
    while (connect(s, (struct sockaddr*)&at, sizeof(at)) != 0) {
      NEED(errno == ENOENT || errno == ECONNREFUSED); /* `first` is not there yet */
      usleep(10000);
    }
    return s;
  }
  NEED(bind(s, (struct sockaddr*)&at, sizeof(at)) == 0 && listen(s, 1) == 0);
  const int peer = accept4(s, NULL, NULL, SOCK_CLOEXEC);
  NEED(peer >= 0);
  close(s);
  return peer;
}

/* Both have come that far; each gets `bytes` of the other. */
static void swap(int peer, const void* own, void* other, size_t bytes) {
  NEED(write(peer, own, bytes) == (ssize_t)bytes && recv(peer, other, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

static char* buffer(const struct end* e, char* of, long number) { return of + (size_t)(number % kWindow) * e->bytes; }

/* --- verbs --- */

static void post_receive(struct end* e) {
  struct ibv_sge sge = {(uintptr_t)buffer(e, e->in, e->posted++), e->bytes, e->mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = kReceive, .sg_list = &sge, .num_sge = 1}, *bad;
  NEED(ibv_post_recv(e->qp, &wr, &bad) == 0);
}

static void post_send(struct end* e, long number) {
  struct ibv_sge sge = {(uintptr_t)buffer(e, e->out, number), e->bytes, e->mr->lkey};
  struct ibv_send_wr wr = {.wr_id = kSend, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
  wr.send_flags = IBV_SEND_SIGNALED;
  NEED(ibv_post_send(e->qp, &wr, &bad) == 0);
  ++e->owed;
}

static void poll_until(struct end* e, long received, long owed) {
  struct ibv_wc wc[kWindow];
  while (e->received < received || e->owed > owed) {
    const int n = ibv_poll_cq(e->cq, kWindow, wc);
    NEED(n >= 0);
    for (int i = 0; i < n; ++i) {
      if (wc[i].status != IBV_WC_SUCCESS) {
        fprintf(stderr, "link_speed: %s\n", ibv_wc_status_str(wc[i].status));
        exit(1);
      }
      if (wc[i].wr_id == kSend) {
        --e->owed;
      } else {
        ++e->received;
        post_receive(e);
      }
    }
  }
}

static void connect_verbs(struct end* e, int peer) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  NEED(list != NULL && list[0] != NULL);
  struct ibv_context* context = ibv_open_device(list[0]);
  NEED(context != NULL && (e->pd = ibv_alloc_pd(context)) != NULL);
  e->mr = ibv_reg_mr(e->pd, e->out, 2 * kWindow * (size_t)e->bytes, IBV_ACCESS_LOCAL_WRITE);
  e->cq = ibv_create_cq(context, kWindow + kReceives, NULL, NULL, 0);
  NEED(e->mr != NULL && e->cq != NULL);
  struct ibv_qp_init_attr init = {.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC};
  init.cap =
      (struct ibv_qp_cap){.max_send_wr = kWindow, .max_recv_wr = kReceives, .max_send_sge = 1, .max_recv_sge = 1};
  NEED((e->qp = ibv_create_qp(e->pd, &init)) != NULL);
  struct ibv_port_attr port;
  NEED(ibv_query_port(context, 1, &port) == 0);
  NEED(rc_init(e->qp) == 0);
  uint32_t own[2] = {e->qp->qp_num, port.lid}, other[2];
  swap(peer, own, other, sizeof(own));
  NEED(rc_connect(e->qp, port.active_mtu, other[0], (uint16_t)other[1]) == 0);
  for (int i = 0; i < kReceives; ++i) post_receive(e);
}

/* --- a bare socket --- */

static void connect_socket(struct end* e, int peer, const char* address) {
  struct sockaddr_in at = {.sin_family = AF_INET}, other;
  const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  NEED(s >= 0 && inet_pton(AF_INET, address, &at.sin_addr) == 1);
  if (e->first) {
    socklen_t length = sizeof(at);
    NEED(bind(s, (struct sockaddr*)&at, sizeof(at)) == 0 && listen(s, 1) == 0);
    NEED(getsockname(s, (struct sockaddr*)&at, &length) == 0);
    swap(peer, &at, &other, sizeof(at));
    NEED((e->socket = accept4(s, NULL, NULL, SOCK_CLOEXEC)) >= 0);
    close(s);
  } else {
    swap(peer, &at, &other, sizeof(at));
    NEED(connect(s, (struct sockaddr*)&other, sizeof(other)) == 0);
    e->socket = s;
  }
  NEED(setsockopt(e->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
}

static void write_all(int to, const char* from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = send(to, from, bytes, MSG_NOSIGNAL);
    NEED(n > 0);
    from += n;
    bytes -= (size_t)n;
  }
}

static void read_all(int from, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = recv(from, to, bytes, 0);
    NEED(n > 0);
    to += n;
    bytes -= (size_t)n;
  }
}

/* --- both --- */

static void send_one(struct end* e, long number) {
  if (e->socket >= 0) {
    write_all(e->socket, buffer(e, e->out, number), e->bytes);
  } else {
    poll_until(e, 0, kWindow - 1);
    post_send(e, number);
  }
}

static void receive_one(struct end* e, long number) {
  if (e->socket >= 0)
    read_all(e->socket, buffer(e, e->in, number), e->bytes);
  else
    poll_until(e, number + 1, kWindow);
}

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  struct end e = {.first = strcmp(argv[1], "first") == 0, .socket = -1, .bytes = (uint32_t)strtoul(argv[5], NULL, 0)};
  const bool answers = strcmp(argv[4], "latency") == 0;
  const long count = atol(argv[6]), before = count / 10 + 1;
  NEED(posix_memalign((void**)&e.out, 4096, 2 * kWindow * (size_t)e.bytes) == 0);
  memset(e.out, 1, 2 * kWindow * (size_t)e.bytes);
  e.in = e.out + kWindow * (size_t)e.bytes;

  const int peer = meet(e.first, argv[2]);
  char byte = 0;
  if (strcmp(argv[3], "verbs") == 0)
    connect_verbs(&e, peer);
  else
    connect_socket(&e, peer, argv[3]);
  swap(peer, &byte, &byte, 1);
  close(peer);

  double start = 0;
  for (long i = 0; i < before + count; ++i) {
    if (i == before) start = seconds();
    if (answers && e.first) send_one(&e, i);
    if (answers || e.first) receive_one(&e, i);
    if (!e.first) send_one(&e, i);
  }
  const double took = seconds() - start;
  if (e.socket < 0) poll_until(&e, 0, 0);
  /* Neither ends before the other one has all acknowledgements. */
  char end[sizeof(((struct sockaddr_un*)NULL)->sun_path)];
  snprintf(end, sizeof(end), "%s.end", argv[2]);
  swap(meet(e.first, end), &byte, &byte, 1);
  if (e.first) printf("%.4f\n", took / (double)(answers ? 2 * count : count) * 1e6);
  return 0;
}
