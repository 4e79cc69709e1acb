#include "storm/completions.h"

#include <cerrno>

#include "examples/extended_verbs/extended_verbs.h"

namespace storm {
namespace {
constexpr std::uint32_t kTurnsOfASize = 20000;
}

EventChannel::EventChannel(Adapter& adapter)
    : channel_(made(ibv_create_comp_channel(adapter.context()), "ibv_create_comp_channel")) {
  thread_.start([this] { wait_for_events(); });
}

EventChannel::~EventChannel() {
  stopping_ = true;
  thread_.interrupt_and_join();
}

void EventChannel::wait_for_events() {
  while (!stopping_) {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(channel_.get(), &cq, &context) != 0) {
      if (errno != EINTR) {
        succeeded(false, "ibv_get_cq_event", 0);
        return;
      }
      continue;
    }
    auto* queue = static_cast<CompletionQueue*>(context);
    if (queue->get() != cq) ledger().fault(Fault::kEvent, "an event of a completion queue with another's context");
    queue->event();
    ibv_ack_cq_events(cq, 1);  // after this the queue may be gone
  }
}

CompletionQueue::CompletionQueue(Adapter& adapter, std::uint32_t entries, bool extended, EventChannel* channel,
                                 bool solicited_only)
    : channel_(channel),
      solicited_only_(solicited_only),
      entries_(entries),
      dice_(key_of(entries, extended, 29)),
      extended_(nullptr, [](ibv_cq_ex* cq) { STORM_ZERO(ibv_destroy_cq(ibv_cq_ex_to_cq(cq))); }) {
  ibv_comp_channel* events = channel ? channel->get() : nullptr;
  if (extended) {
    ibv_cq_init_attr_ex attr{};
    attr.cqe = entries;
    attr.cq_context = this;
    attr.channel = events;
    attr.wc_flags = IBV_WC_STANDARD_FLAGS;
    extended_.reset(made(ibv_create_cq_ex(adapter.context(), &attr), "ibv_create_cq_ex"));
    if (extended_) plain_ = ibv_cq_ex_to_cq(extended_.get());
  } else {
    queue_.reset(made(ibv_create_cq(adapter.context(), static_cast<int>(entries), this, events, 0), "ibv_create_cq"));
    plain_ = queue_.get();
  }
}

void CompletionQueue::add(std::uint32_t queue_pair, CompletionSink* sink) {
  if (!sinks_.emplace(queue_pair, sink).second)
    ledger().fault(Fault::kIdentity, "two queue pairs have the number %u", queue_pair);
}

void CompletionQueue::event() {
  const std::uint64_t events = events_.fetch_add(1) + 1;
  ledger().count(Count::kCompletionEvents);
  if (events > armed_.load())
    ledger().fault(Fault::kEvent, "a completion queue armed %lu times has its event %lu", armed_.load(), events);
}

int CompletionQueue::take(ibv_wc* wc) {
  return extended_ ? extended_poll(extended_.get(), IBV_WC_STANDARD_FLAGS, kBatch, wc)
                   : ibv_poll_cq(plain_, kBatch, wc);
}

// Takes what there is, but not for ever.
bool CompletionQueue::drain() {
  ibv_wc wc[kBatch];
  bool some = false;
  more_ = true;
  for (int batch = 0; batch < kMostBatches && more_; ++batch) {
    const int n = take(wc);
    if (n < 0) ledger().fault(Fault::kRefused, "a completion queue cannot be polled: %d", n);
    more_ = n == kBatch;
    ledger().count(Count::kCompletions, static_cast<std::uint64_t>(n > 0 ? n : 0));
    for (int i = 0; i < n; ++i) {
      some = true;
      auto sink = sinks_.find(wc[i].qp_num);
      if (sink != sinks_.end())
        sink->second->completed(wc[i]);
      else
        ledger().fault(Fault::kCompletion,
                       "wr_id %lx, opcode %d, %s: of queue pair %u, which is not of this completion queue",
                       wc[i].wr_id, wc[i].opcode, ibv_wc_status_str(wc[i].status), wc[i].qp_num);
    }
  }
  return some;
}

// With completions in it, sometimes: never to less than all of its queue pairs may bring.
void CompletionQueue::resize() {
  STORM_ZERO(ibv_resize_cq(plain_, static_cast<int>(entries_ + dice_.below(entries_))));
}

void CompletionQueue::arm() {
  served_ = events_.load();
  if (armed_.load() != served_) return;
  ++armed_;
  STORM_ZERO(ibv_req_notify_cq(plain_, solicited_only_));
}

bool CompletionQueue::poll() {
  if (dice_.below(kTurnsOfASize) == 0) resize();
  if (channel_ != nullptr && solicited_only_) {
    arm();
    return drain();
  }
  if (channel_ == nullptr || more_) {
    const bool some = drain();
    if (channel_ == nullptr || some || more_) return some;
  } else if (events_.load() == served_) {
    return false;
  }
  // Armed once, and what came before that is taken after it.
  arm();
  return drain();
}

}  // namespace storm
