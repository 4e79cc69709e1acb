/* Devices and processes that come to a job later, or never. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

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

/* A member that opens no device before the first restart, and one that has had one from the beginning. */
static void without_device(void) {
  int peer_lid;
  uint32_t number;
  join();
  tell("joined", 0);
  await("open", &peer_lid, &number);
  make_pair(1 << 16);
  send_one(1);
  tell("opened", 0);
  await("end", &peer_lid, &number);
  send_one(2);
}

static void with_device(void) {
  int peer_lid;
  uint32_t number;
  await("joined", &peer_lid, &number);
  make_pair(1 << 16);
  checkpoint_and_go_on();
  checkpoint_and_kill();
  send_one(1);
  tell("open", 0);
  await("opened", &peer_lid, &number);
  checkpoint_and_kill();
  send_one(2);
  tell("end", 0);
}

/* A device that nobody looks for before the restart, by the name it had on the machine before. */
static void looked_for_later(void) {
  join();
  checkpoint_and_kill();
  make_pair(1 << 16);
  CHECK(strcmp(ibv_get_device_name(context->device), getenv("EXPECTED_DEVICE")) == 0);
  send_one(1);
}

/* As many READs under way at once as the device allows; another may allow fewer. */
static void as_many_reads(void) {
  struct ibv_device_attr device;
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  open_device();
  CHECK(ibv_query_device(context, &device) == 0 && device.max_qp_rd_atom > 0);
  read_depth = (uint8_t)(device.max_qp_rd_atom < 255 ? device.max_qp_rd_atom : 255);
  make_pair(1 << 16);
  checkpoint_and_kill();
  send_one(1);
  CHECK(ibv_query_qp(a, &attr, IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC, &init) == 0);
  CHECK(attr.max_rd_atomic == read_depth && attr.max_dest_rd_atomic == read_depth);
  struct ibv_qp *one = create_queue_pair(NULL), *other = create_queue_pair(NULL); /* it still allows as many */
  connect_to(one, lid, other->qp_num);
  connect_to(other, lid, one->qp_num);
}

/* Queues as large as its device has them: Soft-RoCE's, which grants more elements than are asked for where as much
 * inline data is. */
static void as_much_as_granted(void) {
  struct ibv_device_attr device;
  open_device();
  CHECK(ibv_query_device(context, &device) == 0);
  const uint32_t depth = device.max_qp_wr < 20000 ? (uint32_t)device.max_qp_wr : 20000;
  const uint32_t shared_depth = device.max_srq_wr < 70000 ? (uint32_t)device.max_srq_wr : 70000;
  make_pair(1 << 16);
  struct ibv_qp_init_attr init = {.send_cq = send_cq, .recv_cq = receive_cq, .qp_type = IBV_QPT_RC};
  init.cap = (struct ibv_qp_cap){depth, depth, 1, 1, 512};
  struct ibv_srq_init_attr shared = {.attr = {.max_wr = shared_depth, .max_sge = 1}};
  struct ibv_qp* large[2];
  for (int round = 0; round < 2; ++round) {
    CHECK(ibv_create_srq(pd, &shared) != NULL);
    for (int i = 0; i < 2; ++i) {
      struct ibv_qp_init_attr granted = init;
      CHECK((large[i] = ibv_create_qp(pd, &granted)) != NULL);
      CHECK(granted.cap.max_send_wr >= depth && granted.cap.max_inline_data >= 512);
      to_init(large[i]);
    }
    if (round == 0) checkpoint_and_kill(); /* what comes then is as large, by the limits it has seen */
  }
  send_one(1);
}

typedef int (*publisher)(const char*, const void*, size_t);
typedef int (*looker)(const char*, void*, size_t, int);

/* Whether a value is `expected`; with time to wait for it. */
static int shows(const char* name, const char* expected, int timeout_ms) {
  char value[16] = "";
  const looker lookup = (looker)dlsym(RTLD_DEFAULT, "shadowib_lookup");
  const int bytes = lookup(name, value, sizeof(value), timeout_ms);
  return bytes == (int)strlen(expected) && memcmp(value, expected, strlen(expected)) == 0;
}

static int told_again;
static void look_when_told(int event, void* unused) {
  (void)unused;
  if (event == 2) told_again = shows("first", "new", 0) && shows("second", "2", 0);
}

static publisher find_publisher(void) { return (publisher)dlsym(RTLD_DEFAULT, "shadowib_publish"); }

/* Values are the first publisher's, are replaced as a whole, and are there again after a restart: those of this
 * process and of the other, for hooks already. */
static void values_first(void) {
  char large[4097] = "", value[8];
  const publisher publish = find_publisher();
  const looker lookup = (looker)dlsym(RTLD_DEFAULT, "shadowib_lookup");
  CHECK(lookup("nothing", value, sizeof(value), 0) == -ENOENT); /* has joined */
  CHECK(lookup("nothing", value, sizeof(value), 5) == -ETIMEDOUT);
  CHECK(publish("first", "old", 3) == 0 && shows("first", "old", 0));
  CHECK(publish("first", "new", 3) == 0 && shows("first", "new", 0));
  CHECK(publish("empty", NULL, 0) == 0 && lookup("empty", NULL, 0, 0) == 0);
  CHECK(publish("a/b", "x", 1) == -EINVAL && publish("..", "x", 1) == -EINVAL && publish("", "x", 1) == -EINVAL);
  CHECK(publish(NULL, "x", 1) == -EINVAL && publish("x", NULL, 1) == -EINVAL &&
        lookup("a b", value, 1, 0) == -EINVAL);
  CHECK(publish("large", large, sizeof(large)) == -EMSGSIZE && publish("large", large, sizeof(large) - 1) == 0);
  memcpy(value, "as it was", sizeof(value));
  CHECK(lookup("large", value, sizeof(value), 0) == -EOVERFLOW && memcmp(value, "as it was", sizeof(value)) == 0);
  for (int i = 3; i < 1023; ++i) {
    char name[16];
    snprintf(name, sizeof(name), "n%d", i);
    CHECK(publish(name, &i, sizeof(i)) == 0);
  }
  CHECK(publish("n3", "as before", 9) == 0);
  CHECK(shows("second", "2", -1));
  CHECK(publish("second", "mine", 4) == -EEXIST);
  before_checkpoint(look_when_told);
  checkpoint_and_kill();
  CHECK(told_again && shows("first", "new", 0) && shows("n3", "as before", 0) && shows("second", "2", 0));
  CHECK(publish("second", "mine", 4) == -EEXIST && publish("done", "", 0) == 0);
  CHECK(publish("one-more", "x", 1) == -ENOSPC);
}

static void values_second(void) {
  const publisher publish = find_publisher();
  CHECK(shows("empty", "", -1) && shows("first", "new", 0)); /* published after "first" was replaced */
  CHECK(publish("first", "mine", 4) == -EEXIST);
  CHECK(publish("second", "2", 1) == 0);
  CHECK(shows("done", "", -1)); /* waits over the checkpoint and the restart */
}

const struct scenario job_scenarios[] = {{"opened_later", opened_later},
                                         {"first", first},
                                         {"second", second},
                                         {"without_device", without_device},
                                         {"with_device", with_device},
                                         {"looked_for_later", looked_for_later},
                                         {"as_many_reads", as_many_reads},
                                         {"as_much_as_granted", as_much_as_granted},
                                         {"values_first", values_first},
                                         {"values_second", values_second},
                                         {NULL, NULL}};
