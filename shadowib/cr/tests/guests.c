/* Guests: clients that are in no checkpoint. A member has queue pairs to some that wait, are stopped, or hold it up;
 * a checkpoint waits for none of them, and to the restarted member they are dead. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scenario.h"

enum { kKey = 0x1234, kGuest = 1 };

static const char* named(const char* what, const char* role) {
  static char name[64];
  snprintf(name, sizeof(name), "%s_%s", what, role);
  return name;
}

static int is_member(void) { return ((int (*)(void))dlsym(RTLD_DEFAULT, "shadowib_is_member"))(); }
static int join_as(int role) { return ((int (*)(int))dlsym(RTLD_DEFAULT, "shadowib_join_as"))(role); }

/* Meets the process of the other name: each has a queue pair for the other. */
static struct ibv_qp* meet(const char* here, const char* there, int* peer_lid) {
  uint32_t number;
  struct ibv_qp* qp = create_queue_pair(NULL);
  tell(here, qp->qp_num);
  await(there, peer_lid, &number);
  connect_to(qp, *peer_lid, number);
  return qp;
}

static struct ibv_qp* serve(const char* role, int* peer_lid) {
  char here[64], there[64];
  snprintf(here, sizeof(here), "server_%s", role);
  snprintf(there, sizeof(there), "client_%s", role);
  return meet(here, there, peer_lid);
}

static void await_stop(pid_t pid) {
  char path[64], state = 0;
  snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
  while (state != 'T') {
    FILE* file = fopen(path, "r");
    CHECK(file != NULL && fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
    fclose(file);
    usleep(1000);
  }
}

static void send_datagram(struct ibv_qp* qp, uint64_t id, struct ibv_ah* ah, uint32_t number) {
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = number;
  wr.wr.ud.remote_qkey = kKey;
  CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Serves a guest that is idle, one that posts no receive, and one that is stopped, with a datagram to it. Request 1
 * is for the second, 2 for the third, 3 is the datagram. */
static void guest_server(void) {
  int peer_lid, unused;
  uint32_t number, pid;
  make_pair(1 << 16);
  struct ibv_qp* idle = serve("idle", &peer_lid);
  struct ibv_qp* busy = serve("busy", &peer_lid);
  struct ibv_qp* stopped = serve("stopped", &peer_lid);
  struct ibv_qp* datagrams = create_datagram_qp(kKey);
  await("datagrams", &peer_lid, &number);
  struct ibv_ah_attr to = address_of(peer_lid);
  struct ibv_ah* ah = ibv_create_ah(pd, &to);
  CHECK(ah != NULL);
  send_datagram(datagrams, 3, ah, number);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  post_receive(idle, 7, 64);
  post_receive(busy, 8, 64);
  tell("go_on", 0);
  await("stops", &unused, &pid);
  await_stop((pid_t)pid);
  post(busy, IBV_WR_SEND, 1, 64, 0);
  post(stopped, IBV_WR_SEND, 2, 64, 0);
  send_datagram(datagrams, 3, ah, number);
  await("go", &unused, &number); /* the test has asked who is there */
  checkpoint_and_go_on();
  /* Nothing has changed: what was outstanding is, and what has come comes. */
  expect_nothing_more();
  send_one(4);
  tell("receive", 0);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  kill((pid_t)pid, SIGCONT);
  int seen = 0;
  for (int i = 0; i < 2; ++i) {
    struct ibv_wc wc;
    for (double end = now() + any_time; ibv_poll_cq(send_cq, 1, &wc) == 0;) CHECK(now() < end);
    CHECK(wc.status == IBV_WC_SUCCESS && (wc.wr_id == 2 || wc.wr_id == 3));
    seen |= 1 << wc.wr_id;
  }
  CHECK(seen == (1 << 2 | 1 << 3));
  tell("served", 0); /* a guest that stops before it has answered leaves both outstanding */
  await("stops_again", &unused, &pid);
  await_stop((pid_t)pid);
  post(busy, IBV_WR_SEND, 1, 64, 0);
  checkpoint_and_kill();
  /* The guests have died: what was for them ends, and a receive from an idle one, too. */
  EXPECT(send_cq, 1, IBV_WC_RETRY_EXC_ERR);
  int flushed = 0;
  for (int i = 0; i < 2; ++i) {
    struct ibv_wc wc;
    for (double end = now() + any_time; ibv_poll_cq(receive_cq, 1, &wc) == 0;) CHECK(now() < end);
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && (wc.wr_id == 7 || wc.wr_id == 8));
    flushed |= 1 << (wc.wr_id - 7);
  }
  CHECK(flushed == 3);
  struct ibv_qp* all[] = {idle, busy, stopped};
  for (int i = 0; i < 3; ++i) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(all[i], &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
  }
  send_one(5); /* the member's own connection is as it was */
  struct ibv_qp* again = serve("new", &peer_lid);
  await("new_receives", &unused, &number);
  post(again, IBV_WR_SEND, 6, 64, 0);
  EXPECT(send_cq, 6, IBV_WC_SUCCESS);
}

/* The datagrams that wait for a stopped guest when the job is killed: to the restarted program they have been sent.
 */
static void datagrams_to_guest(void) {
  int peer_lid, unused;
  uint32_t number, pid;
  make_pair(1 << 16);
  struct ibv_qp* stopped = serve("stopped", &peer_lid);
  struct ibv_qp* datagrams = create_datagram_qp(kKey);
  struct ibv_qp* own = create_datagram_qp(kKey);
  await("datagrams", &peer_lid, &number);
  struct ibv_ah_attr to = address_of(peer_lid), here = address_of(lid);
  struct ibv_ah *ah = ibv_create_ah(pd, &to), *to_itself = ibv_create_ah(pd, &here);
  CHECK(stopped != NULL && ah != NULL && to_itself != NULL);
  send_datagram(datagrams, 3, ah, number);
  EXPECT(send_cq, 3, IBV_WC_SUCCESS);
  tell("go_on", 0);
  await("stops", &unused, &pid);
  await_stop((pid_t)pid);
  post_receive(own, 9, 512);
  send_datagram(datagrams, 10, ah, number);
  send_datagram(datagrams, 11, to_itself,
                own->qp_num); /* may arrive before or after the checkpoint, or not, but once */
  checkpoint_and_kill();
  EXPECT(send_cq, 10, IBV_WC_SUCCESS);
  EXPECT(send_cq, 11, IBV_WC_SUCCESS);
  post_receive(own, 12, 512);
  send_datagram(datagrams, 13, to_itself, own->qp_num);
  EXPECT(send_cq, 13, IBV_WC_SUCCESS);
  struct ibv_wc wc;
  int received = 0; /* 11 at most once, and 13 */
  for (double end = now() + any_time; received == 0 || ibv_poll_cq(receive_cq, 1, &wc) != 0;) {
    CHECK(now() < end);
    if (received == 0 && ibv_poll_cq(receive_cq, 1, &wc) == 0) continue;
    CHECK(wc.status == IBV_WC_SUCCESS && ++received <= 2);
  }
}

static void guest_client(void) {
  const char* role = getenv("GUEST_ROLE");
  char here[64], there[64];
  int unused;
  uint32_t number;
  snprintf(here, sizeof(here), "client_%s", role);
  snprintf(there, sizeof(there), "server_%s", role);
  open_device();
  allocate(1 << 16);
  CHECK(!is_member() && join_as(kGuest) == 0 && take_checkpoint(0) == -EINVAL);
  struct ibv_qp* qp = meet(here, there, &unused);
  if (strcmp(role, "busy") == 0) {
    await("receive", &unused, &number);
    post_receive(qp, 1, 64);
    EXPECT(receive_cq, 1, IBV_WC_SUCCESS);
  }
  if (strcmp(role, "stopped") == 0) {
    struct ibv_qp* datagrams = create_datagram_qp(kKey);
    post_receive(datagrams, 2, 512);
    post_receive(datagrams, 3, 512);
    post_receive(qp, 1, 64);
    tell("datagrams", datagrams->qp_num);
    EXPECT(receive_cq, 2, IBV_WC_SUCCESS);
    await("go_on", &unused, &number);
    tell("stops", (uint32_t)getpid());
    raise(SIGSTOP);
    await("served", &unused, &number);
    tell("stops_again", (uint32_t)getpid());
    raise(SIGSTOP);
  }
  if (strcmp(role, "new") == 0) {
    post_receive(qp, 1, 64);
    tell("new_receives", 0);
    EXPECT(receive_cq, 1, IBV_WC_SUCCESS);
    return;
  }
  for (;;) pause();
}

/* A member that forks twice; the grandchild becomes a guest and is served. It sees the member's memory of that
 * moment. */
static int seen_by_guest;

static void be_guest(const char* role) {
  int unused;
  CHECK(join_as(kGuest) == 0 && !is_member());
  open_device();
  allocate(1 << 16);
  char here[64], there[64];
  snprintf(here, sizeof(here), "client_%s", role);
  snprintf(there, sizeof(there), "server_%s", role);
  struct ibv_qp* qp = meet(here, there, &unused);
  post_receive(qp, 1, 64);
  tell(named("receives", role), (uint32_t)seen_by_guest);
  EXPECT(receive_cq, 1, IBV_WC_SUCCESS);
  for (;;) pause();
}

static struct ibv_qp* fork_guest(const char* role, int seen) {
  int peer_lid, unused, status;
  uint32_t number;
  seen_by_guest = seen;
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (fork() != 0) _exit(0);
    setsid();
    be_guest(role);
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  struct ibv_qp* qp = serve(role, &peer_lid);
  await(named("receives", role), &unused, &number);
  CHECK((int)number == seen);
  post(qp, IBV_WR_SEND, 1, 64, 0);
  EXPECT(send_cq, 1, IBV_WC_SUCCESS);
  return qp;
}

static void guests_by_fork(void) {
  make_pair(1 << 16);
  CHECK(join_as(kGuest) == -EBUSY && is_member());
  struct ibv_qp* first = fork_guest("first", 11);
  post_receive(first, 7, 64);
  checkpoint_and_go_on();
  expect_nothing_more();
  checkpoint_and_kill();
  EXPECT(receive_cq, 7, IBV_WC_WR_FLUSH_ERR);
  send_one(2);
  post_receive(fork_guest("second", 22), 8, 64);
  checkpoint_and_kill();
  EXPECT(receive_cq, 8, IBV_WC_WR_FLUSH_ERR);
  send_one(3);
}

/* On a device a guest that may write into memory that is being saved is refused by name. */
static void writing_guest(void) {
  int peer_lid;
  make_pair(1 << 16);
  struct ibv_qp* qp = serve("idle", &peer_lid);
  CHECK(take_checkpoint(0) == -EOPNOTSUPP);
  struct ibv_qp_attr attr = {.qp_access_flags = 0};
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS) == 0);
  checkpoint_and_go_on();
}

/* What a master of workers does for `shadowib worker` and `restart --workers`. */
static int workers_asked_for;

static int look_up(const char* name, int timeout_ms) {
  char value[16] = "";
  int (*lookup)(const char*, void*, size_t, int) =
      (int (*)(const char*, void*, size_t, int))dlsym(RTLD_DEFAULT, "shadowib_lookup");
  const int bytes = lookup(name, value, sizeof(value) - 1, timeout_ms);
  return bytes < 0 ? bytes : atoi(value);
}

static void publish(const char* name, const char* value) {
  int (*publish_value)(const char*, const void*, size_t) =
      (int (*)(const char*, const void*, size_t))dlsym(RTLD_DEFAULT, "shadowib_publish");
  CHECK(publish_value(name, value, strlen(value)) == 0);
}

static void look_for_workers(int event, void* unused) {
  (void)unused;
  if (event != 2) return;
  workers_asked_for = look_up("mw.workers", 0);
}

static void master_of_workers(void) {
  join();
  before_checkpoint(look_for_workers);
  tell("joined", 0);
  int unused;
  uint32_t number;
  await("be_master", &unused, &number);
  publish("mw.taken", "0");
  CHECK(look_up("mw.wish.0", -1) == 3);
  publish("mw.taken", "1");
  CHECK(look_up("mw.wish.1", -1) == 1);
  publish("mw.taken", "2");
  checkpoint_and_kill();
  CHECK(workers_asked_for == 16);
  CHECK(look_up("mw.wish.2", -1) == 2);
  publish("mw.taken", "3");
}

const struct scenario guest_scenarios[] = {{"guest_server", guest_server},
                                           {"guest_client", guest_client},
                                           {"datagrams_to_guest", datagrams_to_guest},
                                           {"guests_by_fork", guests_by_fork},
                                           {"writing_guest", writing_guest},
                                           {"master_of_workers", master_of_workers},
                                           {NULL, NULL}};
