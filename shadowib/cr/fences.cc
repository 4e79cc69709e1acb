#include "shadowib/cr/fences.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "shadowib/base/log.h"
#include "shadowib/cr/loopback.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/backend.h"

namespace shadowib {
namespace {

constexpr std::uint32_t kMostEvery = 64, kUsualEvery = 1;  // every so many-th request is forced at least
constexpr std::int64_t kTailNs = 2'000'000'000;

SpinLock g_lock;  // of domains' windows, and of what is known of adapters

// Asked for each queue pair that is made: a stop must find no thread within the making of a static variable.
std::uint32_t every() {
  const char* text = ::getenv("SHADOWIB_SIGNAL_EVERY");
  const int number = text != nullptr ? ::atoi(text) : 0;
  return number > 0 ? std::min(static_cast<std::uint32_t>(number), kMostEvery) : kUsualEvery;
}

// Of a queue of so many requests. A quarter: so what is forced makes room in time.
std::uint32_t every_of(const ibv_qp_init_attr& init) { return std::min(every(), init.cap.max_send_wr / 4); }

ibv_mw* make_window(const ShadowPd& pd) {
  return g_backend.alloc_mw != nullptr ? g_backend.alloc_mw(pd.real, IBV_MW_TYPE_1) : nullptr;
}

// Twice: an adapter may run it again.
int try_fence(const ShadowPd& pd, ibv_mw* window) {
  Loopback loopback;
  if (int rc = loopback.open(*ShadowContext::of(pd.pd.context), pd.real); rc != 0) return rc;
  for (int i = 0; i < 2; ++i) {
    ibv_send_wr wr = fence_request(window);
    if (int rc = loopback.run(&wr); rc != 0) return rc;
  }
  return 0;
}

bool adapter_has_fences(ShadowContext& context, const ShadowPd& pd, ibv_mw* window) {
  if (context.fences == ShadowContext::Fences::kUnknown) {
    const int rc = try_fence(pd, window);
    context.fences = rc == 0 ? ShadowContext::Fences::kWork : ShadowContext::Fences::kNone;
    if (rc != 0)
      log_line(LogLevel::kInfo, "adapter %s binds no window to nothing (%s): every request is signaled",
               context.device->device.name, ::strerror(rc));
  }
  return context.fences == ShadowContext::Fences::kWork;
}

}  // namespace

bool may_spare(ShadowPd& pd, const ibv_qp_init_attr& init) {
  ShadowContext& context = *ShadowContext::of(pd.pd.context);
  if (!g_backend.needs_signals || init.qp_type != IBV_QPT_RC || init.sq_sig_all != 0 || every_of(init) < 2)
    return false;
  // After a restart, and with windows of the program's, requests are looked at one by one anyway.
  if (context.translate || context.windows.used() || (context.attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW) == 0)
    return false;
  SpinGuard guard(g_lock);
  if (pd.fence != nullptr) return true;
  if (context.fences == ShadowContext::Fences::kNone) return false;
  ibv_mw* const window = make_window(pd);
  if (window == nullptr) return false;
  if (adapter_has_fences(context, pd, window))
    pd.fence = window;
  else
    g_backend.dealloc_mw(window);
  return pd.fence != nullptr;
}

void drop_fence(ShadowPd& pd) {
  SpinGuard guard(g_lock);
  if (pd.fence != nullptr) g_backend.dealloc_mw(pd.fence);
  pd.fence = nullptr;
}

void begin_sparing(ShadowQp& qp) {
  SpinGuard guard(qp.send.lock);
  if (qp.forces_signals && qp.sparing.room != 0 && !qp.translate) qp.sparing.every = every_of(qp.init);
}

void end_sparing(ShadowQp& qp) {
  Fence& fence = qp.sparing.of_checkpoint;
  {
    SpinGuard guard(qp.send.lock);
    qp.sparing.stop();
    if (!is_spared(qp, executed_frontier(qp)) || post_fence(qp, fence) != 0) return;
  }
  for (const std::int64_t deadline = monotonic_ns() + kTailNs; fence.pending() && monotonic_ns() < deadline;) {
    drain_completions(*ShadowCq::of(qp.init.send_cq));
    ::sched_yield();
  }
}

}  // namespace shadowib
