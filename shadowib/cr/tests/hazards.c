/* What is dangerous about the moment of a checkpoint, brought about by a backend that misbehaves on command
 * (ib2tcp/testing/wayward/control.h). For hazards_test.py, which runs each with the guard against it and without. */
#include "hazards.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kPatience = 2000 }; /* polls */

struct ibv_qp *c, *d;

void holds(int condition, const char* otherwise, const char* file, int line) {
  if (condition) return;
  fprintf(stderr, "%s:%d: %s\n", file, line, otherwise);
  exit(1);
}

static int control(void) {
  const char* name = getenv("SHADOWIB_WAYWARD");
  CHECK(name != NULL);
  const int fd = open(name, O_RDWR | O_CLOEXEC);
  CHECK(fd >= 0);
  return fd;
}

void command(size_t offset, uint32_t value) {
  const int fd = control();
  CHECK(pwrite(fd, &value, sizeof(value), (off_t)offset) == sizeof(value) && close(fd) == 0);
}

uint32_t ask(size_t offset) {
  uint32_t value;
  const int fd = control();
  CHECK(pread(fd, &value, sizeof(value), (off_t)offset) == sizeof(value) && close(fd) == 0);
  return value;
}

void withhold_answers(void) {
  COMMAND(hold_sends, 1);
  COMMAND(hold_acknowledgements, 1);
}

void checkpoint_and_kill_answering_late(void) {
  COMMAND(patience, kPatience);
  checkpoint_and_kill();
}

void make_free_pair(void) {
  const int access =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  qp_access = (unsigned)access;
  make_pair(1 << 16);
  CHECK(ibv_dereg_mr(mr) == 0);
  CHECK((mr = ibv_reg_mr(pd, memory, 1 << 16, access)) != NULL);
}

void make_second_pair(void) {
  c = create_queue_pair(NULL);
  d = create_queue_pair(NULL);
  connect_to(c, lid, d->qp_num);
  connect_to(d, lid, c->qp_num);
}

volatile char* place(int n) { return memory + 1024 * n; }

void fill(int n, int c) { memset((char*)place(n), c, kBytes); }

void take_in(struct ibv_qp* qp, uint64_t id, int to) {
  struct ibv_sge sge = {(uintptr_t)place(to), kBytes, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

struct ibv_send_wr request(enum ibv_wr_opcode opcode, uint64_t id, struct ibv_sge* from, int to, unsigned flags) {
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = from, .num_sge = 1, .opcode = opcode, .send_flags = flags};
  wr.wr.rdma.remote_addr = (uintptr_t)place(to);
  wr.wr.rdma.rkey = mr->rkey;
  return wr;
}

void give(struct ibv_qp* qp, enum ibv_wr_opcode opcode, uint64_t id, int from, int to, unsigned flags) {
  struct ibv_sge sge = {(uintptr_t)place(from), kBytes, mr->lkey};
  struct ibv_send_wr wr = request(opcode, id, &sge, to, flags), *bad;
  CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

void write_to(struct ibv_qp* qp, uint64_t id, int from, int to, unsigned flags) {
  give(qp, IBV_WR_RDMA_WRITE, id, from, to, flags);
}

void await_char(int n, int c) {
  for (double end = now() + any_time; place(n)[kBytes - 1] != (char)c; usleep(100))
    HOLDS(now() < end, "what was written has not come");
}

/* Of H18: see connections.c, whose first request it loses. */
void lose_datagrams(uint32_t count) { COMMAND(lose_datagrams, count); }
