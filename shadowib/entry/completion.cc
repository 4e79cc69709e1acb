// Completion channels, completion queues, events.
#include <errno.h>

#include "hooks/threads/stop.h"
#include "shadowib/abi/handlers.h"
#include "shadowib/abi/slots.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/event_delivery.h"
#include "shadowib/entry/errors.h"
#include "shadowib/objects/registry.h"

using namespace shadowib;

namespace {
int foreign_event() {
  errno = EPERM;
  return -1;
}

std::uint32_t refilled(const ShadowCq& cq) { return cq.refill_count.load() & ~ShadowCq::kLookedAt; }

// Whether more completions than that wait for the program. The real queue knows it where all are there, and all are
// the program's.
bool holds_more_than(ShadowCq& cq, int entries) {
  if (!cq.swallows() && refilled(cq) == 0) return false;
  drain_completions(cq);
  return refilled(cq) > static_cast<std::uint32_t>(entries);
}
}  // namespace

extern "C" {

ibv_comp_channel* shadowib_ibv_create_comp_channel(ibv_context* context) {
  if (ShadowContext::is_foreign(context)) return null_with(EPERM);
  Inside inside;
  ibv_comp_channel* real = g_backend.create_comp_channel(ShadowContext::of(context)->real);
  if (real == nullptr) return null_of_backend("ibv_create_comp_channel", errno);
  auto* channel = new ShadowChannel{};
  channel->real = real;
  int fd = channel->events.open(real->fd);
  if (fd < 0) {
    int saved = errno;
    g_backend.destroy_comp_channel(real);
    delete channel;
    return null_with(saved);
  }
  channel->channel = {context, fd, 0};
  Registry& r = registry();
  SpinGuard guard(r.lock);
  r.channels.push_back(*channel);
  return &channel->channel;
}

int shadowib_ibv_destroy_comp_channel(ibv_comp_channel* program) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  Inside inside;
  ShadowChannel* channel = ShadowChannel::of(program);
  Registry& r = registry();
  SpinGuard guard(r.lock);
  if (program->refcnt != 0) return EBUSY;
  if (int rc = g_backend.destroy_comp_channel(channel->real); rc != 0) return rc;
  channel->events.close(program->fd);
  r.channels.erase(r.channels.iterator_to(*channel));
  delete channel;
  return 0;
}

ibv_cq* shadowib_ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                               int comp_vector) {
  if (ShadowContext::is_foreign(context)) return null_with(EPERM);
  Inside inside;
  auto* cq = new ShadowCq{};
  ibv_comp_channel* real_channel = channel != nullptr ? ShadowChannel::of(channel)->real : nullptr;
  cq->real = g_backend.create_cq(ShadowContext::of(context)->real, cqe, cq, real_channel, comp_vector);
  if (cq->real == nullptr) {
    const int saved = errno;
    delete cq;
    return null_of_backend("ibv_create_cq", saved);
  }
  cq->comp_vector = comp_vector;
  cq->cq.context = context;
  cq->cq.channel = channel;
  cq->cq.cq_context = cq_context;
  cq->cq.handle = cq->real->handle;
  cq->cq.cqe = cq->real->cqe;
  ::pthread_mutex_init(&cq->cq.mutex, nullptr);
  ::pthread_cond_init(&cq->cq.cond, nullptr);
  fill_refusing_slots(&cq->extended);
  Registry& r = registry();
  SpinGuard guard(r.lock);
  if (channel != nullptr) ++channel->refcnt;
  if (ShadowContext::of(context)->windows.used()) cq->look_at_each();
  r.cqs.push_back(*cq);
  return &cq->cq;
}

int shadowib_ibv_resize_cq(ibv_cq* program, int cqe) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  Inside inside;
  if (g_backend.resize_cq == nullptr) return EOPNOTSUPP;
  ShadowCq* cq = ShadowCq::of(program);
  SpinGuard guard(registry().lock);
  const std::int64_t entries = std::int64_t{cqe} + cq->reserved;
  if (cqe < 1 || entries > INT32_MAX) return EINVAL;
  if (cqe < program->cqe && holds_more_than(*cq, cqe)) return EINVAL;
  if (int rc = g_backend.resize_cq(cq->real, static_cast<int>(entries)); rc != 0) return rc;
  program->cqe = cq->real->cqe - static_cast<int>(cq->reserved);
  return 0;
}

int shadowib_ibv_destroy_cq(ibv_cq* program) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  ShadowCq* cq = ShadowCq::of(program);
  {
    Inside inside;
    Registry& r = registry();
    SpinGuard guard(r.lock);
    if (cq->users != 0) return EBUSY;
    if (int rc = destroy_real_cq(*cq); rc != 0) return rc;
    withdraw_async_events(*ShadowContext::of(program->context), program);
    r.cqs.erase(r.cqs.iterator_to(*cq));
    if (program->channel != nullptr) --program->channel->refcnt;
  }
  cq->events.wait_for_all();
  Inside inside;
  delete cq;
  return 0;
}

int shadowib_ibv_get_cq_event(ibv_comp_channel* program, ibv_cq** cq, void** cq_context) {
  if (ShadowContext::is_foreign(program->context)) return foreign_event();
  ShadowChannel* channel = ShadowChannel::of(program);
  for (;;) {
    {
      Inside inside;
      if (ShadowCq* ready = next_event(*channel); ready != nullptr) {
        *cq = &ready->cq;
        *cq_context = ready->cq.cq_context;
        return 0;
      }
    }
    if (!EventQueue::wait(program->fd)) return -1;
  }
}

void shadowib_ibv_ack_cq_events(ibv_cq* program, unsigned count) {
  Inside inside;
  ShadowCq* cq = ShadowCq::of(program);
  program->comp_events_completed += count;
  cq->events.acknowledge(count);
}

int shadowib_ibv_get_async_event(ibv_context* program, ibv_async_event* event) {
  if (ShadowContext::is_foreign(program)) return foreign_event();
  ShadowContext* context = ShadowContext::of(program);
  for (;;) {
    {
      Inside inside;
      if (next_async_event(*context, event)) return 0;
    }
    if (!EventQueue::wait(program->async_fd)) return -1;
  }
}

void shadowib_ibv_ack_async_event(ibv_async_event* event) {
  Inside inside;
  acknowledge_async(*event);
}

}  // extern "C"
