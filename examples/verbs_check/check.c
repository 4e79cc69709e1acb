#include "check.h"

#include <arpa/inet.h>
#include <poll.h>
#include <string.h>
#include <time.h>

/* wr_ids of sends; receives carry their slot, below. */
enum { ID_SENDS = 1 << 20, ID_ADD, ID_SWAP, ID_READ, ID_PING };

/* What a completion wait still expects. */
struct expected {
  int receives;
  bool sends, add, swap, read;
};

/* The contents of message `sequence` of `kind`: each word differs from its neighbours and from other messages'. The
 * first and the last word are the sequence number plus one, so that polling memory needs to look at one word only. */
static uint64_t word(uint64_t kind, uint64_t sequence, size_t at) {
  return (sequence + 1) * 0x9e3779b97f4a7c15u + at * 0xc2b2ae3d27d4eb4fu + kind;
}

static void fill(uint8_t* buffer, size_t size, uint64_t kind, uint64_t sequence) {
  uint64_t* words = (uint64_t*)buffer;
  const size_t n = size / 8;
  for (size_t at = 1; at + 1 < n; ++at) words[at] = word(kind, sequence, at);
  words[0] = words[n - 1] = sequence + 1;
}

static void verify(const uint8_t* buffer, size_t size, uint64_t kind, uint64_t sequence, const char* what) {
  const uint64_t* words = (const uint64_t*)buffer;
  const size_t n = size / 8;
  if (words[0] != sequence + 1 || words[n - 1] != sequence + 1)
    die("%s %lu carries sequence numbers %ld and %ld", what, sequence, (long)words[0] - 1, (long)words[n - 1] - 1);
  for (size_t at = 1; at + 1 < n; ++at)
    if (words[at] != word(kind, sequence, at))
      die("%s %lu: word %zu is %016lx and should be %016lx", what, sequence, at, words[at], word(kind, sequence, at));
}

enum { KIND_SEND = 0x51, KIND_WRITE = 0x52 };

/* Posts the whole iteration as one chain. */
static void post_iteration(struct side* s, uint64_t iteration) {
  const struct options* o = &s->options;
  const int depth = o->depth, total = depth + 4;
  struct ibv_send_wr wrs[total], *bad = NULL;
  struct ibv_sge sges[total];
  memset(wrs, 0, sizeof(wrs));
  for (int i = 0; i < total; ++i) {
    sges[i] = (struct ibv_sge){0, o->size, s->mr->lkey};
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
    wrs[i].next = i + 1 < total ? &wrs[i + 1] : NULL;
  }
  for (int i = 0; i < depth; ++i) {
    const uint64_t sequence = iteration * (uint64_t)depth + (uint64_t)i;
    uint8_t* buffer = s->sends + (size_t)i * o->size;
    fill(buffer, o->size, KIND_SEND, sequence);
    sges[i].addr = (uintptr_t)buffer;
    wrs[i].wr_id = ID_SENDS;
    wrs[i].opcode = i % 4 == 3 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
    wrs[i].imm_data = htonl((uint32_t)sequence);
    wrs[i].send_flags = i + 1 == depth ? IBV_SEND_SIGNALED | IBV_SEND_SOLICITED : 0;
  }
  const uint64_t slot = s->peer.inbox + iteration % INBOX_SLOTS * o->size;
  struct ibv_send_wr *write = &wrs[depth], *add = write + 1, *swap = write + 2, *read = write + 3;
  fill(s->outbox, o->size, KIND_WRITE, iteration);
  sges[depth].addr = (uintptr_t)s->outbox;
  write->opcode = IBV_WR_RDMA_WRITE;
  write->wr.rdma.remote_addr = slot;
  write->wr.rdma.rkey = s->peer.rkey;
  sges[depth + 1] = (struct ibv_sge){(uintptr_t)s->add_result, 8, s->mr->lkey};
  *add = (struct ibv_send_wr){.wr_id = ID_ADD,
                              .next = swap,
                              .sg_list = add->sg_list,
                              .num_sge = 1,
                              .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                              .send_flags = IBV_SEND_SIGNALED};
  add->wr.atomic.remote_addr = s->peer.counter;
  add->wr.atomic.compare_add = iteration + 1;
  add->wr.atomic.rkey = s->peer.rkey;
  sges[depth + 2] = (struct ibv_sge){(uintptr_t)s->swap_result, 8, s->mr->lkey};
  *swap = (struct ibv_send_wr){.wr_id = ID_SWAP,
                               .next = read,
                               .sg_list = swap->sg_list,
                               .num_sge = 1,
                               .opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
                               .send_flags = IBV_SEND_SIGNALED};
  swap->wr.atomic.remote_addr = s->peer.reg;
  swap->wr.atomic.compare_add = iteration;
  swap->wr.atomic.swap = iteration + 1;
  swap->wr.atomic.rkey = s->peer.rkey;
  memset(s->readback, 0, o->size);
  sges[depth + 3].addr = (uintptr_t)s->readback;
  read->wr_id = ID_READ;
  read->opcode = IBV_WR_RDMA_READ;
  read->send_flags = IBV_SEND_SIGNALED;
  read->wr.rdma.remote_addr = slot;
  read->wr.rdma.rkey = s->peer.rkey;
  if (o->one_way) write->next = NULL;
  int failed = post_chain(s, wrs, &bad);
  if (failed) die("ibv_post_send: %s at request %ld", strerror(failed), bad ? (long)(bad - wrs) : -1L);
}

static void take_receive(struct side* s, const struct ibv_wc* wc) {
  const uint64_t sequence = s->next_receive++;
  if (wc->wr_id != s->next_slot)
    die("receive slot %lu completed before slot %lu", (unsigned long)wc->wr_id, s->next_slot);
  s->next_slot = (s->next_slot + 1) % (2 * (uint64_t)s->options.depth);
  if (wc->opcode != IBV_WC_RECV || wc->byte_len != s->options.size)
    die("message %lu: opcode %d, %u bytes", sequence, wc->opcode, wc->byte_len);
  const bool immediate = sequence % (uint64_t)s->options.depth % 4 == 3;
  if (immediate != ((wc->wc_flags & IBV_WC_WITH_IMM) != 0) ||
      (immediate && ntohl(wc->imm_data) != (uint32_t)sequence))
    die("message %lu: wrong immediate data", sequence);
  verify(s->receives + wc->wr_id * s->options.size, s->options.size, KIND_SEND, sequence, "message");
  post_receive(s, wc->wr_id);
}

static void take(struct side* s, const struct ibv_wc* wc, struct expected* e) {
  if (wc->status != IBV_WC_SUCCESS)
    die("request %lu: %s (%d), vendor error %u", (unsigned long)wc->wr_id, ibv_wc_status_str(wc->status), wc->status,
        wc->vendor_err);
  if (wc->qp_num != s->qp->qp_num) die("a completion of queue pair %u", wc->qp_num);
  if (wc->wr_id < ID_SENDS) {
    take_receive(s, wc);
    --e->receives;
    return;
  }
  if (wc->wr_id == ID_PING) {
    s->ping_open = false;
    return;
  }
  bool* open = wc->wr_id == ID_SENDS  ? &e->sends
               : wc->wr_id == ID_ADD  ? &e->add
               : wc->wr_id == ID_SWAP ? &e->swap
                                      : &e->read;
  if (!*open) die("request %lu completed twice", (unsigned long)wc->wr_id);
  *open = false;
}

enum { kPatienceMs = 3000 };

static int64_t milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A queue pair that only waits for messages never learns that its peer is gone: after a while without completions,
 * ask it for nothing. The answer is ignored, its absence is an error completion. */
static void ask_whether_alive(struct side* s) {
  struct ibv_send_wr wr = {.wr_id = ID_PING, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
  wr.wr.rdma.remote_addr = s->peer.inbox;
  wr.wr.rdma.rkey = s->peer.rkey;
  int failed = post_chain(s, &wr, &bad);
  if (failed) die("ibv_post_send: %s", strerror(failed));
  s->ping_open = true;
}

/* Sleeps until an event came, having armed the queue and looked once more. */
static int poll_or_wait(struct side* s, struct ibv_wc* wc, int capacity) {
  int n = poll_some(s, wc, capacity);
  if (n != 0 || s->channel == NULL) return n;
  if (ibv_req_notify_cq(s->cq, 0)) die("cannot arm the completion queue");
  n = poll_some(s, wc, capacity);
  if (n != 0) return n;
  struct pollfd channel = {.fd = s->channel->fd, .events = POLLIN};
  if (poll(&channel, 1, kPatienceMs) == 0) {
    if (!s->ping_open) ask_whether_alive(s);
    return 0;
  }
  struct ibv_cq* cq;
  void* context;
  if (ibv_get_cq_event(s->channel, &cq, &context)) die("ibv_get_cq_event: %m");
  if (cq != s->cq || context != s) die("an event of an unknown completion queue");
  if (++s->unacknowledged_events == 64) {
    ibv_ack_cq_events(s->cq, s->unacknowledged_events);
    s->unacknowledged_events = 0;
  }
  return 0;
}

/* Receives may run ahead of what is waited for by one iteration, since the peer may. */
static void wait_for(struct side* s, struct expected* e) {
  enum { kPollsPerLook = 1 << 14 };
  struct ibv_wc wc[16];
  int64_t since = 0;
  long idle = 0;
  while (e->receives > 0 || e->sends || e->add || e->swap || e->read) {
    int n = poll_or_wait(s, wc, 16);
    if (n < 0) die("ibv_poll_cq failed");
    for (int i = 0; i < n; ++i) take(s, &wc[i], e);
    idle = n > 0 ? 0 : idle + 1;
    if (idle == 0) since = 0;
    if (idle == 0 || idle % kPollsPerLook != 0 || s->ping_open) continue;
    if (since == 0) since = milliseconds();
    if (milliseconds() - since > kPatienceMs) ask_whether_alive(s);
  }
}

static uint64_t* inbox_slot(struct side* s, uint64_t iteration) {
  return (uint64_t*)(s->inbox + iteration % INBOX_SLOTS * s->options.size);
}

/* The peer's write of this iteration, by polling memory alone. */
static void check_inbox(struct side* s, uint64_t iteration) {
  const size_t last = s->options.size / 8 - 1;
  uint64_t* slot = inbox_slot(s, iteration);
  while (__atomic_load_n(&slot[last], __ATOMIC_ACQUIRE) != iteration + 1) {
  }
  verify((uint8_t*)slot, s->options.size, KIND_WRITE, iteration, "RDMA write");
  /* The peer has sent messages of this iteration only after its read of the one before ended: that slot is ours now.
   */
  const uint64_t seal = 0x5ea1ed0000000000u;
  if (iteration >= 1) {
    uint64_t* used = inbox_slot(s, iteration - 1);
    for (size_t at = 0; at <= last; ++at) used[at] = seal + iteration - 1;
  }
  if (iteration >= 2) {
    uint64_t* sealed = inbox_slot(s, iteration - 2);
    for (size_t at = 0; at <= last; ++at)
      if (sealed[at] != seal + iteration - 2) die("RDMA write %lu was done twice (word %zu)", iteration - 2, at);
  }
}

/* A last message each way: all that the peer did before it has happened. */
static void say_goodbye(struct side* s, struct expected* e) {
  struct ibv_sge sge = {(uintptr_t)s->sends, s->options.size, s->mr->lkey};
  struct ibv_send_wr wr = {.wr_id = ID_SENDS,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  fill(s->sends, s->options.size, KIND_SEND, (uint64_t)(s->options.iterations * s->options.depth));
  int failed = post_chain(s, &wr, &bad);
  if (failed) die("ibv_post_send: %s", strerror(failed));
  e->receives += 1;
  e->sends = true;
  wait_for(s, e);
}

int run_iterations(struct side* s) {
  const uint64_t n = (uint64_t)s->options.iterations;
  const bool answers = !s->options.one_way;
  struct expected e = {0};
  for (uint64_t i = 0; i < n; ++i) {
    e.receives += s->options.depth;
    e.sends = true;
    e.add = e.swap = e.read = answers;
    post_iteration(s, i);
    wait_for(s, &e);
    if (answers && *s->add_result != i * (i + 1) / 2)
      die("iteration %lu: fetch-and-add found %lu and should have found %lu", i, *s->add_result, i * (i + 1) / 2);
    if (answers && *s->swap_result != i) die("iteration %lu: compare-and-swap found %lu", i, *s->swap_result);
    if (answers) verify(s->readback, s->options.size, KIND_WRITE, i, "RDMA read");
    check_inbox(s, i);
    if (s->options.talk_us >= 0) talk(s->connection, i, s->options.talk_us);
  }
  say_goodbye(s, &e);
  if (answers && *s->counter != n * (n + 1) / 2)
    die("the peer's additions make %lu and should make %lu", *s->counter, n * (n + 1) / 2);
  if (answers && *s->reg != n) die("the peer's swaps made %lu and should make %lu", *s->reg, n);
  return 0;
}
