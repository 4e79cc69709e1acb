/* rdma_cm: ids, their events and what they connect, over restarts. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "scenario.h"

enum { kPort = 7471 };

static struct rdma_event_channel* events;
static struct rdma_cm_id *listener, *active, *passive;
static char buffers[2][64];
static struct ibv_mr* regions[2];

static struct sockaddr* here(void) {
  static struct sockaddr_in address;
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return (struct sockaddr*)&address;
}

static struct rdma_cm_event* next_event(enum rdma_cm_event_type type) {
  struct rdma_cm_event* event;
  CHECK(readable(events->fd, any_time * 1000) && rdma_get_cm_event(events, &event) == 0);
  CHECK(event->event == type && event->status == 0);
  return event;
}

static void expect_event(enum rdma_cm_event_type type) { CHECK(rdma_ack_cm_event(next_event(type)) == 0); }

static void make_qp(struct rdma_cm_id* id) {
  struct ibv_qp_init_attr init = {.cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_RC};
  CHECK(rdma_create_qp(id, NULL, &init) == 0);
}

static void open_channel(void) { CHECK((events = rdma_create_event_channel()) != NULL); }

static void listen_here(void) {
  if (events == NULL) open_channel();
  CHECK(rdma_create_id(events, &listener, &listener, RDMA_PS_TCP) == 0);
  CHECK(rdma_bind_addr(listener, here()) == 0 && rdma_listen(listener, 4) == 0);
}

static void resolve(void) {
  CHECK(rdma_create_id(events, &active, NULL, RDMA_PS_TCP) == 0);
  CHECK(rdma_resolve_addr(active, NULL, here(), 2000) == 0);
  expect_event(RDMA_CM_EVENT_ADDR_RESOLVED);
  CHECK(rdma_resolve_route(active, 2000) == 0);
  expect_event(RDMA_CM_EVENT_ROUTE_RESOLVED);
  make_qp(active);
}

static void request(void) {
  /* More retries than there are, as libfabric asks for: the most are meant. */
  struct rdma_conn_param parameters = {
      .private_data = "who", .private_data_len = 4, .retry_count = 15, .rnr_retry_count = 15};
  CHECK(rdma_connect(active, &parameters) == 0);
}

static void take_request(void) {
  struct rdma_cm_event* event = next_event(RDMA_CM_EVENT_CONNECT_REQUEST);
  CHECK(event->listen_id == listener && event->param.conn.private_data_len >= 4);
  CHECK(memcmp(event->param.conn.private_data, "who", 4) == 0);
  passive = event->id;
  CHECK(passive->context == &listener);
  CHECK(rdma_ack_cm_event(event) == 0);
}

static void accept_request(void) {
  make_qp(passive);
  CHECK(rdma_accept(passive, NULL) == 0);
}

static void await_both_ends(void) {
  expect_event(RDMA_CM_EVENT_ESTABLISHED);
  expect_event(RDMA_CM_EVENT_ESTABLISHED);
}

static void register_buffers(void) {
  CHECK((regions[0] = rdma_reg_msgs(active, buffers[0], sizeof(buffers[0]))) != NULL);
  CHECK((regions[1] = rdma_reg_msgs(passive, buffers[1], sizeof(buffers[1]))) != NULL);
}

static void exchange(const char* text) {
  struct ibv_wc wc;
  CHECK(rdma_post_recv(passive, NULL, buffers[1], sizeof(buffers[1]), regions[1]) == 0);
  strcpy(buffers[0], text);
  CHECK(rdma_post_send(active, NULL, buffers[0], sizeof(buffers[0]), regions[0], IBV_SEND_SIGNALED) == 0);
  CHECK(rdma_get_recv_comp(passive, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
  CHECK(rdma_get_send_comp(active, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
  CHECK(strcmp(buffers[1], text) == 0);
}

static void destroy(struct rdma_cm_id* id, struct ibv_mr* region) {
  CHECK(rdma_dereg_mr(region) == 0);
  rdma_destroy_qp(id);
  CHECK(rdma_destroy_id(id) == 0);
}

static void disconnect_and_destroy(void) {
  CHECK(rdma_disconnect(active) == 0);
  expect_event(RDMA_CM_EVENT_DISCONNECTED);
  expect_event(RDMA_CM_EVENT_DISCONNECTED);
  CHECK(!readable(events->fd, 0));
  CHECK(rdma_disconnect(passive) == 0); /* the other end was first */
  destroy(active, regions[0]);
  destroy(passive, regions[1]);
}

static void make_connection(void) {
  resolve();
  request();
  take_request();
  accept_request();
  await_both_ends();
  register_buffers();
}

/* What is connected stays so over two restarts; what comes afterwards connects as well. */
static void connections(void) {
  listen_here();
  make_connection();
  const int fd = events->fd;
  const uint32_t number = active->qp->qp_num;
  exchange("before");
  checkpoint_and_kill();
  exchange("once");
  checkpoint_and_kill();
  exchange("twice");
  CHECK(events->fd == fd && active->qp->qp_num == number && ntohs(rdma_get_dst_port(active)) == kPort);
  disconnect_and_destroy();
  make_connection();
  exchange("again");
  disconnect_and_destroy();
  CHECK(rdma_destroy_id(listener) == 0);
  rdma_destroy_event_channel(events);
}

/* At the checkpoint the request is read and not accepted. */
static void half_made(void) {
  listen_here();
  resolve();
  request();
  take_request();
  checkpoint_and_kill();
  accept_request();
  await_both_ends();
  register_buffers();
  exchange("whole");
  disconnect_and_destroy();
}

/* At the checkpoint the request is lost on its way. */
static void lost_request(void) {
  listen_here();
  resolve();
  lose_datagrams(1);
  request();
  checkpoint_and_kill();
  take_request();
  accept_request();
  await_both_ends();
  register_buffers();
  exchange("whole");
}

/* At the checkpoint there is no listener yet; one that was asked for and given up leaves no trace. */
static void late_listener(void) {
  open_channel();
  resolve();
  request();
  rdma_destroy_qp(active);
  CHECK(rdma_destroy_id(active) == 0);
  resolve();
  request();
  checkpoint_and_kill();
  CHECK(!readable(events->fd, 0));
  listen_here();
  take_request();
  accept_request();
  await_both_ends();
  CHECK(!readable(events->fd, 0));
}

/* At the checkpoint the events lie in the channel. */
static void unread_events(void) {
  listen_here();
  resolve();
  request();
  CHECK(readable(events->fd, any_time * 1000));
  checkpoint_and_kill();
  CHECK(readable(events->fd, 0));
  take_request();
  CHECK(!readable(events->fd, 0));
  accept_request();
  await_both_ends();
  register_buffers();
  CHECK(rdma_disconnect(passive) == 0);
  CHECK(readable(events->fd, any_time * 1000));
  expect_event(RDMA_CM_EVENT_DISCONNECTED);
  expect_event(RDMA_CM_EVENT_DISCONNECTED);
}

/* A listener that was restarted is found by a process that comes then; its port is taken. */
static void listener_of_another(void) {
  listen_here();
  checkpoint_and_kill();
  tell("restarted", 0);
  take_request();
  accept_request();
  expect_event(RDMA_CM_EVENT_ESTABLISHED);
  expect_event(RDMA_CM_EVENT_DISCONNECTED);
}

static void caller(void) {
  struct rdma_cm_id* second;
  open_channel();
  CHECK(rdma_create_id(events, &second, NULL, RDMA_PS_TCP) == 0);
  CHECK(rdma_bind_addr(second, here()) != 0);
  resolve();
  request();
  expect_event(RDMA_CM_EVENT_ESTABLISHED);
  CHECK(rdma_disconnect(active) == 0);
  expect_event(RDMA_CM_EVENT_DISCONNECTED);
}

static void* next_of_closed(void* channel) {
  struct rdma_cm_event* event;
  /* As natively: it was there in time and waits for ever, or it finds the descriptor closed. */
  if (rdma_get_cm_event(channel, &event) == 0 || errno != EBADF) {
    fprintf(stderr, "the event of a closed channel: %s\n", strerror(errno));
    _exit(3);
  }
  return NULL;
}

/* A thread asks for the next event while another one closes the channel, which takes a moment as long as there are
 * ids. If it comes late it may find the next channel, as natively, but no descriptor that only the shim has: a
 * channel has the lowest number that is free, except where another thread's open comes between. */
static void closing_channels(void) {
  static struct rdma_event_channel copies[20];
  int lowest = 0;
  for (int i = 0; i < 20; ++i) {
    pthread_t thread;
    const int number = dup(STDERR_FILENO);
    CHECK(number >= 0 && close(number) == 0);
    open_channel();
    if (events->fd == number) ++lowest;
    for (int j = 0; j < 20; ++j) {
      struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
      struct rdma_cm_id* id;
      CHECK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
      CHECK(rdma_bind_addr(id, (struct sockaddr*)&any) == 0 && rdma_listen(id, 1) == 0);
    }
    copies[i] = *events;
    CHECK(pthread_create(&thread, NULL, next_of_closed, &copies[i]) == 0 && pthread_detach(thread) == 0);
    rdma_destroy_event_channel(events);
  }
  CHECK(lowest > 10);
}

static volatile int rounds, ending; /* of a thread's ids */

static void* ids_that_come_and_go(void* unused) {
  while (!ending) {
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct rdma_cm_id* id;
    CHECK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(id, (struct sockaddr*)&any) == 0 && rdma_destroy_id(id) == 0);
    ++rounds;
  }
  return unused;
}

static void await_rounds(int more) {
  const int from = rounds;
  for (double end = now() + any_time; rounds < from + more; usleep(1000)) CHECK(now() < end);
}

/* The checkpoint finds a thread in the middle of a command. */
static void busy_manager(void) {
  pthread_t thread;
  open_channel();
  CHECK(pthread_create(&thread, NULL, ids_that_come_and_go, NULL) == 0);
  for (int i = 0; i < 2; ++i) {
    await_rounds(3);
    checkpoint_and_kill();
  }
  await_rounds(3);
  ending = 1;
  CHECK(pthread_join(thread, NULL) == 0);
  rdma_destroy_event_channel(events);
}

const struct scenario connection_scenarios[] = {
    {"connections", connections},      {"half_made", half_made},
    {"late_listener", late_listener},  {"unread_events", unread_events},
    {"listener", listener_of_another}, {"caller", caller},
    {"lost_request", lost_request},    {"closing_channels", closing_channels},
    {"busy_manager", busy_manager},    {NULL, NULL}};
