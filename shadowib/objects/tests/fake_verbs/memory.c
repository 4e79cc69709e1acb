/* Protection domains, memory regions, completion queues and their channels. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

static FakeMr* g_mrs[kFakeMost + 0x20]; /* by number */
static uint32_t g_mrs_made, g_cqs_made, g_pds_made;

struct ibv_pd* ibv_alloc_pd(struct ibv_context* context) {
  ENTER();
  struct ibv_pd* pd = calloc(1, sizeof(*pd) + FAKE_PRIVATE);
  pd->context = context;
  pd->handle = fake_number(&g_pds_made);
  return pd;
}

int ibv_dealloc_pd(struct ibv_pd* pd) {
  ENTER();
  free(pd);
  return 0;
}

static int is_mapped(void* address, size_t bytes) {
  const uintptr_t first = (uintptr_t)address & ~(uintptr_t)4095, end = (uintptr_t)address + bytes;
  unsigned char resident;
  for (uintptr_t page = first; page < end; page += 4096)
    if (mincore((void*)page, 4096, &resident) != 0) return 0;
  return 1;
}

#undef ibv_reg_mr_iova2
struct ibv_mr* ibv_reg_mr_iova2(struct ibv_pd* pd, void* address, size_t bytes, uint64_t iova, unsigned access) {
  ENTER();
  if (bytes == 0 || !is_mapped(address, bytes)) { /* as Soft-RoCE has it, none of nothing */
    errno = bytes == 0 ? EINVAL : EFAULT;
    return NULL;
  }
  FakeMr* fake = calloc(1, sizeof(*fake));
  fake_lock();
  const uint32_t number = fake_number(&g_mrs_made);
  fake->mr =
      (struct ibv_mr){pd->context, pd, address, bytes, number, number << 8 | FAKE_LKEY, number << 8 | FAKE_RKEY};
  fake->iova = iova;
  fake->access = (int)access;
  g_mrs[number] = fake;
  fake_unlock();
  fake_tell("region lkey 0x%x rkey 0x%x\n", fake->mr.lkey, fake->mr.rkey);
  return &fake->mr;
}

int ibv_dereg_mr(struct ibv_mr* mr) {
  ENTER();
  fake_lock();
  g_mrs[mr->handle] = NULL;
  fake_unlock();
  free(mr);
  return 0;
}

int ibv_rereg_mr(struct ibv_mr* mr, int flags, struct ibv_pd* pd, void* address, size_t bytes, int access) {
  ENTER();
  FakeMr* fake = (FakeMr*)mr;
  if (flags == 0 || ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0 && !is_mapped(address, bytes))) {
    errno = EINVAL;
    return IBV_REREG_MR_ERR_INPUT;
  }
  fake_lock();
  if (flags & IBV_REREG_MR_CHANGE_PD) mr->pd = pd;
  if (flags & IBV_REREG_MR_CHANGE_ACCESS) fake->access = access;
  if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
    mr->addr = address;
    mr->length = bytes;
    fake->iova = (uintptr_t)address;
  }
  fake_unlock();
  return 0;
}

FakeMr* fake_find_mr(uint32_t key, int remote) {
  FakeMr* fake = key >> 8 < kFakeMost + 0x20 ? g_mrs[key >> 8] : NULL;
  return fake != NULL && (remote ? fake->mr.rkey : fake->mr.lkey) == key ? fake : NULL;
}

struct ibv_comp_channel* ibv_create_comp_channel(struct ibv_context* context) {
  ENTER();
  FakeChannel* fake = calloc(1, sizeof(*fake));
  fake->channel.context = context;
  fake->channel.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  return &fake->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel* channel) {
  ENTER();
  if (channel->refcnt != 0) return EBUSY;
  close(channel->fd);
  free(channel);
  return 0;
}

struct ibv_cq* ibv_create_cq(struct ibv_context* context, int cqe, void* cq_context, struct ibv_comp_channel* channel,
                             int vector) {
  ENTER();
  if (cqe < 1 || cqe > fake_most_entries() || vector != 0) {
    errno = EINVAL;
    return NULL;
  }
  FakeCq* fake = calloc(1, sizeof(*fake));
  fake->cq.context = context;
  fake->cq.channel = channel;
  fake->cq.cq_context = cq_context;
  fake->cq.handle = fake_number(&g_cqs_made);
  fake->cq.cqe = cqe + FAKE_FLIP; /* a device may give more */
  fake->entries = calloc((size_t)fake->cq.cqe, sizeof(*fake->entries));
  if (channel != NULL) ++channel->refcnt;
  return &fake->cq;
}

int ibv_destroy_cq(struct ibv_cq* cq) {
  ENTER();
  if (cq->channel != NULL) --cq->channel->refcnt;
  free(((FakeCq*)cq)->entries);
  free(cq);
  return 0;
}

int ibv_resize_cq(struct ibv_cq* cq, int cqe) {
  ENTER();
  if (cqe < 1 || cqe > fake_most_entries()) return EINVAL;
  FakeCq* fake = (FakeCq*)cq;
  fake_lock();
  const unsigned held = fake->tail - fake->head, size = (unsigned)cqe + FAKE_FLIP;
  struct ibv_wc* entries = held <= size ? calloc(size, sizeof(*entries)) : NULL;
  if (entries != NULL) {
    for (unsigned i = 0; i < held; ++i) entries[i] = fake->entries[(fake->head + i) % (unsigned)cq->cqe];
    free(fake->entries);
    fake->entries = entries;
    fake->head = 0;
    fake->tail = held;
    cq->cqe = (int)size;
  }
  fake_unlock();
  return entries != NULL ? 0 : EINVAL;
}

void fake_complete(struct ibv_cq* cq, const struct ibv_wc* wc, int solicited) {
  FakeCq* fake = (FakeCq*)cq;
  if (fake->tail - fake->head == (unsigned)cq->cqe) {
    static const char text[] = FAKE_NAME ": a completion queue overruns\n";
    (void)!write(2, text, sizeof(text) - 1);
    abort();
  }
  fake->entries[fake->tail++ % (unsigned)cq->cqe] = *wc;
  if (cq->channel == NULL || fake->armed == 0) return;
  if (fake->armed == 1 && !solicited && wc->status == IBV_WC_SUCCESS) return;
  fake->armed = 0;
  const struct ibv_async_event event = {.element.cq = cq};
  fake_push_event(&((FakeChannel*)cq->channel)->events, cq->channel->fd, &event);
}

int fake_poll_cq(struct ibv_cq* cq, int count, struct ibv_wc* wc) {
  ENTER();
  FakeCq* fake = (FakeCq*)cq;
  int taken = 0;
  fake_lock();
  for (; taken < count && fake->head != fake->tail; ++taken)
    wc[taken] = fake->entries[fake->head++ % (unsigned)cq->cqe];
  fake_unlock();
  return taken;
}

int fake_req_notify_cq(struct ibv_cq* cq, int solicited_only) {
  ENTER();
  fake_lock();
  ((FakeCq*)cq)->armed = solicited_only ? 1 : 2;
  fake_unlock();
  return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel* channel, struct ibv_cq** cq, void** cq_context) {
  ENTER();
  struct ibv_async_event event;
  if (fake_pop_event(&((FakeChannel*)channel)->events, channel->fd, &event) != 0) return -1;
  *cq = event.element.cq;
  *cq_context = event.element.cq->cq_context;
  return 0;
}

void ibv_ack_cq_events(struct ibv_cq* cq, unsigned count) {
  ENTER();
  (void)cq;
  (void)count;
}
