#include "ib2tcp/completion.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "ib2tcp/border.h"
#include "ib2tcp/device.h"
#include "ib2tcp/host.h"

namespace shadowib::ib2tcp {
namespace {

constexpr int kTurnsBeforeResize = 64;

Cq& cq_of(ibv_cq* verbs) { return *reinterpret_cast<Cq*>(verbs); }
Channel& channel_of(ibv_comp_channel* verbs) { return *reinterpret_cast<Channel*>(verbs); }

}  // namespace

void Cq::overflow(std::uint64_t wr_id) {
  if (!overflowed) {
    overflowed = true;
    log_message(LogLevel::kWarn, "completion queue of %d entries is overrun; its queue pairs go to error", verbs.cqe);
    ibv_async_event event{};
    event.event_type = IBV_EVENT_CQ_ERR;
    event.element.cq = &verbs;
    reinterpret_cast<Context*>(verbs.context)->raise(event);
  }
  if (g_host->purged != nullptr) g_host->purged(wr_id);
}

void Cq::append_and_tell(bool solicited) {
  const std::uint64_t at = put.load(std::memory_order_relaxed);
  solicited = solicited || ring[at & mask].status != IBV_WC_SUCCESS;
  if (solicited) solicited_put.store(at + 1, std::memory_order_relaxed);
  // Sequentially consistent with arm: either this sees the arming or that sees the entry.
  put.store(at + 1, std::memory_order_seq_cst);
  int how = armed.load(std::memory_order_seq_cst);
  if (how == kNot || (how == kSolicited && !solicited)) return;
  if (armed.exchange(kNot) != kNot) tell();
}

int Cq::take(int count, ibv_wc* wc) {
  if (taken.load(std::memory_order_relaxed) == put.load(std::memory_order_seq_cst)) return 0;
  SpinGuard guard(poll_lock);
  std::uint64_t from = taken.load(std::memory_order_relaxed);
  std::uint64_t there = put.load(std::memory_order_acquire) - from;
  int n = static_cast<int>(std::min<std::uint64_t>(there, static_cast<std::uint64_t>(count)));
  for (int i = 0; i < n; ++i) wc[i] = ring[(from + static_cast<std::uint64_t>(i)) & mask];
  taken.store(from + static_cast<std::uint64_t>(n), std::memory_order_release);
  return n;
}

void Cq::arm(bool solicited_only) {
  const int wanted = solicited_only ? kSolicited : kNext;
  int now = armed.load();
  while (now < wanted && !armed.compare_exchange_weak(now, wanted)) {
  }
  if (channel == nullptr) return;
  const std::uint64_t end = put.load(std::memory_order_seq_cst), from = taken.load();
  const std::uint64_t awaited = std::max(now, wanted) == kNext ? end : std::min(end, solicited_put.load());
  const bool is_told = from == told_taken_.load() && end == told_put_.load();
  if (awaited > from && !is_told && armed.exchange(kNot) != kNot) {
    SpinGuard guard(poll_lock);  // against purge
    tell();
  }
  g_engine->about_to_sleep();
}

// Two may be here at once, of two requests. What each finds was there at its own event or came later, and then the
// next request asks again.
void Cq::tell() {
  told_taken_.store(taken.load(), std::memory_order_relaxed);
  told_put_.store(put.load(), std::memory_order_relaxed);
  channel->notify(*this);
}

void Cq::purge(std::uint32_t qp_num) {
  SpinGuard guard(poll_lock);
  std::uint64_t from = taken.load(), to = from, end = put.load();
  for (std::uint64_t i = from; i != end; ++i)
    if (ring[i & mask].qp_num != qp_num) {
      ring[to++ & mask] = ring[i & mask];
    } else if (g_host->purged != nullptr) {
      g_host->purged(ring[i & mask].wr_id);
    }
  if (to == end) return;
  put.store(to);
  if (solicited_put.load() > to) solicited_put.store(to);
  told_put_.store(kUntold);  // what comes now takes the places of what was told
}

int Cq::resize(std::uint64_t size) {
  const int rc = set_room(size);
  if (rc == 0) verbs.cqe = static_cast<int>(size);
  return rc;
}

// A program has so many requests under way that their completions fit: it posts the next ones when it hears from its
// peer. Messages that are sent again do not wait for that, and take all receives at once.
bool Cq::lengthen() {
  if (g_engine->border == nullptr) return false;
  return (taken.load() < repeats_until_ || g_engine->border->sends_again()) && set_room(2 * (mask + 1)) == 0;
}

int Cq::set_room(std::uint64_t size) {
  std::unique_ptr<ibv_wc[]> larger(new (std::nothrow) ibv_wc[size]);
  if (larger == nullptr) return ENOMEM;
  SpinGuard guard(poll_lock);
  const std::uint64_t from = taken.load(), end = put.load();
  if (end - from > size) return EINVAL;
  for (std::uint64_t i = from; i != end; ++i) larger[i & (size - 1)] = ring[i & mask];
  ring = std::move(larger);
  mask = size - 1;
  return 0;
}

void Channel::notify(Cq& cq) {
  SpinGuard guard(lock);
  if (cq.pending_events++ == 0) pending.push_back(cq);
  std::uint64_t one = 1;
  [[maybe_unused]] auto n = ::write(verbs.fd, &one, sizeof(one));
}

void Channel::forget(Cq& cq) {
  SpinGuard guard(lock);
  for (; cq.pending_events > 0; --cq.pending_events) {
    std::uint64_t one;
    [[maybe_unused]] auto n = ::read(verbs.fd, &one, sizeof(one));
  }
  cq.pending_hook.unlink();
}

ibv_comp_channel* create_comp_channel(ibv_context* context) {
  UnownedDescriptors unowned;
  int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE);
  if (fd < 0) return fail_null<ibv_comp_channel>(errno);
  int owned = unowned.own(fd);
  if (owned < 0) {
    ::close(fd);
    return fail_null<ibv_comp_channel>(EMFILE);
  }
  auto* channel = new Channel;
  channel->verbs.context = context;
  channel->verbs.fd = owned;
  ++reinterpret_cast<Context*>(context)->users;
  ++g_engine->objects;
  return &channel->verbs;
}

int destroy_comp_channel(ibv_comp_channel* verbs) {
  Channel& channel = channel_of(verbs);
  if (channel.users.load() != 0) return EBUSY;
  --reinterpret_cast<Context*>(verbs->context)->users;
  g_host->close_descriptor(verbs->fd);
  --g_engine->objects;
  delete &channel;
  return 0;
}

ibv_cq* create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector) {
  if (cqe < 1 || cqe > kMaxCqe || comp_vector < 0 || comp_vector >= context->num_comp_vectors)
    return fail_null<ibv_cq>(EINVAL);
  if (channel != nullptr && channel->context != context) return fail_null<ibv_cq>(EINVAL);
  std::uint64_t size = std::bit_ceil(static_cast<std::uint64_t>(cqe));
  auto* cq = new Cq;
  cq->ring.reset(new (std::nothrow) ibv_wc[size]);
  if (cq->ring == nullptr) {
    delete cq;
    return fail_null<ibv_cq>(ENOMEM);
  }
  cq->mask = size - 1;
  cq->verbs.context = context;
  cq->verbs.channel = channel;
  cq->verbs.cq_context = cq_context;
  cq->verbs.cqe = static_cast<int>(size);
  if (channel != nullptr) {
    cq->channel = &channel_of(channel);
    ++cq->channel->users;
    ++channel->refcnt;
  }
  ++reinterpret_cast<Context*>(context)->users;
  ++g_engine->objects;
  return &cq->verbs;
}

int resize_cq(ibv_cq* verbs, int cqe) {
  if (cqe < 1 || cqe > kMaxCqe) return EINVAL;
  EngineGuard guard;
  // What has arrived and was not looked at yet counts as well: nobody may have polled for a while.
  // An idle turn may have sent what the next will read.
  for (int turns = 0, idle = 0; turns < kTurnsBeforeResize && idle < 3; ++turns)
    idle = g_engine->turn(true) ? 0 : idle + 1;
  return cq_of(verbs).resize(std::bit_ceil(static_cast<std::uint64_t>(cqe)));
}

int destroy_cq(ibv_cq* verbs) {
  Cq& cq = cq_of(verbs);
  if (cq.users.load() != 0) return EBUSY;
  EngineGuard guard;
  reinterpret_cast<Context*>(verbs->context)->forget(verbs, cq.unread_events);
  if (cq.channel != nullptr) {
    cq.channel->forget(cq);
    --cq.channel->users;
    --cq.channel->verbs.refcnt;
  }
  --reinterpret_cast<Context*>(verbs->context)->users;
  --g_engine->objects;
  delete &cq;
  return 0;
}

int poll_cq(ibv_cq* verbs, int count, ibv_wc* wc) {
  Cq& cq = cq_of(verbs);
  if (__builtin_expect(count <= 0, 0)) return count < 0 ? -1 : 0;
  int n = cq.take(count, wc);
  if (n > 0) return n;
  if (!g_engine->poll_turn(cq.armed.load(std::memory_order_relaxed) != Cq::kNot)) return 0;
  return cq.take(count, wc);
}

int req_notify_cq(ibv_cq* verbs, int solicited_only) {
  cq_of(verbs).arm(solicited_only != 0);
  return 0;
}

int get_cq_event(ibv_comp_channel* verbs, ibv_cq** cq) {
  Channel& channel = channel_of(verbs);
  SpinGuard guard(channel.lock);
  if (channel.pending.empty()) {
    g_host->set_errno(EAGAIN);
    return -1;
  }
  std::uint64_t one;
  [[maybe_unused]] auto n = ::read(verbs->fd, &one, sizeof(one));
  Cq& first = channel.pending.front();
  channel.pending.pop_front();
  if (--first.pending_events > 0) channel.pending.push_back(first);
  *cq = &first.verbs;
  return 0;
}

// Destroying does not wait for acknowledgements: the shim counts them on objects of its own.
void ack_cq_events(ibv_cq*, unsigned) {}

}  // namespace shadowib::ib2tcp
